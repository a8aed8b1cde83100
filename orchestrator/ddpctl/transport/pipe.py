"""A running command on some machine, as the conversation sees it: bytes in, bytes out, an exit status."""

from __future__ import annotations

from typing import Protocol

from ddpctl.transport.limits import STDERR_BYTES


class Pipe(Protocol):
    """Three streams of one command. One thread reads, one may send meanwhile.

    Any method may raise ``LinkLost`` when the machine is gone.
    """

    def send(self, data: memoryview, timeout: float) -> int:
        """How many bytes were taken within ``timeout`` seconds: 0 when none could be.

        Raises:
            BrokenPipeError: the command reads no more; the reader finds out why.
        """
        ...

    def end_input(self) -> None:
        """The command's stdin ends."""
        ...

    def recv(self, timeout: float) -> bytes | None:
        """The next bytes of stdout; empty at its end; None when none came within ``timeout`` seconds."""
        ...

    def stderr(self) -> bytes:
        """The end of what the command wrote on stderr so far."""
        ...

    def exit_code(self, timeout: float) -> int:
        """The exit status; -1 when none came within ``timeout`` seconds. A signal s is 128 + s."""
        ...

    def close(self, *, lost: bool = False) -> None:
        """End the command's streams; harmless twice. ``lost``: the machine does not answer, do not wait for it."""
        ...


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = STDERR_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        self._bytes += data
        if len(self._bytes) > self._limit:
            del self._bytes[: -self._limit]

    def get(self) -> bytes:
        return bytes(self._bytes)
