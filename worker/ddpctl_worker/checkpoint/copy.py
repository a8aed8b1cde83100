"""Fetches the files of checkpoints from other hosts, and puts an entry in place once all its files are verified.

Files arrive below ``.ddpctl/incoming`` and stay there until the entry is complete. A transfer that was cut continues
where it ended.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.client import CheckpointClient
from ddpctl_worker.checkpoint.fencing import read_begun
from ddpctl_worker.checkpoint.folder import files_in, list_entries
from ddpctl_worker.checkpoint.jobfolder import INCOMING, JobFolder, inside
from ddpctl_worker.checkpoint.limits import INCOMING_S, MOST_NAME_BYTES
from ddpctl_worker.checkpoint.pins import find_pin, pinned_path, unpin
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.checkpoint.whole import is_complete, is_damaged
from ddpctl_worker.machine import fs
from ddpctl_worker.rules.attempts import BEFORE_ANY, BegunAttempt
from ddpctl_worker.rules.choice import newest_of_series
from ddpctl_worker.rules.complete import Chosen, Manifest, SavedFile, content
from ddpctl_worker.rules.complete import when as when_chosen
from ddpctl_worker.rules.entries import FOLDER, METADATA, Files, series_of
from ddpctl_worker.rules.order import When, when_of
from ddpctl_worker.store.blobs import Part, require_space
from ddpctl_worker.store.limits import CHUNK_BYTES
from ddpctl_worker.store.relay import PeerGone
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import CORRUPT, UNSAFE_PATH

_FILE = "file"  # the name of an entry that is a file, before it is in place

Get = Callable[[str, SavedFile], str]  # a file's path and description -> the path of the verified file
Stays = Callable[[str], bool]  # whether an own entry must stay as it is, since a live run may be writing it


class Fetching:
    """Fetches files for the folder of ``writer``, from ``peers`` or from this host's own disk."""

    def __init__(
        self, folder: JobFolder, writer: str, peers: Dict[str, CheckpointClient], throttle: Optional[Throttle] = None
    ) -> None:
        self._folder, self._writer, self._peers = folder, writer, peers
        self._throttle = throttle or Throttle(None)
        self._failures: Dict[str, int] = {}  # host -> its failures; a slow or broken host is asked last
        self.bytes = 0  # from other hosts

    def get(self, entry: str, path: str, file: SavedFile, sources: Sequence[Tuple[str, str]]) -> str:
        """Fetch a file from the first of ``sources`` (host, writer) that has the right content. Return its path.

        Raises:
            WorkerError: no_space, or corrupt: no source has the file.
        """
        fetched = os.path.join(self._folder.make(self._writer, FOLDER, INCOMING), file["sha256"])
        if os.path.exists(fetched):  # by an earlier try
            return fetched
        why = []
        for host, writer in sorted(sources, key=lambda source: self._failures.get(source[0], 0)):
            try:
                self._take(host, writer, entry, path, file)
                return fetched
            except (PeerGone, OSError) as error:
                self._failures[host] = self._failures.get(host, 0) + 1
                why.append("%s: %s" % (host, error))
            except WorkerError as error:
                if error.kind != CORRUPT:
                    raise
                why.append("%s: %s" % (host, error.message))
        what = "%s/%s" % (entry, path) if path else entry
        raise WorkerError(CORRUPT, "%s cannot be had (%s)" % (what, "; ".join(why) or "no host has it"))

    def _take(self, host: str, writer: str, entry: str, path: str, file: SavedFile) -> None:
        below = self._folder.parts(self._writer, FOLDER, INCOMING)
        part = Part(self._folder.base, file["sha256"], file["size"], folder=below, read_on=self._throttle.count_read)
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
            data = os.pread(fd, CHUNK_BYTES, part.done)
            while data:
                part.write(data)
                self._throttle.count(len(data))
                data = os.pread(fd, CHUNK_BYTES, part.done)
        finally:
            os.close(fd)


def fetch_entry(folder: JobFolder, writer: str, files: Dict[str, SavedFile], get: Get) -> str:
    """Fetch files into a new folder, each with its own modification time. Return the path of the folder.

    The folder lies below ``.ddpctl/incoming`` of ``writer``, with the files under their own paths.
    """
    incoming = folder.make(writer, FOLDER, INCOMING)
    lacking = [file for file in files.values() if not os.path.exists(os.path.join(incoming, file["sha256"]))]
    total, more = (sum(file["size"] for file in some) for some in (files.values(), lacking))
    require_space(incoming, total + more)  # twice the entry: the job's next save needs room too
    fetched = {file["sha256"]: get(path, file) for path, file in sorted(files.items())}  # kept if a later file fails
    made = os.path.join(incoming, "new.%s" % os.urandom(6).hex())
    os.mkdir(made, 0o700)
    placed: Dict[str, str] = {}  # hash -> where the file is now: two paths may have the same content
    try:
        for path, file in sorted(files.items()):
            target = os.path.join(made, *(path or _FILE).split("/"))
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            if file["sha256"] in placed:
                shutil.copyfile(placed[file["sha256"]], target)
            else:
                os.rename(fetched[file["sha256"]], target)
            placed[file["sha256"]] = target
            os.utime(target, ns=(file["mtime_ns"], file["mtime_ns"]))
            _sync(target)  # the time too: the manifest of a file with another time is stale
        for place, _, _ in os.walk(made):
            fs.sync_folder(place)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put_copy(folder: JobFolder, found: Manifest, gathered: str) -> None:
    """Make the folder ``gathered`` the copy of an entry that another host wrote. An older copy is removed."""
    old = "%s.old" % gathered
    try:
        target = _target(folder, found["host"], found["entry"])
        manifest.discard(folder.of(found["host"]), found["entry"])
        if os.path.lexists(target) and not ("" in found["files"] and _is_file(target)):
            os.rename(target, old)
        _move(gathered, target, found["files"])
        manifest.write(folder.of(found["host"]), found)
    finally:
        for path in (gathered, old):
            if os.path.lexists(path):
                remove_path(path)


def put_own(folder: JobFolder, chosen: Chosen, get: Get, stays: Stays = lambda entry: False) -> None:
    """Put a complete checkpoint into this host's own folder.

    - If the entry is there with a part of the same files, only the missing files are added.
    - If it is an older version with a valid manifest and no other files, it is removed: such versions would fill the
      disk.
    - Anything else that has the name is set aside, unless it ``stays``.
    """
    own, target = folder.of(folder.host), _target(folder, folder.host, chosen.entry)
    present = folder.manifests(folder.host).get(chosen.entry)
    have = content(present["files"]) if present is not None and "" not in present["files"] else {}
    missing = {path: file for path, file in chosen.files.items() if path not in have}
    unknown = [path for path in missing if os.path.lexists(os.path.join(target, path))]
    adding = bool(have) and not unknown and have.items() <= content(chosen.files).items()
    older = present is not None and when_chosen(chosen).is_newer(when_of(present)) and _nothing_else(target, present)
    kept = present if adding or older else None
    if not _is_unchanged(folder, chosen.entry, kept) and stays(chosen.entry):
        return
    gathered = fetch_entry(folder, folder.host, missing if adding else chosen.files, get)
    old = "%s.old" % gathered
    try:
        if not _is_unchanged(folder, chosen.entry, kept) and stays(chosen.entry):
            return
        if adding:
            _add(gathered, target, missing)
        else:
            if older and not _is_file(target):
                os.rename(target, old)
            elif not older and os.path.lexists(target):
                _set_aside(target)
            _move(gathered, target, chosen.files)
        manifest.write(own, manifest.own_manifest(chosen, folder.host))
    finally:
        for path in (gathered, old):
            if os.path.lexists(path):
                remove_path(path)


def _is_unchanged(folder: JobFolder, entry: str, found: Optional[Manifest]) -> bool:
    """Whether the files of an own entry are those of the manifest ``found``. ``None``: whether nothing has its name."""
    if found is None:
        return not os.path.lexists(os.path.join(folder.of(folder.host), entry))
    return manifest.fits(found, files_in(folder.of(folder.host), entry))


def _nothing_else(target: str, present: Manifest) -> bool:
    found = {os.path.relpath(os.path.join(at, name), target) for at, _, names in os.walk(target) for name in names}
    return found <= set(present["files"])


def set_newer_aside(folder: JobFolder, stays: Stays = lambda entry: False) -> List[str]:
    """Set aside each own entry that is newer than the newest complete entry of its series. Return their names.

    A script resumes from the newest name that it finds, and would fail on an incomplete entry in every attempt. Call
    this after ``put_own``: then all hosts have the same complete entries.
    """
    own, manifests = folder.of(folder.host), folder.manifests(folder.host)
    chosen = {
        series_of(one.entry): when_chosen(one) for one in newest_of_series(manifests.values()) if series_of(one.entry)
    }
    begun = read_begun(own)
    renamed = []
    for entry, files in list_entries(own).items():
        series, made = series_of(entry), manifests.get(entry)
        if series not in chosen or not _newer(_when(folder.host, begun, entry, files, made), chosen[series]):
            continue
        if not _usable(own, entry, files, made) and not stays(entry):
            os.rename(os.path.join(own, entry), _name_aside(os.path.join(own, entry)))
            manifest.discard(own, entry)
            renamed.append(entry)
    return renamed


def _when(host: str, begun: BegunAttempt, entry: str, files: Files, made: Optional[Manifest]) -> When:
    """Return when an entry was written, with or without a manifest."""
    if made is not None:
        return when_of(made)
    written = max(stamp.mtime_ns for stamp in files.values()) / 1e9
    return When(begun.writer(entry, files), host, written, entry)


def _newer(when: When, than: When) -> bool:
    """Whether ``when`` is after ``than``.

    - If the attempt of ``when`` is not known, the step decides.
    - If ``than`` is in the future of the same clock, the clock was set back since. Then any other entry may be newer.
    """
    if when.attempt == BEFORE_ANY:
        when = when._replace(attempt=than.attempt, clock="")
    same_clock = (when.attempt, when.clock) == (than.attempt, than.clock)
    return when.is_newer(than) or (same_clock and when.entry != than.entry and than.moment > time.time())


def put_back(folder: JobFolder, stays: Stays = lambda entry: False) -> List[str]:
    """Put the pinned version of own entries back under its own name. Return the names of these entries.

    An entry is concerned if its manifest is valid for the pinned version only. The files that replaced that version are
    not complete, since they have no manifest; they are set aside. Call this before an attempt, when no rank writes.
    """
    own, restored = folder.of(folder.host), []
    entries = list_entries(own)
    for entry, made in folder.manifests(folder.host).items():
        place = find_pin(own, made)
        if place is None or manifest.fits(made, entries.get(entry, {})) or stays(entry):
            continue
        target = _target(folder, folder.host, entry)
        if os.path.lexists(target):
            os.rename(target, _name_aside(target))
        os.rename(pinned_path(place, "") if "" in made["files"] else place, target)
        fs.sync_folder(os.path.dirname(target))
        unpin(own, entry)
        restored.append(entry)
    return restored


def _usable(own: str, entry: str, files: Files, made: Optional[Manifest]) -> bool:
    """Whether an entry newer than the newest complete entry can be used: the formats of all its files say so.

    An entry with a manifest is not usable: it would count as complete if it were.
    """
    if made is not None:
        return False
    paths = [manifest.file_of(own, entry, path) for path in files]
    try:
        return all(is_complete(path) and not is_damaged(path) for path in paths)
    except OSError:
        return False


def remove_abandoned_transfers(folder: JobFolder) -> None:
    """Remove the files of transfers that were interrupted and not continued for INCOMING_S."""
    for writer in folder.writers():
        incoming = os.path.join(folder.of(writer), FOLDER, INCOMING)
        for name in os.listdir(incoming) if os.path.isdir(incoming) else ():
            path = os.path.join(incoming, name)
            if time.time() - os.lstat(path).st_mtime > INCOMING_S:
                remove_path(path)


def remove_path(path: str) -> None:
    """Remove a file, or a folder with its content."""
    if _is_file(path):
        os.unlink(path)
    else:
        shutil.rmtree(path)


def _target(folder: JobFolder, writer: str, entry: str) -> str:
    """Return the path of an entry of ``writer``. Missing folders above it are created."""
    at = folder.make(writer)
    *above, name = inside(entry, "")
    for part in above:
        at = os.path.join(at, part)
        if not os.path.lexists(at):
            os.mkdir(at, 0o700)
        if not stat.S_ISDIR(os.lstat(at).st_mode):
            raise WorkerError(UNSAFE_PATH, "%s is not a folder" % at, "move it away")
    return os.path.join(at, name)


def _move(gathered: str, target: str, files: Dict[str, SavedFile]) -> None:
    if "" in files:
        os.rename(os.path.join(gathered, _FILE), target)
        os.rmdir(gathered)
    else:
        os.rename(gathered, target)
    fs.sync_folder(os.path.dirname(target))


def _add(gathered: str, target: str, files: Dict[str, SavedFile]) -> None:
    """Move files into an entry that lacks them. The index comes last: it makes the entry complete."""
    for path in sorted(files, key=lambda path: (path.rpartition("/")[2] == METADATA, path)):
        place = os.path.join(target, path)
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        os.rename(os.path.join(gathered, path), place)
        fs.sync_folder(os.path.dirname(place))


def _set_aside(target: str) -> None:
    """Give an entry another name. A file keeps its old name too, until it is replaced."""
    other = _name_aside(target)
    if _is_file(target):
        os.link(target, other, follow_symlinks=False)
    else:
        os.rename(target, other)


def _name_aside(target: str) -> str:
    """Return a free name in the same folder that is not the name of a checkpoint.

    A long name loses its first characters: its end has the step and the rank.
    """
    parent, name = os.path.split(target)
    when, number = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), 1
    while True:
        end = ".aside-%s" % when if number == 1 else ".aside-%s.%d" % (when, number)
        while len(os.fsencode(".%s%s" % (name, end))) > MOST_NAME_BYTES:
            name = name[1:]  # whole characters
        other = os.path.join(parent, ".%s%s" % (name, end))
        if not os.path.lexists(other):
            return other
        number += 1


def _is_file(path: str) -> bool:
    """Whether the path is not a folder. A symbolic link counts as a file."""
    return not stat.S_ISDIR(os.lstat(path).st_mode)
