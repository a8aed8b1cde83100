"""Connections to jump hosts: all hosts behind a jump host share one, and the error of a try holds for a moment."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ddpctl.errors import ConnectError
from ddpctl.transport.limits import JUMP_DOWN_S
from ddpctl.transport.route import Hop


class Connected(Protocol):
    """A connection to a server."""

    @property
    def alive(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Connected)


class _Jump(Generic[C]):
    """The connection to a jump host, or the error of the last try."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: C | None = None
        self.error: ConnectError | None = None
        self.failed_at = 0.0


class JumpHosts(Generic[C]):
    """The jump hosts of a fleet. ``connect`` logs in to a jump host."""

    def __init__(self, connect: Callable[[Hop], C]) -> None:
        self._connect = connect
        self._jumps: defaultdict[Hop, _Jump[C]] = defaultdict(_Jump)
        self._lock = threading.Lock()

    def connection(self, hop: Hop) -> C:
        """Return the connection to a jump host; open it if there is none.

        After a failure the next try waits for JUMP_DOWN_S: each host behind the jump host asks for it.

        Raises:
            ConnectError: the error of ``connect``, with the name of the jump host.
        """
        with self._lock:
            jump = self._jumps[hop]
        with jump.lock:
            if jump.connection is not None:
                if jump.connection.alive:
                    return jump.connection
                jump.connection.close()
                jump.connection = None
            if jump.error is None or time.monotonic() - jump.failed_at > JUMP_DOWN_S:
                try:
                    jump.connection, jump.error = self._connect(hop), None
                    return jump.connection
                except ConnectError as failure:
                    jump.error, jump.failed_at = failure, time.monotonic()
            raise type(jump.error)(f"jump host {hop.label}: {jump.error.message}", hint=jump.error.hint)

    def close(self) -> None:
        with self._lock:
            jumps = list(self._jumps.values())
        for jump in jumps:
            if jump.connection is not None:
                jump.connection.close()
