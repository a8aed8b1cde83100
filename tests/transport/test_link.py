"""A connection that dies ends its channels first, and itself a moment later: never taken for the end of a command."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from ddpctl.errors import LinkLost
from ddpctl.transport import link
from ddpctl.transport.link import ChannelPipe, HopLogin
from ddpctl.transport.route import Hop


class Dying:
    """A connection that is dead a moment after its first question."""

    def __init__(self) -> None:
        self.begun = 0.0

    def is_active(self) -> bool:
        self.begun = self.begun or time.monotonic()
        return time.monotonic() < self.begun + 0.1


class Alive:
    def is_active(self) -> bool:
        return True


class Closed:
    """A channel at its end; ``eof``: the server has said so."""

    def __init__(self, eof: bool) -> None:
        self.eof_received = eof
        self.exit_status = -1
        self.status_event = threading.Event()
        self.status_event.set()

    def settimeout(self, timeout: float) -> None:
        """Nothing waits."""

    def recv(self, size: int) -> bytes:
        return b""

    def recv_stderr_ready(self) -> bool:
        return False


def pipe(connection: Any, *, eof: bool) -> ChannelPipe:
    return ChannelPipe(HopLogin(cast(Hop, None), connection), cast(Any, Closed(eof)))


def test_the_end_of_a_dying_connection_is_not_the_end_of_the_output() -> None:
    with pytest.raises(LinkLost):
        pipe(Dying(), eof=False).recv(1.0)


def test_a_status_that_a_dying_connection_did_not_bring() -> None:
    ended = pipe(Dying(), eof=True)
    assert ended.recv(1.0) == b""
    with pytest.raises(LinkLost):
        ended.exit_code(1.0)


def test_a_command_that_is_killed_has_no_status_on_a_connection_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "DYING_S", 0.05)
    ended = pipe(Alive(), eof=True)
    assert ended.recv(1.0) == b""
    assert ended.exit_code(1.0) == -1
