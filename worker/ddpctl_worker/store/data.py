"""Data folders of a project, as the controller pushes them: ``<base_dir>/data/<project>/<name>``.

That path is a link to the newest version. A version is a folder that never changes, so a run that has begun with it
keeps it. ``pinned_place`` gives a run the version behind the link.

    data/<project>/<name>                   -> .<name>/<version>
    data/<project>/.<name>/<version>/       the files, read-only
    data/<project>/.<name>/<version>.json   their listing; its time is the last push or start that used the version
    data/<project>/.<name>/<version>.part/  a version whose files still arrive
    data/<project>/.<name>/pushed.json      where the newest version came from

The files arrive in the store as bundles: a bundle is the bytes of several files in a row. ``data_place``
turns bundles into files and removes the bundles, so that the disk holds the data once. The files of a ``.part`` folder
and of earlier versions are used again: a file with the time DATA_TIME_S and the size in the listing was verified,
reached the disk, and has not changed since.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import re
import shutil
import stat
from typing import Any, Dict, Iterator, List, Optional, Set

from ddpctl_worker.machine import fs
from ddpctl_worker.rules.datafolder import DataFile, DataListing, as_ranges, decode_listing, from_ranges
from ddpctl_worker.store.blobs import blob_path, open_blob, require_space, unfinished
from ddpctl_worker.store.limits import DATA_TIME_S, MISSING_RANGES, READ_BYTES
from ddpctl_worker.store.remove import remove_folder
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT, INTERRUPTED, UNSAFE_PATH

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
VERSION_LETTERS = 16  # of the listing's hash: enough to tell the versions of one name apart
_AGAIN = "run the same command again"


class DataVersion:
    """The paths of a version, and its listing."""

    def __init__(self, request: Dict[str, Any]) -> None:
        """Raises WorkerError BAD_REQUEST or UNSAFE_PATH."""
        self.base, project, name = os.path.expanduser(request["base_dir"]), request["project"], request["name"]
        if not (_NAME.match(project) and _NAME.match(name)):
            raise WorkerError(BAD_REQUEST, "no name for a data folder: %r" % ((project, name),))
        self.sha256 = request["version"]
        self.blob = blob_path(self.base, self.sha256)
        self.top = fs.own_folder(self.base, "data", project, "." + name)
        self.link = os.path.join(os.path.dirname(self.top), name)
        self.tree = os.path.join(self.top, self.sha256[:VERSION_LETTERS])
        self.record = self.tree + ".json"
        self.staging = self.tree + ".part"

    def is_there(self) -> bool:
        return os.path.exists(self.record) and fs.is_folder(self.tree)

    def listing(self) -> Optional[DataListing]:
        """Return the listing, from the store or beside the version; ``None`` if it is not on this host.

        Raises:
            WorkerError: CORRUPT, its content does not fit its hash.
        """
        for path in (self.blob, self.record):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                data = file.read()
                if hashlib.sha256(data).hexdigest() == self.sha256:
                    with contextlib.suppress(ValueError):
                        return decode_listing(data)
                os.unlink(path)
                raise WorkerError(CORRUPT, "the listing %s was damaged and is removed" % path, _AGAIN)
        return None

    @contextlib.contextmanager
    def claimed(self, channel: Channel) -> Iterator[None]:
        """Exclude gc, and other pushes of this name. Raises WorkerError INTERRUPTED."""
        no_gc = fs.lock_shared(os.path.join(fs.own_folder(self.base, "envs"), fs.ENVS), channel)
        mine = fs.lock_exclusive(os.path.join(self.top, ".lock"), channel)
        with no_gc, mine:
            yield


def data_missing(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"project", "name", "version", "single", "batch"}`` -> ``{"there", "listed", "missing"}``.

    ``single``: bytes from which on a file travels alone. ``batch``: bytes of the bundles that lie beside their files
    while they are unpacked, at most. ``there``: this host has the version. ``listed``: it has the listing, so that
    ``missing`` counts: ``[[first, count], ...]``, the files that no version on this host has.

    Raises:
        WorkerError: NO_SPACE for the missing files, UNSAFE_PATH, CORRUPT.
    """
    version = DataVersion(request)
    if version.is_there():
        return {"there": True, "listed": True, "missing": []}
    listing = version.listing()
    if listing is None:
        return {"there": False, "listed": False, "missing": []}
    known = _Known(version, listing)
    missing = [index for index, file in enumerate(listing.files) if file.size and known.find(file) is None]
    hashes = {listing.files[index].sha256: listing.files[index].size for index in missing}
    bundled = sum(size for size in hashes.values() if size < request["single"])
    twice = min(bundled, request["batch"])
    require_space(version.top, sum(hashes.values()) + twice - _begun(version.base, hashes))
    return {"there": False, "listed": True, "missing": as_ranges(missing, MISSING_RANGES)}


def _begun(base: str, hashes: Dict[str, int]) -> int:
    """Return the bytes of these files that are in the store, whole or in part."""
    folder = fs.own_folder(base, "store")
    names = {name.split(".")[0] for name in os.listdir(folder)} & set(hashes)
    total = 0
    for name in names:
        for path in [os.path.join(folder, name), *unfinished(folder, name)][:2]:
            with contextlib.suppress(OSError):
                total += min(os.lstat(path).st_size, hashes[name])
                break
    return total


class _Known:
    """Files of a listing that are on this host already: in the part of this version, or in other versions."""

    def __init__(self, version: DataVersion, listing: DataListing) -> None:
        self._staging = version.staging
        self._others: Dict[str, str] = {}
        wanted = {file.sha256 for file in listing.files}
        records = os.path.join(glob.escape(version.base), "data", "*", ".*", "[0-9a-f]*.json")
        for record in sorted(glob.glob(records)):
            tree = record[: -len(".json")]
            try:
                with open(record, "rb") as stream:
                    there = decode_listing(stream.read())
            except (OSError, ValueError):
                continue
            self._others.update({f.sha256: os.path.join(tree, f.path) for f in there.files if f.sha256 in wanted})
        for file in listing.files:
            path = os.path.join(self._staging, file.path)
            if is_intact(path, file.size):
                self._others[file.sha256] = path

    def find(self, file: DataFile) -> Optional[str]:
        """Return the path of an intact file with this content; ``None`` without such a file."""
        for path in (os.path.join(self._staging, file.path), self._others.get(file.sha256)):
            if path is not None and is_intact(path, file.size):
                return path
        return None


def is_intact(path: str, size: int) -> bool:
    """Return whether a file of a version is complete and unchanged since it was verified."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    mine = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
    return mine and info.st_size == size and info.st_mtime == DATA_TIME_S


def data_place(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"project", "name", "version", "bundles": [[sha256, ranges], ...], "last": bool, "origin": text}``.

    Makes files from bundles in the store. With ``last`` the version becomes visible, whole, under its name. Returns
    ``{"path", "replaced"}``: the origin of a version from elsewhere that had the name, else ``None``.

    Raises:
        WorkerError: CORRUPT, a file or bundle is missing or damaged; NO_SPACE, UNSAFE_PATH, INTERRUPTED.
    """
    version = DataVersion(request)
    replaced = None
    with version.claimed(channel):
        if not version.is_there():
            _build(version, request, channel)
        if request["last"]:
            replaced = _switch(version, request["origin"])
    return {"path": version.link, "replaced": replaced}


def _build(version: DataVersion, request: Dict[str, Any], channel: Channel) -> None:
    listing = version.listing()
    if listing is None:
        raise WorkerError(CORRUPT, "the listing of the data is not in the store", _AGAIN)
    fs.private_dir(version.staging)
    try:
        _unpack_bundles(version, listing, request["bundles"], channel)
        if request["last"]:
            _complete(version, listing, channel)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            require_space(version.top, sum(file.size for file in listing.files))
        raise WorkerError(CORRUPT, "cannot write below %s: %s" % (version.staging, error.strerror), _AGAIN) from None


# --- bundles ----------------------------------------------------------------------------------------------------------
def _unpack_bundles(version: DataVersion, listing: DataListing, bundles: List[Any], channel: Channel) -> None:
    """Make the files of the bundles, sync them to the disk, mark them as intact, then remove the bundles."""
    made: List[str] = []
    tree = _Tree(version.staging)
    for sha256, ranges in bundles:
        places = {}
        for index in from_ranges(ranges, len(listing.files)):
            file = listing.files[index]
            places[tree.place(file.path)] = file
        if all(is_intact(path, file.size) for path, file in places.items()):
            continue  # unpacked before; the bundle may be gone
        if channel.closed.is_set():
            raise WorkerError(INTERRUPTED, "the controller disconnected", _AGAIN)
        fd = open_blob(version.base, sha256)
        if fd is None:
            raise WorkerError(CORRUPT, "%s is not in the store" % sha256, _AGAIN)
        with os.fdopen(fd, "rb") as bundle:
            if len(places) == 1:
                _move(blob_path(version.base, sha256), *places.popitem())
                continue
            for path, file in places.items():
                _copy(bundle, path, file)
        made.extend(places)
    if made:
        fs.sync_filesystem(version.staging)
        _mark(made)
    for sha256, _ in bundles:
        fs.discard(blob_path(version.base, sha256))


class _Tree:
    """The folder of a version that is being made. Nothing is written through a symbolic link in it."""

    def __init__(self, top: str) -> None:
        self._top = top
        self._made: Set[str] = set()

    def place(self, path: str) -> str:
        """Return the path of a file below the folder, with its parent folders made.

        Raises:
            WorkerError: UNSAFE_PATH, a folder on the way is a symbolic link.
        """
        self.make(os.path.dirname(path))
        return os.path.join(self._top, path)

    def make(self, folder: str) -> None:
        """Make a folder below the top. Raises WorkerError as ``place``."""
        if folder in self._made:
            return
        if folder:
            self.make(os.path.dirname(folder))
            path = os.path.join(self._top, folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            if os.path.islink(path):
                raise WorkerError(UNSAFE_PATH, "%s is a symbolic link" % path, "remove it, then " + _AGAIN)
        self._made.add(folder)


def _move(blob: str, path: str, file: DataFile) -> None:
    """Turn a blob, which was verified and synced when it came, into the file."""
    if os.path.basename(blob) != file.sha256:
        raise WorkerError(CORRUPT, "%s is not the content of %s" % (os.path.basename(blob), file.path), _AGAIN)
    _set_mode(blob, file)
    _mark([blob])
    os.rename(blob, path)


def _set_mode(path: str, file: DataFile) -> None:
    os.chmod(path, 0o555 if file.executable else 0o444)


def _copy(source: Any, path: str, file: DataFile) -> None:
    """Copy the next bytes of ``source`` to a new file.

    Raises:
        WorkerError: CORRUPT, the bytes do not fit the hash of ``file``.
    """
    fs.discard(path)  # of an interrupted try
    sha, left = hashlib.sha256(), file.size
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as target:
        while left:
            data = source.read(min(left, READ_BYTES))
            if not data:
                break
            sha.update(data)
            target.write(data)
            left -= len(data)
    if sha.hexdigest() != file.sha256:
        raise WorkerError(CORRUPT, "%s arrived damaged" % file.path, _AGAIN)
    _set_mode(path, file)


def _mark(paths: List[str]) -> None:
    for path in paths:
        os.utime(path, (DATA_TIME_S, DATA_TIME_S))


# --- the whole version ------------------------------------------------------------------------------------------------
def _complete(version: DataVersion, listing: DataListing, channel: Channel) -> None:
    """Take every other file from this host, check that all are there, and give the version its name."""
    known, tree = _Known(version, listing), _Tree(version.staging)
    made: List[str] = []
    for file in listing.files:
        if channel.closed.is_set():
            raise WorkerError(INTERRUPTED, "the controller disconnected", _AGAIN)
        place = tree.place(file.path)
        if is_intact(place, file.size):
            continue
        fs.discard(place)
        if file.size == 0:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            _set_mode(place, file)
        else:
            _take(known.find(file), place, file)
        made.append(place)
    for folder in listing.folders:
        tree.make(folder)
    for path, goal in listing.links:  # after all files: no file is written through a link
        place = tree.place(path)
        fs.discard(place)
        os.symlink(goal, place)
    if made or listing.folders or listing.links:
        fs.sync_filesystem(version.staging)
        _mark(made)
    with contextlib.suppress(FileNotFoundError):  # an interrupted try has moved it
        os.rename(version.blob, version.record)
    if os.path.lexists(version.tree):
        remove_folder(version.tree)  # without its listing: gc was interrupted
    os.rename(version.staging, version.tree)
    fs.sync_folder(version.top)


def _take(known: Optional[str], place: str, file: DataFile) -> None:
    """Make ``place`` a second name of the file ``known``, or a copy where the mode or the file system demands it."""
    if known is None:
        raise WorkerError(CORRUPT, "%s has not arrived" % file.path, _AGAIN)
    if bool(os.stat(known).st_mode & 0o100) == file.executable:
        try:
            os.link(known, place)
            return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
                raise
    shutil.copyfile(known, place)
    _set_mode(place, file)


def _switch(version: DataVersion, origin: str) -> Optional[str]:
    """Let the name lead to this version; return the other origin of the version that had the name."""
    os.utime(version.record)
    goal = os.path.relpath(version.tree, os.path.dirname(version.link))
    pushed = os.path.join(version.top, "pushed.json")
    if os.path.lexists(version.link):
        if not os.path.islink(version.link):
            raise WorkerError(UNSAFE_PATH, "%s is not a link of ddpctl" % version.link, "move it away")
        if os.readlink(version.link) == goal:
            return None
    before = fs.read_optional(pushed).get("origin") if os.path.exists(version.link) else None
    draft = os.path.join(version.top, ".%s.link" % os.urandom(4).hex())
    os.symlink(goal, draft)
    os.rename(draft, version.link)
    fs.sync_folder(os.path.dirname(version.link))
    fs.write_json(pushed, {"origin": origin})
    return str(before) if before and before != origin else None


def pinned_place(base: str, place: str) -> str:
    """Return the place that a run uses: of a pushed data folder its present version, any other place unchanged.

    The version counts as used from now on, so gc keeps it while the run is live.
    """
    root = os.path.join(os.path.realpath(base), "data") + os.sep
    real = os.path.realpath(place)
    parts = real[len(root) :].split(os.sep)
    if not real.startswith(root) or len(parts) < 3:
        return place
    with contextlib.suppress(OSError):
        os.utime(os.path.join(root, *parts[:3]) + ".json")
    return real
