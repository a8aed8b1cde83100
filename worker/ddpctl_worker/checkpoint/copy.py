"""Gets files of checkpoints from other hosts, and puts them in place once every one of them has been verified.

What arrives lies aside, below ``.ddpctl/incoming``, until the whole entry is there. A file that was cut short is
continued from where it ended. Whatever a peer says is checked: it may be broken, or hostile.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.fencing import read_begun
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.jobfolder import INCOMING, JobFolder, inside
from ddpctl_worker.checkpoint.limits import INCOMING_S, MOST_ANSWER_BYTES
from ddpctl_worker.checkpoint.pins import at, pinned, unpin
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.checkpoint.whole import damaged, whole
from ddpctl_worker.machine import fs
from ddpctl_worker.rules.attempts import BEFORE_ANY, Begun, attempt_of
from ddpctl_worker.rules.choice import newest
from ddpctl_worker.rules.complete import Chosen, Manifest, content, when
from ddpctl_worker.rules.entries import FOLDER, METADATA, Files, series_of
from ddpctl_worker.rules.order import When, moment, when_of
from ddpctl_worker.store.blobs import Part, require_space
from ddpctl_worker.store.relay import CHUNK, ChunkReader, LeastRate, PeerGone, connect, read_line, send_line
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import CORRUPT, UNSAFE_PATH

_FILE = "file"  # the name aside of an entry that is a file

File = Dict[str, Any]
Get = Callable[[str, File], str]  # a file's path and description -> where it lies now, verified


class CheckpointClient:
    """One host that serves, over a connection that is made when it is needed. Every method raises PeerGone."""

    def __init__(self, host: str, addresses: Sequence[Tuple[str, int]], tls: ssl.SSLContext) -> None:
        self.host, self.addresses, self._tls = host, tuple(addresses), tls
        self._in_turn = list(addresses)
        self._sock: Optional[ssl.SSLSocket] = None

    def list(self, by: Optional[str] = None, have: Optional[Dict[str, str]] = None) -> Dict[str, Any]:
        """What it has: ``serve.py`` says in which form. ``by``: the host that asks, and ``have``: entry -> version of
        the copies that it has of this host's own."""
        found = self._value({"k": "list", "by": by, "have": have or {}})
        rows, removed, mark = found.get("entries"), found.get("removed"), found.get("mark")
        plain = isinstance(rows, list) and all(isinstance(row, dict) and _is_row(row) for row in rows)
        if not plain or not isinstance(removed, list) or not isinstance(mark, str):
            raise self._nonsense()
        if not isinstance(found.get("final"), bool):
            raise self._nonsense()
        return found

    def manifest(self, writer: str, entry: str) -> Manifest:
        """A manifest of that writer and entry, with names that stay in their folder."""
        found = self._value({"k": "manifest", "writer": writer, "entry": entry})
        if not manifest.valid(found) or (found["host"], found["entry"]) != (writer, entry):
            raise self._nonsense()
        if not _stays_inside(found):
            raise self._nonsense()
        return found

    def orders(self, host: str, digest: str) -> Optional[List[Mapping[str, Any]]]:
        """What ``host`` has to put in place for the choice with that digest; None: the peer has not made it."""
        found: Optional[List[Mapping[str, Any]]] = self._value({"k": "orders", "for": host, "digest": digest})["orders"]
        if found is not None and not (isinstance(found, list) and all(map(_is_order, found))):
            raise self._nonsense()
        return found

    def file(self, writer: str, entry: str, path: str, part: Part, throttle: Throttle) -> None:
        """The rest of ``part``."""
        ask = {"k": "file", "writer": writer, "entry": entry, "path": path, "sha256": part.sha256, "offset": part.done}
        left = part.size - part.done
        if self._ask(ask) != left:
            raise PeerGone("%s has changed there, or is gone" % (path or entry))
        for data in self._pieces(left):
            part.write(data)
            throttle.took(len(data))

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _value(self, request: Dict[str, Any]) -> Dict[str, Any]:
        size = self._ask(request)
        if not 0 <= size <= MOST_ANSWER_BYTES:
            raise self._nonsense()
        try:
            value = json.loads(b"".join(self._pieces(size)))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._nonsense()
        return value

    def _ask(self, request: Dict[str, Any]) -> int:
        """The size of the answer; -1 when there is none."""
        if self._sock is None:
            self._sock = self._connected()
        try:
            send_line(self._sock, {"to": self.host, **request})
            size = read_line(self._sock).get("size")
        except OSError as error:
            self.close()
            raise PeerGone("the connection broke: %s" % error) from None
        except PeerGone:
            self.close()
            raise
        return size if isinstance(size, int) else -1

    def _pieces(self, size: int) -> Iterator[bytes]:
        assert self._sock is not None
        reader, left = ChunkReader(self._sock, LeastRate()), size
        try:
            while left:
                data, _ = reader.read()
                if data is None:
                    raise PeerGone("the file has become shorter there")
                if len(data) > left:
                    raise self._nonsense()
                left -= len(data)
                yield data
        finally:
            if left:  # whatever comes next on this connection is not understood
                self.close()

    def _connected(self) -> ssl.SSLSocket:
        why = "it has no address"
        for address in self._in_turn:
            try:
                sock = connect(address, self._tls)
            except OSError as error:
                why = "%s port %d: %s" % (address[0], address[1], error)
                continue
            self._in_turn.sort(key=lambda known: known != address)  # the one that works is asked first from now on
            return sock
        raise PeerGone(why)

    def _nonsense(self) -> PeerGone:
        self.close()
        return PeerGone("its answer is not understood")


class Fetching:
    """Files for one of the folders of ``folder``, from ``peers`` or from this host's own disk."""

    def __init__(
        self, folder: JobFolder, writer: str, peers: Dict[str, CheckpointClient], throttle: Optional[Throttle] = None
    ) -> None:
        self._folder, self._writer, self._peers = folder, writer, peers
        self._throttle = throttle or Throttle(None)
        self._failed: Dict[str, int] = {}  # host -> how often: one that trickles is not asked for every file
        self.bytes = 0  # that came from other hosts

    def get(self, entry: str, path: str, file: File, sources: Sequence[Tuple[str, str]]) -> str:
        """The file aside, verified, from the first of ``sources`` (host, writer) that has it as it should be.

        Raises:
            WorkerError: no_space; or corrupt, nobody has it.
        """
        aside = os.path.join(self._folder.make(self._writer, FOLDER, INCOMING), file["sha256"])
        if os.path.exists(aside):  # an earlier try came so far
            return aside
        why = []
        for host, writer in sorted(sources, key=lambda one: self._failed.get(one[0], 0)):
            try:
                self._take(host, writer, entry, path, file)
                return aside
            except (PeerGone, OSError) as error:
                self._failed[host] = self._failed.get(host, 0) + 1
                why.append("%s: %s" % (host, error))
            except WorkerError as error:
                if error.kind != CORRUPT:
                    raise
                why.append("%s: %s" % (host, error.message))
        what = "%s/%s" % (entry, path) if path else entry
        raise WorkerError(CORRUPT, "%s cannot be had (%s)" % (what, "; ".join(why) or "no host has it"))

    def _take(self, host: str, writer: str, entry: str, path: str, file: File) -> None:
        below = self._folder.parts(self._writer, FOLDER, INCOMING)
        part = Part(self._folder.base, file["sha256"], file["size"], folder=below, read_on=self._throttle.read)
        try:
            if host == self._folder.host:
                self._copy(writer, entry, path, part)
            elif host in self._peers:
                before = part.done
                self._peers[host].file(writer, entry, path, part, self._throttle)
                self.bytes += part.done - before
            else:
                raise PeerGone("it cannot be reached")
            part.commit()
        finally:
            part.keep()

    def _copy(self, writer: str, entry: str, path: str, part: Part) -> None:
        fd = self._folder.open(writer, entry, path)
        try:
            data = os.pread(fd, CHUNK, part.done)
            while data:
                part.write(data)
                self._throttle.took(len(data))
                data = os.pread(fd, CHUNK, part.done)
        finally:
            os.close(fd)


def gather(folder: JobFolder, writer: str, files: Dict[str, File], get: Get) -> str:
    """All these files in a new folder aside, each with its own time; its path."""
    incoming = folder.make(writer, FOLDER, INCOMING)
    lacking = [file for file in files.values() if not os.path.exists(os.path.join(incoming, file["sha256"]))]
    whole, more = (sum(file["size"] for file in some) for some in (files.values(), lacking))
    require_space(incoming, whole + more)  # the job's next save needs room too
    got = {file["sha256"]: get(path, file) for path, file in sorted(files.items())}  # what came stays if the rest fails
    aside = os.path.join(incoming, "new.%s" % os.urandom(6).hex())
    os.mkdir(aside, 0o700)
    made: Dict[str, str] = {}
    try:
        for path, file in sorted(files.items()):
            target = os.path.join(aside, *(path or _FILE).split("/"))
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            if file["sha256"] in made:
                shutil.copyfile(made[file["sha256"]], target)
            else:
                os.rename(got[file["sha256"]], target)
            made[file["sha256"]] = target
            os.utime(target, ns=(file["mtime_ns"], file["mtime_ns"]))
        for place, _, _ in os.walk(aside):
            fs.sync_folder(place)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return aside


def put_copy(folder: JobFolder, found: Manifest, aside: str) -> None:
    """What was gathered becomes the copy of an entry that another host wrote; an older copy of it goes."""
    old = "%s.old" % aside
    try:
        target = _target(folder, found["host"], found["entry"])
        manifest.discard(folder.of(found["host"]), found["entry"])
        if os.path.lexists(target) and not ("" in found["files"] and _is_file(target)):
            os.rename(target, old)
        _move(aside, target, found["files"])
        manifest.write(folder.of(found["host"]), found)
    finally:
        for path in (aside, old):
            if os.path.lexists(path):
                remove(path)


def put_own(folder: JobFolder, chosen: Chosen, get: Get) -> None:
    """This host's own folder gets the whole checkpoint. What has its name and is something else is set aside, unless it
    is an older one that stands as it was hashed: keeping those would fill the disk."""
    own, target = folder.of(folder.host), _target(folder, folder.host, chosen.entry)
    there = folder.manifests(folder.host).get(chosen.entry)
    have = content(there["files"]) if there is not None and "" not in there["files"] else {}
    missing = {path: file for path, file in chosen.files.items() if path not in have}
    strange = [path for path in missing if os.path.lexists(os.path.join(target, path))]
    adding = bool(have) and not strange and have.items() <= content(chosen.files).items()
    older = there is not None and when(chosen).is_newer(when_of(there)) and _nothing_else(target, there)
    aside = gather(folder, folder.host, missing if adding else chosen.files, get)
    old = "%s.old" % aside
    try:
        if adding:
            _add(aside, target, missing)
        else:
            if older and not _is_file(target):
                os.rename(target, old)
            elif not older and os.path.lexists(target):
                _set_aside(target)
            _move(aside, target, chosen.files)
        manifest.write(own, own_manifest(chosen, folder.host))
    finally:
        for path in (aside, old):
            if os.path.lexists(path):
                remove(path)


def _nothing_else(target: str, known: Manifest) -> bool:
    """Whether every file in it is one that the manifest names."""
    found = {os.path.relpath(os.path.join(at, name), target) for at, _, names in os.walk(target) for name in names}
    return found <= set(known["files"])


def set_newer_aside(folder: JobFolder) -> List[str]:
    """Rename what is newer in this host's own folder than the newest complete checkpoint of its series; what was
    renamed. A script resumes from the newest name that it finds, and would fail on it in every attempt.

    For after ``put_own``: this host then has the same complete ones as the others.
    """
    own, manifests = folder.of(folder.host), folder.manifests(folder.host)
    chosen = {series_of(one.entry): when(one) for one in newest(manifests.values()) if series_of(one.entry)}
    begun = read_begun(own)
    found = []
    for entry, files in list_entries(own).items():
        series, known = series_of(entry), manifests.get(entry)
        if series not in chosen or not _newer(_when(folder.host, begun, entry, files, known), chosen[series]):
            continue
        if not _usable(own, entry, files, known):
            os.rename(os.path.join(own, entry), _name_aside(os.path.join(own, entry)))
            manifest.discard(own, entry)
            found.append(entry)
    return found


def _when(host: str, begun: Begun, entry: str, files: Files, known: Optional[Manifest]) -> When:
    """When the files of an entry were written, which may have no manifest yet."""
    if known is not None:
        return when_of(known)
    written = max(stamp.mtime_ns for stamp in files.values()) / 1e9
    return When(begun.writer(entry, files), host, written, entry)


def _newer(one: When, than: When) -> bool:
    """Whether it was written after ``than``. If that is in the future of the same clock, the clock was set back, and an
    entry that nobody has hashed yet may be from after that. Where no attempt is known the step decides."""
    if one.attempt == BEFORE_ANY:
        one = one._replace(attempt=than.attempt, clock="")
    same_clock = (one.attempt, one.clock) == (than.attempt, than.clock)
    return one.is_newer(than) or (same_clock and one.entry != than.entry and than.moment > time.time())


def put_back(folder: JobFolder) -> List[str]:
    """Give each of this host's own entries that stands by its pinned version that version again; which ones. What has
    replaced it is not complete, or it would have a manifest, and is set aside.

    For before an attempt, when no rank writes.
    """
    own, found = folder.of(folder.host), []
    entries = list_entries(own)
    for entry, known in folder.manifests(folder.host).items():
        place = pinned(own, known)
        if place is None or manifest.fits(known, entries.get(entry, {})):
            continue
        target = _target(folder, folder.host, entry)
        if os.path.lexists(target):
            os.rename(target, _name_aside(target))
        os.rename(at(place, "") if "" in known["files"] else place, target)
        fs.sync_folder(os.path.dirname(target))
        unpin(own, entry)
        found.append(entry)
    return found


def _usable(own: str, entry: str, files: Files, known: Optional[Manifest]) -> bool:
    """Whether it says itself that it is whole although nobody has hashed it yet. What has a manifest, and is newer than
    the newest complete one, is not complete."""
    if known is not None:
        return False
    paths = [manifest.file_of(own, entry, path) for path in files]
    try:
        return all(whole(path) and not damaged(path) for path in paths)
    except OSError:  # it cannot be read
        return False


def own_manifest(chosen: Chosen, host: str) -> Manifest:
    """What ``host`` has once it has all of it."""
    return {
        "schema": manifest.SCHEMA,
        "entry": chosen.entry,
        "host": host,
        "step": chosen.step,
        "time": chosen.time,
        "size": sum(file["size"] for file in chosen.files.values()),
        "files": chosen.files,
        "references": chosen.references,
        "version": manifest.version_of(chosen.files),
        "serial": chosen.serial,
        "run": chosen.run,
        "attempt": chosen.attempt,
        "clock": chosen.clock,
    }


def sweep(folder: JobFolder) -> None:
    """Remove the files of transfers that were interrupted and not continued."""
    for writer in folder.writers():
        incoming = os.path.join(folder.of(writer), FOLDER, INCOMING)
        for name in os.listdir(incoming) if os.path.isdir(incoming) else ():
            path = os.path.join(incoming, name)
            if time.time() - os.lstat(path).st_mtime > INCOMING_S:
                remove(path)


def remove(path: str) -> None:
    """A file, or a folder with all that is in it."""
    if _is_file(path):
        os.unlink(path)
    else:
        shutil.rmtree(path)


def _target(folder: JobFolder, writer: str, entry: str) -> str:
    """Where an entry of ``writer`` lies; the folders above it are made."""
    at = folder.make(writer)
    *above, name = inside(entry, "")
    for part in above:
        at = os.path.join(at, part)
        if not os.path.lexists(at):
            os.mkdir(at, 0o700)
        if not stat.S_ISDIR(os.lstat(at).st_mode):
            raise WorkerError(UNSAFE_PATH, "%s is not a folder" % at, "move it away")
    return os.path.join(at, name)


def _move(aside: str, target: str, files: Dict[str, File]) -> None:
    if "" in files:
        os.rename(os.path.join(aside, _FILE), target)
        os.rmdir(aside)
    else:
        os.rename(aside, target)
    fs.sync_folder(os.path.dirname(target))


def _add(aside: str, target: str, files: Dict[str, File]) -> None:
    """Into a folder that has the others; the index, which makes it whole, comes last."""
    for path in sorted(files, key=lambda path: (path.rpartition("/")[2] == METADATA, path)):
        place = os.path.join(target, path)
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        os.rename(os.path.join(aside, path), place)
        fs.sync_folder(os.path.dirname(place))


def _set_aside(target: str) -> None:
    """Under a name that is no checkpoint's. The content of a file stays under its own name until it is replaced."""
    other = _name_aside(target)
    if _is_file(target):
        os.link(target, other, follow_symlinks=False)
    else:
        os.rename(target, other)


def _name_aside(target: str) -> str:
    """A name beside it that is no checkpoint's, and that nothing has."""
    parent, name = os.path.split(target)
    other = os.path.join(parent, ".%s.aside-%s" % (name, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())))
    number = 1
    while os.path.lexists(other if number == 1 else "%s.%d" % (other, number)):
        number += 1
    return other if number == 1 else "%s.%d" % (other, number)


def _is_file(path: str) -> bool:
    """Whether it is anything but a folder: a symbolic link is not followed."""
    return not stat.S_ISDIR(os.lstat(path).st_mode)


def _stays_inside(found: Manifest) -> bool:
    """Whether a valid manifest names nothing outside of its entry's folder, and no time that no file can have."""
    try:
        for path in found["files"]:
            inside(found["entry"], path)
    except WorkerError:
        return False
    return all(0 <= file["mtime_ns"] < 1 << 63 for file in found["files"].values())


def _is_order(order: Mapping[str, Any]) -> bool:
    try:
        made = own_manifest(Chosen(**{name: order[name] for name in Chosen._fields}), "")
        sources = order["sources"]
        pairs = [(host, writer) for path in made["files"] for host, writer in sources[path]]
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return manifest.valid(made) and _stays_inside(made) and all(isinstance(one, str) for pair in pairs for one in pair)


def _is_row(row: Dict[str, Any]) -> bool:
    try:
        moment(row["time"])
        return attempt_of(row) >= BEFORE_ANY and all(
            isinstance(row[key], str) for key in ("writer", "entry", "version")
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
