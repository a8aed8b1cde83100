"""Content-addressed files of a node: ``<base_dir>/store/<sha256>``.

A blob gets its name once all of it is on disk and its SHA-256 is verified. Until then it is a part,
``<sha256>.<random>.part``, locked by its writer. A part whose writer is gone is continued where it ended. Symbolic
links below the store are not followed, and files of other users are not used.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import re
import stat
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ddpctl_worker.machine import fs
from ddpctl_worker.store.limits import READ_BYTES, RESERVE_BYTES, SYNC_BYTES
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT, NO_SPACE, UNSAFE_PATH

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_MAKE_ROOM = "make room (ddpctl gc removes what no run uses) or set another base_dir for this host"


# --- where things are ------------------------------------------------------------------------------------------------
def blob_path(base_dir: str, sha256: str) -> str:
    """Return the path of a blob, present or not. ``base_dir`` may begin with ``~``.

    Raises:
        WorkerError: ``sha256`` is not 64 lower-case hex digits.
    """
    if not isinstance(sha256, str) or not _SHA256.match(sha256):
        raise WorkerError(BAD_REQUEST, "not a SHA-256: %r" % (sha256,))
    return os.path.join(os.path.expanduser(base_dir), "store", sha256)


def open_blob(base_dir: str, sha256: str) -> Optional[int]:
    """Return a descriptor to read a complete blob; ``None`` if it is missing.

    Raises:
        WorkerError: unsafe_path, if the file is a symbolic link, not a regular file, or another user's.
    """
    path = blob_path(base_dir, sha256)
    try:
        fs.check_own(os.path.dirname(path))
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WorkerError(UNSAFE_PATH, "%s is a symbolic link" % path, "remove it") from None
        raise WorkerError(UNSAFE_PATH, "%s cannot be read: %s" % (path, error.strerror), "remove it") from None
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise WorkerError(UNSAFE_PATH, "%s belongs to another user (uid %d)" % (path, info.st_uid), "remove it")


def blob_size(base_dir: str, sha256: str) -> Optional[int]:
    """Return the bytes of a complete blob; ``None`` if it is missing. Raises WorkerError as ``open_blob``."""
    fd = open_blob(base_dir, sha256)
    if fd is None:
        return None
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def digest(fd: int) -> str:
    """Return the SHA-256 of an open file as hex."""
    sha = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    for piece in iter(lambda: os.read(fd, READ_BYTES), b""):
        sha.update(piece)
    return sha.hexdigest()


def discard_if_corrupt(base_dir: str, sha256: str) -> bool:
    """Read a blob again; remove it and return True if its content does not fit its name."""
    fd = open_blob(base_dir, sha256)
    if fd is None:
        return False
    try:
        if digest(fd) == sha256:
            return False
    finally:
        os.close(fd)
    os.unlink(blob_path(base_dir, sha256))
    return True


# --- writing ---------------------------------------------------------------------------------------------------------
class Part:
    """An unfinished blob: append with ``write``, then ``commit``, ``keep`` (for a later resume) or ``drop``.

    ``done``: bytes that are there, bytes of an earlier transfer that was cut short included. The file is locked while
    this object lives, so that no second writer continues it.
    """

    def __init__(
        self,
        base_dir: str,
        sha256: str,
        size: int,
        *,
        fresh: bool = False,
        folder: Sequence[str] = ("store",),
        read_on: Optional[Callable[[int], None]] = None,
    ) -> None:
        """Continue an abandoned part unless ``fresh``; check the free space for the missing bytes.

        ``folder``: the part's folder below ``base_dir``. ``read_on`` is called with the number of bytes of an earlier
        transfer that were read in each step.

        Raises:
            WorkerError: unsafe_path or no_space.
        """
        self.sha256, self.size = sha256, size
        self._folder = fs.own_folder(base_dir, *folder)
        self._final = os.path.join(self._folder, os.path.basename(blob_path(base_dir, sha256)))
        self._read_on = read_on
        self._unsynced = 0
        self._sha = hashlib.sha256()
        self.done = 0
        adopted = None if fresh else _adopt(self._folder, sha256, size)
        self.path, self._fd = adopted or _create(self._folder, sha256)
        try:
            if adopted:
                self._hash_prefix()
            require_space(self._folder, size - self.done)
        except BaseException:
            self.keep()
            raise

    def _hash_prefix(self) -> None:
        for piece in iter(lambda: os.read(self._fd, READ_BYTES), b""):
            self._sha.update(piece)
            self.done += len(piece)
            if self._read_on is not None:
                self._read_on(len(piece))

    def write(self, data: bytes) -> None:
        """Append. Raises WorkerError no_space or corrupt; the part is dropped then, since it would fill the disk."""
        if self.done + len(data) > self.size:
            self.drop()
            raise WorkerError(CORRUPT, "more bytes came for %s than the announced %d" % (self.sha256, self.size))
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            self._unsynced += len(data)
            if self._unsynced >= SYNC_BYTES:
                os.fdatasync(self._fd)
                self._unsynced = 0
        except OSError as error:
            self.drop()
            raise _no_space(error, self._folder) from error
        self._sha.update(data)
        self.done += len(data)

    def rewind(self, offset: int) -> None:
        """Remove the bytes after ``offset``, where the sender starts. Raises WorkerError corrupt if bytes before it are
        missing."""
        if offset > self.done:
            raise WorkerError(CORRUPT, "only %d bytes of %s are here, not %d" % (self.done, self.sha256, offset))
        if offset == self.done:
            return
        os.ftruncate(self._fd, offset)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._sha, self.done = hashlib.sha256(), 0
        self._hash_prefix()

    def commit(self) -> None:
        """Verify, make durable, give the final name.

        Raises:
            WorkerError: corrupt, if bytes are missing or the hash differs; no_space. The part is dropped then.
        """
        if self.done != self.size or self._sha.hexdigest() != self.sha256:
            found, done = self._sha.hexdigest(), self.done
            self.drop()
            raise WorkerError(
                CORRUPT,
                "%d of %d bytes came with SHA-256 %s instead of %s" % (done, self.size, found, self.sha256),
                "run the same command again",
            )
        try:
            os.fsync(self._fd)
            os.rename(self.path, self._final)
        except OSError as error:
            self.drop()
            raise _no_space(error, self._folder) from error
        os.close(self._fd)
        self._fd = -1
        fs.sync_folder(self._folder)

    def read_fd(self) -> int:
        """Return another descriptor that reads the file from its start, while it still grows."""
        return os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def keep(self) -> None:
        """Unlock the part for a later transfer. Does nothing after ``commit``."""
        if self._fd >= 0 and not self.done:
            self.drop()
        self._close()

    def drop(self) -> None:
        """Remove the part."""
        if self._fd >= 0:
            os.unlink(self.path)
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _create(folder: str, sha256: str) -> Tuple[str, int]:
    path = os.path.join(folder, "%s.%s.part" % (sha256, os.urandom(6).hex()))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return path, fd


def _adopt(folder: str, sha256: str, size: int) -> Optional[Tuple[str, int]]:
    """Return and lock the longest part without a writer."""
    for path in unfinished(folder, sha256):
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        if _lock(fd, path, size):
            return path, fd
        os.close(fd)
    return None


def _lock(fd: int, path: str, size: int) -> bool:
    """Lock the part. Its writer may have renamed it just before, so the name must still lead to the same file."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_size > size:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        now = os.lstat(path)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (info.st_dev, info.st_ino) and os.fstat(fd).st_size <= size


def unfinished(folder: str, sha256: str) -> List[str]:
    """Return the paths of a blob's parts, longest first."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), sha256 + ".*.part")):
        try:
            found.append((os.lstat(path).st_size, path))
        except OSError:
            continue
    return [path for _, path in sorted(found, reverse=True)]


def require_space(folder: str, size: int) -> None:
    """Raise WorkerError no_space if ``size`` bytes and the reserve do not fit below ``folder``."""
    info = os.statvfs(folder)
    free = info.f_bavail * info.f_frsize
    if free < size + RESERVE_BYTES:
        raise WorkerError(
            NO_SPACE,
            "%.1f MB are needed below %s and %.1f MB are free" % ((size + RESERVE_BYTES) / 1e6, folder, free / 1e6),
            _MAKE_ROOM,
        )


def _no_space(error: OSError, folder: str) -> WorkerError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorkerError(NO_SPACE, "the disk below %s is full" % folder, _MAKE_ROOM)
    return WorkerError(CORRUPT, "cannot write below %s: %s" % (folder, error.strerror))


# --- verbs -----------------------------------------------------------------------------------------------------------
def store_get(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"hash"}`` -> the blob in frames ``{"chunk": true}``, then ``{}``.

    Raises:
        WorkerError: CORRUPT, the store has no such blob.
    """
    fd = open_blob(request["base_dir"], request["hash"])
    if fd is None:
        raise WorkerError(CORRUPT, "%s is not in the store" % request["hash"])
    try:
        for piece in iter(lambda: os.read(fd, READ_BYTES), b""):
            channel.send({"chunk": True}, piece)
    finally:
        os.close(fd)
    return {}


def store_put(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"hash", "size", "offset": 0}`` and ``size - offset`` bytes of body -> ``{"stored": bool, "bytes": received}``.

    ``stored`` is False if the blob was there already; the body is not read then. An ``offset`` continues a transfer
    that was cut short (``store_has`` answers with the bytes of the part).
    """
    base_dir, sha256, size = request["base_dir"], request["hash"], int(request["size"])
    offset = int(request.get("offset", 0))
    if blob_size(base_dir, sha256) is not None:
        return {"stored": False, "bytes": 0}
    part = Part(base_dir, sha256, size, fresh=not offset)
    try:
        part.rewind(offset)
        for piece in channel.body(size - offset):
            part.write(piece)
        part.commit()
    finally:
        part.keep()
    return {"stored": True, "bytes": size - offset}
