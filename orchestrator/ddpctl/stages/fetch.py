"""Copies a run's logs, records and declared outputs from every node, once or for as long as the run is live.

A file appears under its name only when it is whole. A file that grows on the node grows here in place, because
TensorBoard keeps its event files open and would never see a replacement.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ddpctl.errors import DdpctlError, HostsFailed, RemoteError
from ddpctl.spec.event import Event, Note, Progress, StageEnded, StageStarted, Tell
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.limits import (
    FETCH_CLEANUP_S,
    FETCH_FILES,
    FETCH_KNOWN_FILES,
    FETCH_S,
    FETCH_SPARE_BYTES,
    FETCH_SPARE_FILES,
    FETCH_WATCH_S,
    FILE_PROGRESS_BYTES,
)
from ddpctl.stages.status import not_listed, read_run
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport
from ddpctl.transport.pipe import garbled
from ddpctl.transport.progress_clock import ProgressClock


@dataclass(frozen=True)
class KeptFile:
    """The part of a file that is here already and need not be sent again."""

    size: int
    mtime_ns: int
    digest: Any  # of hashlib; the next bytes continue it


class KeptFiles:
    """The files of a host in ``folder``, kept from call to call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, KeptFile] = {}

    def request(self) -> dict[str, list[int | str]]:
        """Return the size, time and hash of each file that is still here, as the node takes them."""
        here = {name: file for name, file in self.files.items() if self._is_here(name, file)}
        newest = sorted(here.items(), key=lambda item: item[1].mtime_ns)[-FETCH_KNOWN_FILES:]
        return {name: [file.size, file.mtime_ns, file.digest.hexdigest()] for name, file in newest}

    def _is_here(self, name: str, known: KeptFile) -> bool:
        try:
            found = (self.folder / name).lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size >= known.size


@dataclass
class Fetched:
    """The result of a host: file names below its folder, bytes, and declared outputs that the host does not have."""

    files: list[str] = field(default_factory=list)
    bytes: int = 0
    missing: tuple[str, ...] = ()


def missing_outputs(outcome: FleetOutcome[Fetched]) -> tuple[str, ...]:
    """Return the declared outputs that no node has. A single node is enough for an output that only rank 0 writes."""
    answers = list(outcome.results.values())
    return (
        tuple(name for name in answers[0].missing if all(name in answer.missing for answer in answers))
        if answers
        else ()
    )


def fetch_run(
    run: str,
    hosts: Sequence[str],
    dest: Path,
    fleet: Fleet,
    tell: Tell,
    *,
    ranks: Sequence[int] | None = None,
    outputs: Sequence[str] | None = None,
    outputs_only: bool = False,
    kept: dict[str, KeptFiles] | None = None,
) -> FleetOutcome[Fetched]:
    """Write every host's files to ``dest/<host>/``; each file appears under its name only when it is whole.

    ``ranks``: only the logs of these ranks. ``outputs``: paths or patterns below the working folder; ``None``: the
    job's. ``kept``: the results of earlier calls by host; only new bytes travel then.
    """
    tell(StageStarted("fetch", len(hosts)))
    wanted = {"ranks": None if ranks is None else list(ranks), "outputs": None if outputs is None else list(outputs)}
    request = {"run": run, "outputs_only": outputs_only, **wanted}
    receivers: list[Receiver] = []

    def fetch(transport: Transport) -> Fetched:
        host = transport.host
        earlier = kept.setdefault(host, KeptFiles(dest / host)) if kept is not None else None
        receiver = Receiver(dest / host, lambda done: tell(Progress("fetch", done, None, host)), earlier)
        receivers.append(receiver)
        have = earlier.request() if earlier is not None else {}
        try:
            result = transport.call(
                "fetch", {**request, "have": have}, on_frame=receiver.frame, timeout=FETCH_S, clock=receiver.clock
            )
            receiver.end()
            receiver.fetched.missing = tuple(result["missing"])
        except OSError as error:  # from a file on this machine: the transport raises other errors
            what = f"{receiver.place} cannot be written on this machine: {error.strerror}"
            raise DdpctlError(what, hint="fix that, or name another folder", host=transport.host) from None
        finally:
            receiver.close()
        return receiver.fetched

    try:
        outcome = fleet.map(fetch, [host for host in hosts if host in fleet.hosts])
    except KeyboardInterrupt:
        deadline = time.monotonic() + FETCH_CLEANUP_S
        for receiver in receivers:
            receiver.closed.wait(max(0.0, deadline - time.monotonic()))
        raise
    gone = {host: not_listed(host) for host in hosts if host not in fleet.hosts}
    outcome = FleetOutcome(outcome.results, {**outcome.errors, **gone})
    tell(StageEnded("fetch", outcome.ok))
    return outcome


def watch(
    run: RunStatus,
    hosts: Sequence[str],
    dest: Path,
    fleet: Fleet,
    tell: Tell,
    kept: dict[str, KeptFiles],
    outputs: Sequence[str] | None = None,
    pause: float = FETCH_WATCH_S,
) -> None:
    """Copy the changed outputs until the run is over. A host that does not answer is asked again."""
    silent: set[str] = set()
    hosts = [host for host in hosts if host in fleet.hosts]
    while not run.verdict.terminal:
        outcome = fetch_run(run.run, hosts, dest, fleet, _nothing, outputs=outputs, outputs_only=True, kept=kept)
        _tell_news(outcome, tell, silent)
        time.sleep(pause)
        with suppress(HostsFailed):  # no host answers: the next look tries again
            run = read_run(fleet, run)


def _nothing(event: Event) -> None:
    """Drop the events of a single look: ``watch`` reports only new files."""


def _tell_news(outcome: FleetOutcome[Fetched], tell: Tell, silent: set[str]) -> None:
    came = {host: fetched for host, fetched in outcome.results.items() if fetched.files}
    if came:
        files = plural(sum(len(fetched.files) for fetched in came.values()), "file")
        tell(Note(f"{files}, {sum(fetched.bytes for fetched in came.values())} bytes from {fold_names(came)}"))
    for host, error in outcome.errors.items():
        if host not in silent:
            tell(Note(f"{error}; trying again", "warning", host))
    silent.clear()
    silent.update(outcome.errors)


class Receiver:
    """Turns the worker's frames (a ``file``, then its chunks) into files.

    A node is not trusted with this machine's disk. It may write only the bytes that it announced, only below
    ``folder``, only ``names`` if they are given, and never through a symlink.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[int], None],
        kept: KeptFiles | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self.fetched = Fetched()
        self.clock = ProgressClock()  # of the call that brings the frames
        self.closed = threading.Event()
        self._kept = kept
        self._names = names
        self.place = folder  # the file being written, for messages
        self._folder = folder
        self._tell = tell
        self._file: IO[bytes] | None = None
        self._parent = -1  # descriptor of the file's folder
        self._part = self._name = ""
        self._left = self._mode = 0
        self._known = KeptFile(0, 0, hashlib.sha256())  # the state of the file once it is whole

    def frame(self, frame: Frame) -> None:
        if "file" in frame.data:
            self.end()
            self.clock.moved(FILE_PROGRESS_BYTES)
            if len(self.fetched.files if self._kept is None else self._kept.files) >= FETCH_FILES:
                raise RemoteError(f"it sends more than {FETCH_FILES} files", hint="name fewer files in `outputs:`")
            info = frame.data["file"]
            if self._names is not None and info["path"] not in self._names:
                raise garbled("a file that was not asked for")
            self._open(info["path"], info["size"], info.get("offset", 0))
            self._mode = info.get("mode", 0o600)
            self._known = KeptFile(info["size"], info.get("mtime_ns", 0), self._known.digest)
        elif self._file is None or len(frame.raw) > self._left:
            raise garbled("more bytes of a file than were announced")
        else:
            self._file.write(frame.raw)
            if self._kept is not None:
                self._known.digest.update(frame.raw)
            self._left -= len(frame.raw)
            self.fetched.bytes += len(frame.raw)
        if self._left == 0:
            self._finish()

    def end(self) -> None:
        """Note the end of the frames. Raises RemoteError: the current file is not whole."""
        if self._file is not None:
            raise garbled(f"{self._left} bytes less of {self.place.name} than were announced")

    def _open(self, name: str, size: int, offset: int) -> None:
        before = self._kept.files.get(name) if self._kept is not None and offset else None
        if offset and (before is None or before.size != offset or size < offset):
            raise garbled("a file continues where it did not end")
        parts = PurePosixPath(name).parts
        self.place = self._folder.joinpath(*parts)
        self._parent = _folder_below(self._folder, parts[:-1])
        require_room(os.fstatvfs(self._parent), size - offset)
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._name, self._part, self._left = parts[-1], "", size - offset
        if before is not None:  # the file grows in place
            self._file = os.fdopen(os.open(self._name, flags | os.O_NONBLOCK, dir_fd=self._parent), "wb")
            self._file.seek(offset)
            self._known = KeptFile(0, 0, before.digest.copy())
            return
        self._part = f".{secrets.token_hex(8)}.part"
        flags |= os.O_CREAT | os.O_EXCL
        self._file = os.fdopen(os.open(self._part, flags, 0o600, dir_fd=self._parent), "wb")
        self._known = KeptFile(0, 0, hashlib.sha256())

    def _finish(self) -> None:
        assert self._file is not None
        os.fchmod(self._file.fileno(), self._mode & 0o700 | 0o600)
        if not self._part:
            self._file.truncate()  # bytes that an interrupted call left at the end
        self._file.close()
        if self._part:
            os.rename(self._part, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._file = None
        self._let_go()
        name = str(self.place.relative_to(self._folder))
        self.fetched.files.append(name)
        if self._kept is not None:
            self._kept.files[name] = self._known
        self._tell(len(self.fetched.files))

    def close(self) -> None:
        """Remove a file that is not whole."""
        if self._file is not None:
            with suppress(OSError):  # bytes that could not be written cannot be flushed either
                self._file.close()
            self._file = None
            if self._part:
                with suppress(OSError):
                    os.unlink(self._part, dir_fd=self._parent)
        self._let_go()
        self.closed.set()

    def _let_go(self) -> None:
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1


def require_room(disk: os.statvfs_result, size: int) -> None:
    """Refuse a file of ``size`` bytes that would fill the disk: a node decides how many files it sends.

    Raises:
        OSError: too few bytes or files would stay free.
    """
    spare = min(disk.f_blocks * disk.f_frsize // 20, FETCH_SPARE_BYTES)
    free = disk.f_bavail * disk.f_frsize
    if size > free - spare:
        raise OSError(errno.ENOSPC, f"{size} bytes are needed, {free} are free, and {spare} must stay free")
    spare_files = min(disk.f_files // 20, FETCH_SPARE_FILES)
    if disk.f_files and disk.f_favail <= spare_files:  # some file systems do not count files
        raise OSError(errno.ENOSPC, f"the disk has room for {disk.f_favail} files, and {spare_files} must stay free")


def _folder_below(root: Path, parts: Sequence[str]) -> int:
    """Open a folder below ``root``, which is created if missing. Raises OSError: a part of the path is a symlink."""
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
