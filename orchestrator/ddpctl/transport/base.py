"""The seam between ddpctl and the machines.

A ``Transport`` reaches one host: ``call`` is a verb of the worker, whose answer has been checked (answers.py), and
``run`` a plain command of the user's. ``Fleet`` (fleet.py) does it on many hosts at once.

Implementations: ``ssh.SSHTransport``, ``local.LocalTransport``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ddpctl.errors import DdpctlError
from ddpctl.spec.command import Ran

T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """One message of a worker's stream: a JSON object and the raw bytes that came with it (often none)."""

    data: Mapping[str, Any]
    raw: bytes = b""


OnFrame = Callable[[Frame], None]


class Transport(Protocol):
    """One host. Thread-safe: several calls may run at once on their own channels over one connection."""

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        ...

    @property
    def user(self) -> str:
        """The login, as this machine's files have it; the host has no say in it."""
        ...

    def prepare(self) -> None:
        """Connect now, where there is no connection.

        Raises:
            ConnectError: the host could not be reached, or refused us.
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
    ) -> dict[str, Any]:
        """One verb of the worker on the host; returns its result object.

        ``body`` follows the request on the worker's stdin (the request must carry its size). ``on_frame`` gets each
        message before the result, in order, on the calling thread. ``timeout`` (seconds) bounds the whole call; None
        for a stream, which is still given up as LinkLost when 15 s pass without a byte (the worker sends a heartbeat
        every 4 s). ``cancel`` is polled at least four times a second; True closes the channel and raises Interrupted.
        ``until``: once it is set the worker's stdin ends, which is how a verb without an end of its own (``listen``) is
        told to come to its result; not together with ``body``.

        Raises:
            ConnectError: as above. RemoteError: the worker's own error. PythonMissing: no interpreter.
        """
        ...

    def run(self, argv: Sequence[str], *, timeout: float | None = 60.0, password: str | None = None) -> Ran:
        """A plain command, in the login's home folder, its arguments byte for byte; all that it starts ends with it.

        ``timeout`` is in seconds. ``password`` makes it run as root by sudo: the login's password there, or an empty
        one where sudo asks for none.

        Raises:
            ConnectError: as above. RemoteError: no session, no exit status, or sudo refuses the password (kind
                ``sudo_password``).
        """
        ...

    def close(self) -> None:
        """Close the connection; harmless twice."""
        ...


@dataclass(frozen=True)
class FleetOutcome(Generic[T]):
    """What every host answered: each host is in exactly one of the two maps."""

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
        """Every host finishes, then every host is reported. Whatever ``work`` raises is its host's error."""
        ...

    def together(self, work: Callable[[Transport], T], hosts: Iterable[str] | None = None) -> FleetOutcome[T]:
        """Like ``map`` but with a thread for every host at once: for streams and for work that waits for its peers."""
        ...

    def close(self) -> None: ...
