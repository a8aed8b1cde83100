"""Hosts that are a table: they give the prepared answers, and remember the questions. No connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError, Interrupted, RemoteError
from ddpctl.spec.command import Ran
from ddpctl.transport import answers
from ddpctl.transport.base import Frame, OnFrame
from ddpctl.transport.fleet import SSHFleet
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl_worker.wire.contract import BAD_REQUEST


@dataclass(frozen=True)
class Stream:
    """An answer with frames before its result."""

    frames: Sequence[Frame] = ()
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One call that was made."""

    host: str
    verb: str
    args: Mapping[str, Any]
    body: bytes = b""


Fixed = Mapping[str, Any] | Stream | DdpctlError
Answer = Fixed | Callable[[Asked], Fixed]


class DryTransport:
    """A dry host: verb -> answer, which is checked like a real host's answer."""

    def __init__(
        self,
        host: str,
        answers: Mapping[str, Answer] | None = None,
        *,
        unreachable: DdpctlError | None = None,
        user: str = "train",
        runs: Callable[[Sequence[str], str | None], Ran] = lambda argv, password: Ran(0),
    ) -> None:
        self._host, self.user = host, user
        self._runs = runs
        self.ran: list[tuple[tuple[str, ...], str | None]] = []
        self._answers = dict(answers or {})
        self._unreachable = unreachable
        self.calls: list[Asked] = []
        self.closed = False

    @property
    def host(self) -> str:
        return self._host

    def prepare(self) -> None:
        """Fails where the host is meant to be out of reach."""
        if self._unreachable is not None:
            raise self._unreachable

    def call(
        self,
        verb: str,
        args: Mapping[str, Any] | None = None,
        *,
        body: Iterable[bytes] | None = None,
        on_frame: OnFrame | None = None,
        timeout: float | None = 60.0,
        cancel: Callable[[], bool] | None = None,
        until: threading.Event | None = None,
        clock: ProgressClock | None = None,
    ) -> Any:
        self.prepare()
        asked = Asked(self._host, verb, dict(args or {}), b"".join(body or ()))
        self.calls.append(asked)
        if verb not in self._answers:
            raise RemoteError(f"no answer to {verb!r} in the table", kind=BAD_REQUEST, host=self._host)
        answer = self._answers[verb]
        fixed = answer(asked) if callable(answer) else answer
        if isinstance(fixed, DdpctlError):
            raise fixed
        stream = fixed if isinstance(fixed, Stream) else Stream((), fixed)
        for frame in stream.frames:
            if cancel is not None and cancel():
                raise Interrupted(f"`{verb}` was cancelled", host=self._host)
            checked = answers.check_frame(verb, frame, self._host, asked.args)
            if on_frame is not None:
                on_frame(checked)
        return answers.check_result(verb, stream.result, self._host, asked.args)

    def run(self, argv: Sequence[str], *, timeout: float | None = 60.0, password: str | None = None) -> Ran:
        self.prepare()
        self.ran.append((tuple(argv), password))
        return self._runs(argv, password)

    def close(self) -> None:
        self.closed = True


class DryFleet(SSHFleet):
    """Many dry hosts, with the same work as on real hosts."""

    def __init__(self, transports: Iterable[DryTransport]) -> None:
        self.table = {transport.host: transport for transport in transports}
        super().__init__(self.table)

    @property
    def calls(self) -> list[Asked]:
        """Every call on every host, host by host."""
        return [asked for transport in self.table.values() for asked in transport.calls]
