"""A job's checkpoints on a host: a folder of its own checkpoints, and a folder for each host with copies here."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Dict, List

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.folder import files_in
from ddpctl_worker.checkpoint.limits import MOST_NAME_BYTES, MOST_REMOVED
from ddpctl_worker.checkpoint.pins import find_pin, pinned_path
from ddpctl_worker.machine import fs
from ddpctl_worker.record import paths
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import FOLDER
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST

INCOMING = "incoming"  # beside the manifests: unfinished transfers
_OWNER, _REMOVED = "owner", "removed"


class JobFolder:
    """The checkpoints of ``job`` (a ``paths.job_id``) on the disk of ``host``. A folder is named after the host that
    wrote its files."""

    def __init__(self, base: str, job: str, host: str) -> None:
        self.base, self.job, self.host = base, job, host
        self.path = os.path.dirname(paths.checkpoint_dir(base, job, host))

    def of(self, writer: str) -> str:
        """Return the folder with the files of ``writer``; creates nothing."""
        return paths.checkpoint_dir(self.base, self.job, writer)

    def make(self, writer: str, *below: str) -> str:
        """Make the folder of ``writer``, or a folder below it, and return its path."""
        return fs.own_folder(self.base, *self.parts(writer, *below))

    def parts(self, writer: str, *below: str) -> List[str]:
        """Return the path of that folder below base_dir, in parts."""
        return [*os.path.relpath(self.of(writer), self.base).split(os.sep), *below]

    def writers(self) -> List[str]:
        """Return the hosts with a folder here."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if _is_folder(os.path.join(self.path, name)) and not name.startswith("."))

    def manifests(self, writer: str) -> Dict[str, Manifest]:
        """Return the manifests that fit the files: entry -> manifest."""
        return read_valid_manifests(self.of(writer), writer)

    def open(self, writer: str, entry: str, path: str) -> int:
        """Open the version of a file that the manifest of its entry names. No symbolic link on the way is followed.

        Raises:
            OSError: there is no such file. WorkerError: bad_request, the name leads out of the folder.
        """
        folder, parts = self.of(writer), inside(entry, path)
        found = manifest.read(folder, entry)
        place = find_pin(folder, found) if found is not None else None
        if place is not None:
            parts = os.path.relpath(pinned_path(place, path), folder).split(os.sep)
        return open_below(folder, parts)

    def mark(self) -> str:
        """Return a random mark of this host's own folder. A host that finds the same mark sees the same folder."""
        path = os.path.join(self.make(self.host, FOLDER), _OWNER)
        if not fs.read_optional(path).get("mark"):
            fs.write_json(path, {"mark": os.urandom(16).hex()})
        return str(fs.read_optional(path).get("mark"))

    def sees(self, writer: str, mark: str) -> bool:
        """Whether ``writer`` writes to this very folder: base_dir is shared."""
        return fs.read_optional(os.path.join(self.of(writer), FOLDER, _OWNER)).get("mark") == mark

    def removed(self) -> List[str]:
        """Return own entries that were removed for good. An entry that is being written again does not count, although
        it has no manifest yet."""
        return [one for one in self._noted() if not files_in(self.of(self.host), one)]

    def note_removed(self, entries: List[str]) -> None:
        """Record that own entries were removed for good, so that their copies go too. Entries that exist again are
        taken off the list."""
        before = self._noted()
        known = [*(one for one in before if one not in entries), *entries]
        gone = [one for one in known if not files_in(self.of(self.host), one)][-MOST_REMOVED:]
        if gone != before:
            fs.write_json(os.path.join(self.make(self.host, FOLDER), _REMOVED), {"entries": gone})

    def _noted(self) -> List[str]:
        return list(fs.read_optional(os.path.join(self.of(self.host), FOLDER, _REMOVED)).get("entries") or ())


def read_valid_manifests(folder: str, writer: str) -> Dict[str, Manifest]:
    """Return the manifests of ``writer`` that still fit the files in ``folder``: entry -> manifest."""
    found = [one for one in manifest.read_all(folder) if one["host"] == writer]
    return {one["entry"]: one for one in found if is_valid(folder, one)}


def is_valid(folder: str, found: Manifest) -> bool:
    """Whether every file of a manifest is unchanged, under its own name or pinned.

    An entry with an added file does not stand: that file may be cut, and a script would read it.
    """
    files = files_in(folder, found["entry"])
    if manifest.fits(found, files):
        return True
    known = {path: stamp for path, stamp in files.items() if path in found["files"]}
    return bool(files) and not manifest.fits(found, known) and find_pin(folder, found) is not None


def inside(entry: str, path: str) -> List[str]:
    """Return the parts of a file's path within a folder of checkpoints.

    Raises:
        WorkerError: bad_request, the path leads out of the folder, or into a hidden folder.
    """
    parts = [*str(entry).split("/"), *(str(path).split("/") if path else ())]
    if any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > MOST_NAME_BYTES for part in parts):
        raise WorkerError(BAD_REQUEST, "%r is not a file of a checkpoint" % ("/".join(parts),))
    if parts[0].startswith("."):
        raise WorkerError(BAD_REQUEST, "%r is not a checkpoint" % (entry,))
    return parts


def open_below(folder: str, parts: List[str]) -> int:
    """Open the regular file ``parts`` below ``folder``. Raises OSError, for a symbolic link too."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise IsADirectoryError("%s is no regular file" % "/".join(parts))


def _is_folder(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False
