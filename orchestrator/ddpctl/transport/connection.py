"""paramiko's Transport, fixed in two places where many threads share one connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import paramiko


class Connection(paramiko.Transport):
    """One SSH connection.

    An idle one wakes up once a second instead of ten times: hundreds of them are held open. And a channel that the
    server refuses is reported to the thread that asked for it, with the server's own words: paramiko keeps one
    exception a connection, so that of two refused channels one would get the other's reason and one none at all.
    """

    _active_check_timeout = 1.0
    preferred_keys: tuple[str, ...] = ()  # host key algorithms; paramiko would put certificates last, and always
    active: bool  # paramiko sets it; its stubs leave it out

    def __init__(self, sock: Any) -> None:
        self._refusals: dict[int, paramiko.ChannelException] = {}
        self._asking = threading.local()
        super().__init__(sock)

    def _next_channel(self) -> int:
        """Called by open_channel on the thread that asks."""
        number: int = super()._next_channel()  # type: ignore[misc]
        self._asking.number = number
        return number

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        """Called on the reading thread."""
        number, code, text = message.get_int(), message.get_int(), message.get_text()
        with self.lock:
            self._refusals[number] = paramiko.ChannelException(code, text)
            self._channels.delete(number)  # type: ignore[attr-defined]
            event = self.channel_events.pop(number, None)
        if event is not None:
            event.set()

    def get_exception(self) -> Exception | None:
        """Why the last request of this thread failed; asking clears it."""
        number = getattr(self._asking, "number", None)
        if number is not None and number in self._refusals:
            return self._refusals.pop(number)
        return super().get_exception()

    def hang_up(self) -> None:
        """End the connection at once; harmless twice.

        Its socket may be a channel of another connection that is gone already: then each of these steps can fail, and
        none keeps the next from being taken.
        """
        steps: tuple[Callable[[], object], ...] = (
            lambda: self.sock.shutdown(2),  # wakes the thread that reads, closing alone does not
            self.close,
            self.sock.close,
        )
        for step in steps:
            with suppress(OSError, EOFError, paramiko.SSHException):
                step()
