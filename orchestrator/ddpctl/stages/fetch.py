"""Bring a run's logs, records and declared outputs from every node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.spec.event import Progress, StageEnded, StageStarted, Tell
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport

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
        receiver = _Receiver(dest / transport.host, transport.host, tell)
        try:
            result = transport.call("fetch", {"run": run}, on_frame=receiver.frame, timeout=FETCH_TIMEOUT_S)
            receiver.fetched.missing = tuple(map(str, result.get("missing", ())))
        except OSError as error:  # of a file here: the transport has errors of its own
            what = f"{error.filename or dest} cannot be written on this machine: {error.strerror}"
            raise DdpctlError(what, hint="mend that or name another folder", host=transport.host) from None
        finally:
            receiver.close()
        return receiver.fetched

    outcome = fleet.map(fetch, hosts)
    tell(StageEnded("fetch", outcome.ok))
    return outcome


class _Receiver:
    """Turns the worker's frames (``file`` then ``chunk``s) into files."""

    def __init__(self, folder: Path, host: str, tell: Tell) -> None:
        self.fetched = Fetched()
        self._folder = folder
        self._host = host
        self._tell = tell
        self._file: IO[bytes] | None = None
        self._part = self._target = folder
        self._left = self._mode = 0

    def frame(self, frame: Frame) -> None:
        if "file" in frame.data:
            info = frame.data["file"]
            self._open(str(info["path"]), int(info["size"]), int(info.get("mode", 0o600)))
        elif frame.raw and self._file is not None:
            self._file.write(frame.raw)
            self._left -= len(frame.raw)
            self.fetched.bytes += len(frame.raw)
        if self._file is not None and self._left <= 0:
            self._finish()

    def _open(self, name: str, size: int, mode: int) -> None:
        self.close()
        parts = PurePosixPath(name).parts
        # A node is not trusted to name places on this machine.
        if not parts or ".." in parts or name.startswith("/"):
            raise RemoteError(f"the node sent a file named {name!r}, which was not taken", host=self._host)
        self._target = self._folder.joinpath(*parts)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._part = self._target.with_name(self._target.name + ".part")
        self._file = self._part.open("wb")
        self._left, self._mode = size, mode

    def _finish(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        self._part.chmod(self._mode & 0o700 | 0o600)
        self._part.replace(self._target)
        self.fetched.files.append(str(self._target.relative_to(self._folder)))
        self._tell(Progress("fetch", len(self.fetched.files), None, self._host))

    def close(self) -> None:
        """Drop a file that did not come to its end."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._part.unlink(missing_ok=True)
