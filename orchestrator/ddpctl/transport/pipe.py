"""The pipe to a worker: bytes in both directions, and the frames in these bytes."""

from __future__ import annotations

import json
from typing import Any, Protocol

from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.transport.base import Frame
from ddpctl.transport.limits import LINE_BYTES, RAW_BYTES, STDERR_BYTES

PROTOCOL = "protocol"
HINT = (
    "see whether its `python:` is a wrapper that changes what is printed, or its disk is damaged; "
    "ddpctl preflight --only host.worker --debug shows more"
)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)


class FrameReader:
    """Splits a stream into frames: a JSON object per line, then ``n`` raw bytes where the object has ``"raw": n``."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0  # no line end before this position
        self._open: dict[str, Any] | None = None  # the object whose raw bytes are still missing
        self._missing = 0
        self._raw_bytes = 0  # of the frames that are complete

    @property
    def raw_bytes(self) -> int:
        """The raw bytes that have arrived so far, those of the frame under way included."""
        return self._raw_bytes + (min(len(self._buffer), self._missing) if self._open is not None else 0)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes.

        Raises:
            RemoteError: the stream does not follow the protocol (kind ``protocol``).
        """
        self._buffer += data
        frames: list[Frame] = []
        while True:
            frame = self._raw() if self._open is not None else self._line()
            if frame is not None:
                frames.append(frame)
            elif self._open is None or len(self._buffer) < self._missing:
                return frames

    def _line(self) -> Frame | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
        if max(end, self._scanned) > LINE_BYTES:
            raise garbled(f"a line of more than {LINE_BYTES >> 20} MiB")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        data = parse(line)
        size = data.pop("raw", 0)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= RAW_BYTES:
            raise garbled(f"a frame of {size!r} raw bytes")
        if size == 0:
            return Frame(data)
        self._open, self._missing = data, size
        return self._raw()

    def _raw(self) -> Frame | None:
        if self._open is None or len(self._buffer) < self._missing:
            return None
        frame = Frame(self._open, bytes(self._buffer[: self._missing]))
        del self._buffer[: self._missing]
        self._raw_bytes += self._missing
        self._open, self._missing = None, 0
        return frame


def parse(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line."""
    try:
        data = _JSON.decode(line.decode("ascii"))
    except (ValueError, RecursionError):
        raise garbled(repr(line[:60])) from None
    if not isinstance(data, dict):
        raise garbled(repr(line[:60]))
    return data


def garbled(what: str) -> RemoteError:
    """Return the error for an answer that does not follow the protocol."""
    return RemoteError(f"the worker's answer is garbled: {what}", kind=PROTOCOL, hint=HINT)


def is_garbled(error: DdpctlError) -> bool:
    """Return whether ``error`` is an answer that did not follow the protocol."""
    return isinstance(error, RemoteError) and error.kind == PROTOCOL


class Pipe(Protocol):
    """The three streams of a command. One thread reads; another thread may send at the same time.

    Any method may raise ``LinkLost`` when the connection is dead.
    """

    def send(self, data: memoryview, timeout: float) -> int:
        """Send data and return how many bytes were taken within ``timeout`` seconds, possibly 0.

        Raises:
            BrokenPipeError: the command no longer reads; the reader finds out why.
        """
        ...

    def end_input(self) -> None:
        """End the command's stdin."""
        ...

    def recv(self, timeout: float) -> bytes | None:
        """Return the next bytes of stdout; empty at its end; None if no byte comes within ``timeout`` seconds."""
        ...

    def stderr(self) -> bytes:
        """Return the end of the command's stderr so far."""
        ...

    def exit_code(self, timeout: float) -> int:
        """Return the exit status, or -1 if it does not arrive within ``timeout`` seconds. Signal s is 128 + s."""
        ...

    def close(self, *, lost: bool = False) -> None:
        """End the streams; a second call does nothing. ``lost``: the host does not answer, so do not wait for it."""
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
