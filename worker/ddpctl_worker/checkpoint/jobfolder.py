"""A job's checkpoints on one host: a folder for each host that wrote, its own and those of which it has copies."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Dict, List

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.folder import files_in
from ddpctl_worker.checkpoint.limits import MOST_NAME_BYTES, MOST_REMOVED
from ddpctl_worker.checkpoint.pins import at, pinned
from ddpctl_worker.machine import fs
from ddpctl_worker.record import paths
from ddpctl_worker.rules.entries import FOLDER
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST

INCOMING = "incoming"  # beside the manifests: what is on its way
_OWNER, _REMOVED = "owner", "removed"


class JobFolder:
    """``job`` is a ``paths.job_id``. ``host`` is the one whose disk this is: what it wrote itself lies in the folder of
    its name."""

    def __init__(self, base: str, job: str, host: str) -> None:
        self.base, self.job, self.host = base, job, host
        self.path = os.path.dirname(paths.checkpoint_dir(base, job, host))

    def of(self, writer: str) -> str:
        """The folder with what ``writer`` wrote; nothing is created."""
        return paths.checkpoint_dir(self.base, self.job, writer)

    def make(self, writer: str, *below: str) -> str:
        """The same, or a folder below it, made where it is missing."""
        return fs.own_folder(self.base, *self.parts(writer, *below))

    def parts(self, writer: str, *below: str) -> List[str]:
        """Its path below base_dir."""
        return [*os.path.relpath(self.of(writer), self.base).split(os.sep), *below]

    def writers(self) -> List[str]:
        """The hosts of which something lies here."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if _is_folder(os.path.join(self.path, name)) and not name.startswith("."))

    def manifests(self, writer: str) -> Dict[str, Dict[str, Any]]:
        """Those of what is there as it was hashed: entry -> manifest."""
        return standing(self.of(writer), writer)

    def open(self, writer: str, entry: str, path: str) -> int:
        """A descriptor to read a file of an entry as its manifest has it. No symbolic link on the way is followed.

        Raises:
            OSError: there is none. WorkerError: bad_request, the name leads out of the folder.
        """
        folder, parts = self.of(writer), inside(entry, path)
        found = manifest.read(folder, entry)
        place = pinned(folder, found) if found is not None else None
        if place is not None:
            parts = os.path.relpath(at(place, path), folder).split(os.sep)
        return open_below(folder, parts)

    def mark(self) -> str:
        """A random name of this host's own folder, by which another host knows whether it sees that same folder."""
        path = os.path.join(self.make(self.host, FOLDER), _OWNER)
        if not fs.read_optional(path).get("mark"):
            fs.write_json(path, {"mark": os.urandom(16).hex()})
        return str(fs.read_optional(path).get("mark"))

    def sees(self, writer: str, mark: str) -> bool:
        """Whether the folder of ``writer`` here is the very one that it writes to: base_dir is shared."""
        return fs.read_optional(os.path.join(self.of(writer), FOLDER, _OWNER)).get("mark") == mark

    def removed(self) -> List[str]:
        """Own entries that are gone for good. One that is being written again is not gone, although it has no manifest
        yet."""
        return [one for one in self._noted() if not files_in(self.of(self.host), one)]

    def note_removed(self, entries: List[str]) -> None:
        """These of its own entries are gone for good: copies of them may go too. What exists again is forgotten."""
        before = self._noted()
        known = [*(one for one in before if one not in entries), *entries]
        gone = [one for one in known if not files_in(self.of(self.host), one)][-MOST_REMOVED:]
        if gone != before:
            fs.write_json(os.path.join(self.make(self.host, FOLDER), _REMOVED), {"entries": gone})

    def _noted(self) -> List[str]:
        return list(fs.read_optional(os.path.join(self.of(self.host), FOLDER, _REMOVED)).get("entries") or ())


def standing(folder: str, writer: str) -> Dict[str, Dict[str, Any]]:
    """The manifests of what ``writer`` wrote that still stand in ``folder``: entry -> manifest."""
    found = [one for one in manifest.read_all(folder) if one["host"] == writer]
    return {one["entry"]: one for one in found if stands(folder, one)}


def stands(folder: str, found: Dict[str, Any]) -> bool:
    """Whether every file that a manifest names is there, as it was when it was hashed: under its own name, or pinned
    where the name has another version by now. A file that was added may be cut, and a script would read it: such an
    entry was hashed too early."""
    files = files_in(folder, found["entry"])
    if manifest.fits(found, files):
        return True
    known = {path: stamp for path, stamp in files.items() if path in found["files"]}
    return bool(files) and not manifest.fits(found, known) and pinned(folder, found) is not None


def inside(entry: str, path: str) -> List[str]:
    """The parts of a file's path within a folder of checkpoints.

    Raises:
        WorkerError: bad_request, it leads out of the folder, or into what is not the job's.
    """
    parts = [*str(entry).split("/"), *(str(path).split("/") if path else ())]
    if any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > MOST_NAME_BYTES for part in parts):
        raise WorkerError(BAD_REQUEST, "%r is not a file of a checkpoint" % ("/".join(parts),))
    if parts[0].startswith("."):
        raise WorkerError(BAD_REQUEST, "%r is not a checkpoint" % (entry,))
    return parts


def open_below(folder: str, parts: List[str]) -> int:
    """A descriptor to read the regular file ``parts`` below ``folder``. Raises OSError, for a symbolic link too."""
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
