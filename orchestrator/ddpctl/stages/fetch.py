"""Bring a run's logs, records and declared outputs from every node."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from ddpctl.errors import DdpctlError
from ddpctl.spec.event import Progress, StageEnded, StageStarted, Tell
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport
from ddpctl.transport.pipe import garbled

FETCH_TIMEOUT_S = 24 * 3600.0


@dataclass
class Fetched:
    """What came from one host: file names below its folder, bytes, and declared outputs that are not there."""

    files: list[str] = field(default_factory=list)
    bytes: int = 0
    missing: tuple[str, ...] = ()


def nowhere(outcome: FleetOutcome[Fetched]) -> tuple[str, ...]:
    """Declared outputs that no node has. A checkpoint that only rank 0 writes is on one node, and that is enough."""
    answers = list(outcome.results.values())
    return tuple(name for name in answers[0].missing if all(name in one.missing for one in answers)) if answers else ()


def fetch_run(run: str, hosts: Sequence[str], dest: Path, fleet: Fleet, tell: Tell) -> FleetOutcome[Fetched]:
    """Write every host's files to ``dest/<host>/``; each file appears under its name only when it is whole."""
    tell(StageStarted("fetch", len(hosts)))

    def fetch(transport: Transport) -> Fetched:
        host = transport.host
        receiver = Receiver(dest / host, lambda done: tell(Progress("fetch", done, None, host)))
        try:
            result = transport.call("fetch", {"run": run}, on_frame=receiver.frame, timeout=FETCH_TIMEOUT_S)
            receiver.end()
            receiver.fetched.missing = tuple(result["missing"])
        except OSError as error:  # of a file here: the transport has errors of its own
            what = f"{receiver.place} cannot be written on this machine: {error.strerror}"
            raise DdpctlError(what, hint="fix that, or name another folder", host=transport.host) from None
        finally:
            receiver.close()
        return receiver.fetched

    outcome = fleet.map(fetch, hosts)
    tell(StageEnded("fetch", outcome.ok))
    return outcome


class Receiver:
    """Turns the worker's frames (``file`` then ``chunk``s) into files.

    A node is not trusted with this machine's disk: it gets the bytes that it announced, below ``folder`` and through
    no symlink that lies there.
    """

    def __init__(self, folder: Path, tell: Callable[[int], None]) -> None:
        self.fetched = Fetched()
        self.place = folder  # what is being written, for a person
        self._folder = folder
        self._tell = tell
        self._file: IO[bytes] | None = None
        self._parent = -1  # its folder
        self._part = self._name = ""
        self._left = self._mode = 0

    def frame(self, frame: Frame) -> None:
        if "file" in frame.data:
            self.end()
            info = frame.data["file"]
            self._open(info["path"], info["size"], info.get("mode", 0o600))
        elif self._file is None or len(frame.raw) > self._left:
            raise garbled("more bytes of a file than were announced")
        else:
            self._file.write(frame.raw)
            self._left -= len(frame.raw)
            self.fetched.bytes += len(frame.raw)
        if self._left == 0:
            self._finish()

    def end(self) -> None:
        """No more of this file comes. Raises RemoteError when there should be."""
        if self._file is not None:
            raise garbled(f"{self._left} bytes less of {self.place.name} than were announced")

    def _open(self, name: str, size: int, mode: int) -> None:
        parts = PurePosixPath(name).parts
        self.place = self._folder.joinpath(*parts)
        self._parent = _folder_below(self._folder, parts[:-1])
        free = os.fstatvfs(self._parent)
        if size > free.f_bavail * free.f_frsize:
            raise OSError(errno.ENOSPC, f"{size} bytes are needed, {free.f_bavail * free.f_frsize} are free")
        self._name, self._part = parts[-1], f".{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._part, flags, 0o600, dir_fd=self._parent), "wb")
        self._left, self._mode = size, mode

    def _finish(self) -> None:
        assert self._file is not None
        os.fchmod(self._file.fileno(), self._mode & 0o700 | 0o600)
        self._file.close()
        os.rename(self._part, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._file = None
        self._let_go()
        self.fetched.files.append(str(self.place.relative_to(self._folder)))
        self._tell(len(self.fetched.files))

    def close(self) -> None:
        """Drop a file that did not come to its end."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written cannot be flushed
                self._file.close()
            self._file = None
            with suppress(OSError):
                os.unlink(self._part, dir_fd=self._parent)
        self._let_go()

    def _let_go(self) -> None:
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1


def _folder_below(root: Path, parts: Sequence[str]) -> int:
    """A descriptor of a folder below ``root``, made where it is missing; a symlink there is an OSError."""
    root.parent.mkdir(parents=True, exist_ok=True)
    found = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in (root.name, *parts):
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=found)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=found)
        finally:
            os.close(found)
        found = inner
    return found
