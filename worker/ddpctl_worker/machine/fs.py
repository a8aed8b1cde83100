"""Files and folders below base_dir: checks of their owner, durable writes, and locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from shlex import quote
from typing import Any, ContextManager, Dict, Iterator, Mapping, Optional

from ddpctl_worker.machine.limits import LOCK_PAUSE_S
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BUSY, CORRUPT, INTERRUPTED, UNSAFE_PATH

ENVS = ".gc.lock"  # in the folder of environments: shared by all installs, exclusive for a gc
FOREVER = float("inf")


def own_folder(base_dir: str, *names: str) -> str:
    """Return ``base_dir/names...``; make missing levels with mode 0700.

    Raises:
        WorkerError: UNSAFE_PATH, base_dir or a level below is a symlink, no folder, or belongs to another user.
    """
    path = os.path.expanduser(base_dir)
    os.makedirs(path, 0o700, exist_ok=True)
    check_own(path)  # boot.py, which runs first on a node, checks the same
    for name in names:
        path = private_dir(os.path.join(path, name))
    return path


def private_dir(path: str) -> str:
    """Make the folder ``path``, or check that it belongs to this user and that no other user can write to it.

    Raises:
        WorkerError: UNSAFE_PATH, it is a symlink, another user's, or writable by other users.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_own(path)
    return path


def check_own(path: str) -> None:
    """Raise WorkerError for a folder that is a symlink, another user's, or writable by other users."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise WorkerError(UNSAFE_PATH, "%s is a symbolic link" % path, "remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise WorkerError(UNSAFE_PATH, "%s is not a folder" % path, "remove it")
    if found.st_uid != os.geteuid():
        raise WorkerError(UNSAFE_PATH, "%s belongs to uid %d" % (path, found.st_uid), "choose another base_dir")
    if found.st_mode & 0o022:
        raise WorkerError(UNSAFE_PATH, "%s is writable by others" % path, "chmod go-w %s" % quote(path))


def read_text(path: str, limit: int = 1 << 20) -> str:
    """Return at most ``limit`` bytes of a text file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def read_number(path: str, base: int = 10) -> Optional[int]:
    """Return the integer in a small file; ``None`` if it cannot be read or holds anything else."""
    try:
        return int(read_text(path, limit=64), base)
    except ValueError:
        return None


def discard(path: str) -> None:
    """Remove a file if that is possible; ignore errors."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def is_gone(path: str) -> bool:
    """Return whether there is no such file or folder. Any other error of the disk is no proof: it may pass."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


def is_folder(path: str) -> bool:
    """Return whether ``path`` is a folder and no symlink."""
    return os.path.isdir(path) and not os.path.islink(path)


def remove_tree(path: str) -> None:
    """Remove a file or a whole folder, which may be gone already. A symlink is removed, never followed.

    Raises:
        OSError: a part stays.
    """
    while os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            if is_folder(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)


def sync_folder(path: str) -> None:
    """Make renames inside ``path`` durable: they survive a power cut from now on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network filesystems cannot sync a folder
            raise
    finally:
        os.close(fd)


def sync_filesystem(path: str) -> None:
    """Make every file of the file system that holds the folder ``path`` durable: far cheaper than a sync of each."""
    import ctypes

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "syncfs") or libc.syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)


def write_json(path: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace ``path`` atomically. With ``durable`` the new content survives a power cut after the return."""
    draft = _write_draft(path, value, durable)
    try:
        os.rename(draft, path)
    except OSError:
        discard(draft)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def write_once(path: str, value: Dict[str, Any], *, durable: bool = True) -> bool:
    """Create ``path`` with ``value``; return False if it exists already."""
    first = False
    if not _is_published(path):
        draft = _write_draft(path, value, durable)
        try:
            first = publish_once(draft, path, durable=durable)
        finally:
            discard(draft)
    if durable:
        sync_folder(os.path.dirname(path))
    return first


def publish_once(draft: str, path: str, *, durable: bool = True) -> bool:
    """Give the file ``draft`` the name ``path``; return False if ``path`` exists already. ``draft`` may stay."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        return _publish_by_claim(draft, path, durable)
    return True


def _publish_by_claim(draft: str, path: str, durable: bool) -> bool:
    """Publish a file on a file system without hard links, which may have no locks either.

    The claim is a folder beside ``path``. A writer fills a folder of its own with the file and a mark, then renames it:
    - No claim: the next rename takes it. A rename never replaces a folder with content, so the first claim stays.
    - The claim has its file: only this file can become ``path``. Any writer moves it there (``_is_published``).
    - ``path`` exists: published for ever. The mark stays in the claim, so a writer that hung cannot take it again.
    - The claim has neither its file nor ``path``: a power cut has destroyed it, so the next writer removes it.
    """
    if _is_published(path):
        return False
    claim, mine = path + ".claim", draft + ".claim"
    os.mkdir(mine, 0o700)
    try:
        mark = os.path.join(mine, os.path.basename(draft))  # no other claim has a mark of this name
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
        os.rename(draft, os.path.join(mine, "file"))
        if durable:
            sync_folder(mine)
        _remove_destroyed(claim, path)
        first = True
        try:
            os.rename(mine, claim)
        except OSError:
            if not os.path.isdir(claim):
                raise
            first = False
        if not _is_published(path):
            raise FileNotFoundError(errno.ENOENT, "the folder was removed", path)
        return first
    finally:
        with contextlib.suppress(OSError):  # the caller's again, if it was not published
            os.rename(os.path.join(mine, "file"), draft)
        shutil.rmtree(mine, ignore_errors=True)


def _is_published(path: str) -> bool:
    """Return whether ``path`` exists. First finish the work of a writer that was killed: this needs no room."""
    if _exists(path):
        return True
    try:
        os.rename(os.path.join(path + ".claim", "file"), path)
    except (FileNotFoundError, NotADirectoryError):
        return _exists(path)  # another writer may just have moved the file
    return True


def _remove_destroyed(claim: str, path: str) -> None:
    """Remove a claim without a file and without ``path``. Another writer may do the same, and take the claim anew."""
    try:
        names = os.listdir(claim)
    except FileNotFoundError:
        return
    if "file" in names or _exists(path):  # in this order: a file that has left the claim is ``path``
        return
    for name in names:
        discard(os.path.join(claim, name))
    with contextlib.suppress(OSError):  # a new claim has content
        os.rmdir(claim)


def _exists(path: str) -> bool:
    """Return whether ``path`` exists.

    Raises:
        OSError: the disk cannot tell now.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _write_draft(path: str, value: Mapping[str, Any], durable: bool) -> str:
    draft = "%s.%d.%s" % (path, os.getpid(), os.urandom(4).hex())
    fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(value, indent=1).encode("ascii") + b"\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError:
        discard(draft)
        raise
    return draft


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the record at ``path``; ``None`` if there is no file.

    Raises:
        WorkerError: CORRUPT, it is no JSON object; UNSAFE_PATH, it is a symlink or another user's.
        OSError: it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WorkerError(UNSAFE_PATH, "%s is a symbolic link" % path, "remove it") from None
        raise
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (os.geteuid(), 0) or not stat.S_ISREG(found.st_mode):
            raise WorkerError(UNSAFE_PATH, "%s belongs to another user (uid %d)" % (path, found.st_uid))
        try:
            value = json.loads(file.read())
        except (ValueError, RecursionError):
            raise WorkerError(CORRUPT, "%s is not readable as JSON" % path, "remove the run's folder") from None
    if not isinstance(value, dict):
        raise WorkerError(CORRUPT, "%s holds no JSON object" % path, "remove the run's folder")
    return value


def read_optional(path: str) -> Dict[str, Any]:
    """Return the record at ``path``; ``{}`` without a readable record: after a power cut the file may be empty."""
    try:
        return read_json(path) or {}
    except (WorkerError, OSError):
        return {}


def lock_shared(path: str, channel: Channel) -> ContextManager[None]:
    """Hold a shared lock on the file ``path``, which is made if it is missing.

    Raises:
        WorkerError: INTERRUPTED, the controller disconnected.
    """
    return _locked(path, fcntl.LOCK_SH, channel, FOREVER)


def lock_exclusive(path: str, channel: Channel, patience: float = FOREVER) -> ContextManager[None]:
    """Hold an exclusive lock on the file ``path``, which is made if it is missing; wait up to ``patience`` seconds.

    Raises:
        WorkerError: INTERRUPTED, the controller disconnected; BUSY, another process still holds the lock.
    """
    return _locked(path, fcntl.LOCK_EX, channel, patience)


@contextlib.contextmanager
def _locked(path: str, how: int, channel: Channel, patience: float) -> Iterator[None]:
    deadline = time.monotonic() + patience
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while not _taken(fd, how):
            if time.monotonic() >= deadline:
                raise WorkerError(BUSY, "an environment is being installed here", "try again when it is done")
            if channel.closed.wait(LOCK_PAUSE_S):
                raise WorkerError(INTERRUPTED, "the controller disconnected")
        yield
    finally:
        os.close(fd)


def _taken(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
