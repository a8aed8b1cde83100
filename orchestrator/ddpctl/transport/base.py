"""The interface between ddpctl and the hosts.

A ``Transport`` reaches one host. ``call`` runs a verb of the worker and returns its validated answer (answers.py);
``run`` runs a plain command of the user. A ``Fleet`` (fleet.py) does the same on many hosts at once.

Implementations: ``ssh.SSHTransport``, ``local.LocalTransport``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ddpctl.errors import DdpctlError
from ddpctl.spec.command import Ran
from ddpctl.transport.progress_clock import ProgressClock

T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """A message of a worker's stream: a JSON object and the raw bytes that follow it (often empty)."""

    data: Mapping[str, Any]
    raw: bytes = b""


OnFrame = Callable[[Frame], None]


class Transport(Protocol):
    """One host. Thread-safe: several calls may run at once, each on its own channel of one connection."""

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        ...

    @property
    def user(self) -> str:
        """The login name. It comes from files of this machine; the host does not decide it."""
        ...

    def prepare(self) -> None:
        """Connect now, unless there is a connection.

        Raises:
            ConnectError: the host could not be reached, or refused the login.
        """
        ...

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
        """Run a verb of the worker on the host and return its result.

        - ``body`` follows the request on the worker's stdin; the request must carry its size.
        - ``on_frame`` gets each message before the result, in order, on the calling thread.
        - ``timeout`` (seconds) bounds the whole call. None is for a stream. The worker sends a heartbeat every 4 s;
          after 15 s without a byte the stream ends as LinkLost.
        - ``cancel`` is polled at least four times a second; True closes the channel and raises Interrupted.
        - ``until`` ends the worker's stdin once it is set. A verb without an end of its own (``listen``) then returns
          its result. Not together with ``body``.
        - ``clock`` ends a call that makes no progress, as an error of the host (kind ``timeout``).

        Raises:
            ConnectError: as for ``prepare``.
            RemoteError: the error that the worker reports.
            PythonMissing: the host has no usable interpreter.
        """
        ...

    def run(self, argv: Sequence[str], *, timeout: float | None = 60.0, password: str | None = None) -> Ran:
        """Run a plain command in the login's home folder, with its arguments byte for byte.

        All processes that the command starts end with it. ``timeout`` is in seconds. With ``password`` the command runs
        as root by sudo: the login's password there, or an empty text where sudo asks for no password.

        Raises:
            ConnectError: as for ``prepare``.
            RemoteError: there is no session or no exit status, or sudo refuses the password (kind ``sudo_password``).
        """
        ...

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        ...


@dataclass(frozen=True)
class FleetOutcome(Generic[T]):
    """The outcome of every host: each host is in exactly one of the two maps."""

    results: Mapping[str, T] = field(default_factory=dict)
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.errors


class Fleet(Protocol):
    """Many hosts. ``map`` runs ``work`` for every host (32 at a time, 8 behind one jump host) and waits for all."""

    @property
    def hosts(self) -> tuple[str, ...]: ...

    def transport(self, host: str) -> Transport: ...

    def map(
        self,
        work: Callable[[Transport], T],
        hosts: Iterable[str] | None = None,
        *,
        on_done: Callable[[str, T | DdpctlError], None] | None = None,
    ) -> FleetOutcome[T]:
        """Run ``work`` for every host, then report every host. An exception of ``work`` is its host's error.

        After Ctrl-C each further call of ``work`` raises Interrupted.
        """
        ...

    def together(self, work: Callable[[Transport], T], hosts: Iterable[str] | None = None) -> FleetOutcome[T]:
        """Like ``map``, but with a thread for every host at once: for streams, and for work that waits for peers."""
        ...

    def close(self) -> None: ...
