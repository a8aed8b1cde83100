"""Durable records: written aside, synced, renamed; the exit record only once; the heartbeat in place."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import time
import zlib
from datetime import datetime, timezone
from typing import Any, Callable, Dict, NamedTuple, Optional

from ddpctl_worker.contract import CORRUPT, UNSAFE_PATH
from ddpctl_worker.link import WorkerError

RESERVE_BYTES = 128 << 10
_PULSE = struct.Struct("<ddQIII")
_OLD_PULSE = struct.Struct("<ddQII")  # without the number of ranks
_to: Optional[Callable[[bytes], object]] = None


def now_iso() -> str:
    return iso(time.time())


def note(text: str) -> None:
    """A line for supervisor.log. Never raises: the disk it would go to may be full."""
    line = ("%s %s\n" % (now_iso(), text)).encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        if _to is None:
            os.write(2, line)
        else:
            _to(line)


def send_notes(to: Optional[Callable[[bytes], object]]) -> None:
    """Hand every note of this process to ``to`` (None: write it at once): a supervisor waits for no disk."""
    global _to
    _to = to


def iso(seconds: float) -> str:
    """A wall-clock time as ISO 8601 in UTC, milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def boottime() -> float:
    """Seconds since boot: goes on during suspend and never jumps when somebody sets the clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_json(path: str, value: Dict[str, Any], *, durable: bool = True) -> None:
    """Replace ``path`` atomically; once this returns (and ``durable``) it survives a power loss."""
    aside = _write_aside(path, value, durable)
    try:
        os.rename(aside, path)
    except OSError:
        discard(aside)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def write_once(path: str, value: Dict[str, Any], *, durable: bool = True) -> bool:
    """Create ``path`` with ``value`` unless it is there already; False when somebody else was first."""
    aside = _write_aside(path, value, durable)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # A filesystem without hard links: the claim is an empty file, the rename fills it.
        try:
            os.close(os.open(path + ".claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        os.rename(aside, path)
        sync_folder(os.path.dirname(path))
        return True
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
    if durable:
        sync_folder(os.path.dirname(path))
    return True


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The record at ``path``; None when there is none.

    Raises:
        WorkerError: CORRUPT or UNSAFE_PATH.
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
            raise WorkerError(UNSAFE_PATH, "%s is not a file of ours (uid %d)" % (path, found.st_uid))
        try:
            value = json.loads(file.read())
        except (ValueError, RecursionError):
            raise WorkerError(CORRUPT, "%s is not readable as JSON" % path, "remove the run's folder") from None
    if not isinstance(value, dict):
        raise WorkerError(CORRUPT, "%s holds no JSON object" % path, "remove the run's folder")
    return value


def read_optional(path: str) -> Dict[str, Any]:
    """The record at ``path``; nothing where there is none or it cannot be read: after a power cut it may be empty."""
    try:
        return read_json(path) or {}
    except (WorkerError, OSError):
        return {}


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network filesystems cannot sync a folder
            raise
    finally:
        os.close(fd)


def make_reserve(path: str, size: int = RESERVE_BYTES) -> None:
    """Set room aside for a record, where the filesystem can do that.

    Raises:
        OSError: the disk is full: what is started there could not even tell its end.
    """
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(fd)


def release_reserve(path: str) -> None:
    """Give the room back: nobody needs it any more."""
    discard(path)


def discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def write_reserved(reserve: str, path: str, value: Dict[str, Any], *, once: bool = False) -> bool:
    """Turn a reserve into the record ``path``, in the very room that was set aside: a full disk cannot prevent it, and
    nobody can take the room in between. False when there is no reserve, or (``once``) a record.

    Raises:
        OSError: the disk takes nothing at all; the reserve is as it was.
    """
    mine = "%s.%d.%s" % (reserve, os.getpid(), os.urandom(4).hex())
    try:
        os.rename(reserve, mine)  # the second one finds none
    except FileNotFoundError:
        return False
    try:
        _overwrite(mine, value)
        if once:
            os.link(mine, path)
        else:
            os.rename(mine, path)
    except FileExistsError:
        return False
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(mine, reserve)
        raise
    finally:
        discard(mine)
    sync_folder(os.path.dirname(path))
    return True


def _overwrite(path: str, value: Dict[str, Any]) -> None:
    body = json.dumps(value, indent=1).encode("ascii") + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        done = 0
        while done < len(body):
            done += os.pwrite(fd, body[done:], done)
        os.ftruncate(fd, len(body))
        os.fsync(fd)
    finally:
        os.close(fd)


class Pulse(NamedTuple):
    """One heartbeat. Times are seconds since boot, so their age is only known on the same boot."""

    at: float
    last_output: float  # 0.0: no output yet
    dropped: int  # lines
    attempt: int
    ranks: int = 0  # that live


class Heartbeat:
    """The heartbeat file of a run, rewritten in place: it costs no room, so it beats on a full disk too."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def beat(self, pulse: Pulse) -> None:
        body = _PULSE.pack(pulse.at, pulse.last_output, pulse.dropped, pulse.attempt, pulse.ranks, 0)[:-4]
        with contextlib.suppress(OSError):  # a missed beat shows as its age
            os.pwrite(self._fd, body + struct.pack("<I", zlib.crc32(body)), 0)

    def close(self) -> None:
        os.close(self._fd)


def read_heartbeat(path: str) -> Optional[Pulse]:
    """The last heartbeat; None when there is none or it was caught half written."""
    try:
        with open(path, "rb") as file:
            blob = file.read(_PULSE.size)
    except OSError:
        return None
    form = _PULSE if len(blob) == _PULSE.size else _OLD_PULSE
    if len(blob) != form.size or zlib.crc32(blob[:-4]) != struct.unpack("<I", blob[-4:])[0]:
        return None
    return Pulse(*form.unpack(blob)[:-1])


def _write_aside(path: str, value: Dict[str, Any], durable: bool) -> str:
    aside = "%s.%d.%s" % (path, os.getpid(), os.urandom(4).hex())
    fd = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(value, indent=1).encode("ascii") + b"\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError:
        discard(aside)
        raise
    return aside
