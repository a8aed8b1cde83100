"""The folder of the slots, which all accounts of this host write, and its locks.

Every lock is a flock. A file of another account is opened for reading only, which is enough to lock it. No file of
another account is trusted: its owner, as the kernel knows it, is the account of a claim.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from shlex import quote
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.slots.limits import (
    CLAIM_BYTES,
    CONFIGURATION_BYTES,
    DECISION_PAUSE_S,
    DECISION_S,
    MOST_CLAIMS,
)
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BUSY, UNSAFE_PATH

CONFIGURATION = "/etc/ddpctl.conf"
FOLDER = "/var/tmp/ddpctl-slots"
ENV_FOLDER = "DDPCTL_SLOTS_DIR"  # in place of the folder in the configuration: for tests, and where /etc is read-only
SLOTS_DIR, ACCOUNT_SLOTS = "slots_dir", "account_slots"  # the keys of the configuration
_DECISION, _CLAIM, _SLOT = "lock", "run.", "slot-"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# The errors of a disk or folder on which no slot can be claimed. A run then starts without a claim, and says so.
_UNUSABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.ENOENT}
_UNUSABLE |= {errno.EBADF, errno.EOPNOTSUPP, errno.EIO, errno.ENOTDIR}  # EBADF: NFS locks only files open for writing


class UnusableFolder(Exception):
    """No slot can be claimed here: the reason, with the folder."""


class SlotSettings(NamedTuple):
    """The administrator's settings. ``limit``: the most slots that an account may hold on this host."""

    folder: str = FOLDER
    limit: Optional[int] = None


class LockedClaim(NamedTuple):
    """A claim that is locked now. ``uid``: the owner of the file. ``value``: its content, which is not checked."""

    name: str
    uid: int
    value: Dict[str, Any]


def read_settings(path: str = CONFIGURATION) -> SlotSettings:
    """Read /etc/ddpctl.conf: lines ``KEY = VALUE``, and comments that begin with ``#``.

    Raises:
        WorkerError: UNSAFE_PATH, a key or value is wrong, or another account than root may write the file.
    """
    values: Dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        about = os.stat(path)
        if about.st_uid != 0 or about.st_mode & 0o022:
            hint = "sudo chown root {0}; sudo chmod 644 {0}".format(quote(path))
            raise WorkerError(UNSAFE_PATH, "%s is not root's alone" % path, hint)
        for number, line in enumerate(read_text(path, CONFIGURATION_BYTES).splitlines(), 1):
            text = line.partition("#")[0].strip()
            key, equals, value = (part.strip() for part in text.partition("="))
            if text and (not equals or not _is_valid(key, value)):
                hint = "known: %s = /FOLDER, %s = NUMBER" % (SLOTS_DIR, ACCOUNT_SLOTS)
                raise WorkerError(UNSAFE_PATH, "%s:%d: %r is not understood" % (path, number, text[:80]), hint)
            values[key] = value
    folder = os.environ.get(ENV_FOLDER) or values.get(SLOTS_DIR, FOLDER)
    return SlotSettings(folder, int(values[ACCOUNT_SLOTS]) if ACCOUNT_SLOTS in values else None)


def _is_valid(key: str, value: str) -> bool:
    if key == SLOTS_DIR:
        return os.path.isabs(value)
    return key == ACCOUNT_SLOTS and value.isdecimal() and len(value) < 7


def read_claims(path: str) -> List[LockedClaim]:
    """Return the claims that are locked now; [] without the folder, which a reader does not make.

    Raises:
        UnusableFolder, WorkerError: as for ``SlotsFolder``.
    """
    if not os.path.lexists(path):
        return []
    folder = SlotsFolder(path)
    try:
        folder.check_locks()
        return folder.claims()
    finally:
        folder.close()


class SlotsFolder:
    """The open folder. Close it with ``close``; locks that were taken stay.

    Raises:
        UnusableFolder: it cannot be made or written.
        WorkerError: UNSAFE_PATH, it is a symbolic link, no folder, or every account may remove the files of others.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with self._usable():
            _make_folder(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                kind = "a symbolic link" if os.path.islink(path) else "not a folder"
                raise WorkerError(UNSAFE_PATH, "%s is %s" % (path, kind), "sudo rm %s" % quote(path)) from None
            raise UnusableFolder("%s: %s" % (path, error.strerror)) from None
        mode = os.fstat(self._fd).st_mode
        if not mode & stat.S_ISVTX:
            self.close()
            text = "%s has no sticky bit: every account may remove the claims of others" % path
            raise WorkerError(UNSAFE_PATH, text, "sudo chmod 1777 %s" % quote(path))
        if not os.access(path, os.W_OK | os.X_OK):
            self.close()
            raise UnusableFolder("%s is not writable for this account; sudo chmod 1777 %s" % (path, quote(path)))

    def close(self) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def decision(self) -> Iterator[None]:
        """Hold the lock under which slots are chosen, so that two starts do not take a part of their slots each.

        Raises:
            UnusableFolder: the folder cannot be written.
            WorkerError: BUSY, another process keeps the lock.
        """
        until = time.monotonic() + DECISION_S
        with self._usable():
            fd = self._open(_DECISION)
        try:
            while not self._lock(fd):
                if time.monotonic() > until:
                    path = os.path.join(self.path, _DECISION)
                    hint = "find it: sudo fuser -v %s" % quote(path)
                    raise WorkerError(BUSY, "another process keeps the lock %s" % path, hint)
                time.sleep(DECISION_PAUSE_S)
            yield
        finally:
            os.close(fd)

    def check_locks(self) -> None:
        """Raise WorkerError: UNSAFE_PATH, if a lock is a symbolic link or no file: every start would be refused."""
        with self._usable():
            for name in os.listdir(self._fd):
                if name == _DECISION or name.startswith(_SLOT):
                    os.close(self._open(name))

    def take_slot(self, slot: str) -> Optional[int]:
        """Lock a slot; return the descriptor that holds the lock, or ``None`` if another process holds it."""
        with self._usable():
            fd = self._open(_SLOT + slot)
            if self._lock(fd):
                return fd
            os.close(fd)
            return None

    def write_claim(self, name: str, value: Dict[str, Any]) -> int:
        """Write a new claim; return the descriptor that keeps it locked. Readers never see it without its lock."""
        with self._usable():
            draft = ".%s.%s" % (name, os.urandom(6).hex())
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=self._fd)
            try:
                os.fchmod(fd, 0o644)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rewrite_claim(fd, value)
                os.rename(draft, _CLAIM + name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=self._fd)
                raise
            return fd

    def claim_path(self, name: str) -> str:
        return os.path.join(self.path, _CLAIM + name)

    def claims(self) -> List[LockedClaim]:
        """Return the claims that are locked now."""
        with self._usable():
            names = sorted(os.listdir(self._fd))
        found = (self._claim(name) for name in names if name.startswith(_CLAIM))
        return [claim for claim, held in found if claim is not None and held][:MOST_CLAIMS]

    def remove_old(self) -> None:
        """Remove this account's claims without a lock: their holders were killed. Call it within a decision."""
        for name in os.listdir(self._fd):
            if name.startswith((_CLAIM, "." + _CLAIM)):
                claim, held = self._claim(name)
                if claim is not None and not held and claim.uid == os.geteuid():
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=self._fd)

    def _claim(self, name: str) -> Tuple[Optional[LockedClaim], bool]:
        """Return a claim and whether it is locked; ``None``: it is gone, or no claim."""
        try:
            fd = os.open(name, _READ, dir_fd=self._fd)
        except OSError:
            return None, False
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                return None, False
            held = not self._lock(fd, fcntl.LOCK_SH)
            return LockedClaim(name[len(_CLAIM) :], about.st_uid, read_claim(fd)), held
        except OSError:
            return None, False
        finally:
            os.close(fd)

    def _open(self, name: str) -> int:
        """Open a file that is only locked; make it if it is missing."""
        while True:
            try:
                fd = os.open(name, _READ, dir_fd=self._fd)
                break
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    new = os.open(name, _READ | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=self._fd)
                    os.fchmod(new, 0o444)
                    os.close(new)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                path = os.path.join(self.path, name)
                raise WorkerError(UNSAFE_PATH, "%s is a symbolic link" % path, "sudo rm %s" % quote(path)) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            path = os.path.join(self.path, name)
            raise WorkerError(UNSAFE_PATH, "%s is no file" % path, "sudo rm -r %s" % quote(path))
        return fd

    @staticmethod
    def _lock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _UNUSABLE:
                raise UnusableFolder("%s: %s" % (self.path, error.strerror)) from None
            raise


def _make_folder(path: str) -> None:
    umask = os.umask(0)  # so that no account ever sees the folder without its mode
    try:
        os.mkdir(path, 0o1777)
    except FileExistsError:
        pass
    finally:
        os.umask(umask)


def rewrite_claim(fd: int, value: Dict[str, Any]) -> None:
    """Replace the content of a claim. A reader may see half of it, and then reads again.

    Raises:
        OSError: the disk is full; the claim may be damaged.
    """
    data = json.dumps(value).encode("ascii") + b"\n"
    if os.pwrite(fd, data, 0) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, len(data))


def read_claim(fd: int) -> Dict[str, Any]:
    for _ in range(3):
        try:
            value = json.loads(os.pread(fd, CLAIM_BYTES, 0))
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return {}
