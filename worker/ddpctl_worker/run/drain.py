"""Empties the pipes of the launcher and its ranks into memory.

The drain has a thread of its own, touches no disk, and waits only for output. So no rank ever waits for a disk.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple

from ddpctl_worker.machine.notes import boottime, note
from ddpctl_worker.machine.wakeup import WakePipe
from ddpctl_worker.record import lines
from ddpctl_worker.record.logs import Writer
from ddpctl_worker.run.limits import (
    DRAIN_FAULT_PAUSE_S,
    DRAIN_READ_BYTES,
    ENDLESS_WRITER_S,
    TAIL_BYTES,
    UNFINISHED_LINE_S,
)

_TRACEBACK = b"Traceback (most recent call last)"
# The words of gloo, NCCL's watchdog and monitored_barrier for a collective that took too long.
_TIMEOUTS = (b"Timed out waiting ", b"collective operation timeout", b"failed to pass monitoredBarrier")


class OutputPipe:
    """A pipe of the launcher or of a rank: its unfinished line, and the end of its output."""

    def __init__(self, fd: int, local_rank: Optional[int], stream: str) -> None:
        self.fd, self.local_rank, self.stream = fd, local_rank, stream
        self.splitter = lines.Splitter()
        self.flush_at: Optional[float] = None
        self.open = True
        self.traceback_at: Optional[float] = None  # Unix seconds of the last traceback
        self.said_at = 0.0  # Unix seconds of the last output
        self.timeouts = 0  # how often the output spoke of a collective that timed out
        self._tail: Deque[bytes] = deque()
        self._tail_size = 0

    def remember(self, data: bytes) -> None:
        self.said_at = time.time()
        before = self._tail[-1] if self._tail else b""
        if _says(_TRACEBACK, before, data):
            self.traceback_at = self.said_at
        if any(_says(words, before, data) for words in _TIMEOUTS):
            self.timeouts += 1
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft())

    def tail(self) -> str:
        """Return the last ``TAIL_BYTES`` as text."""
        return b"".join(self._tail)[-TAIL_BYTES:].decode("utf-8", "replace")


def _says(words: bytes, before: bytes, data: bytes) -> bool:
    """Return whether ``data`` has these words, or completes them: two reads may share them."""
    edge = len(words) - 1
    return words in data or words in before[-edge:] + data[:edge]


class Drain:
    """All pipes of a run. ``changed`` is called once when the drain is over."""

    def __init__(
        self, writer: Writer, rank_of: Callable[[int], Optional[int]], changed: Callable[[], None], attempt: int = 1
    ) -> None:
        self._writer, self._rank_of, self._changed, self._attempt = writer, rank_of, changed, attempt
        self._sources: Dict[int, OutputPipe] = {}
        self._selector = selectors.DefaultSelector()
        self._pipe = WakePipe()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._lock = threading.Lock()  # guards the tails, and ``_asked``
        self._asked: List[threading.Event] = []
        self._closing = False
        self.last_output = 0.0  # seconds since boot; 0.0: no output yet
        self.over = False  # closed, and the pipes are empty
        self._thread = threading.Thread(target=self._run, name="drain", daemon=True)

    def add(self, fd: int, local_rank: Optional[int], stream: str) -> None:
        """Add a pipe; called before ``start``."""
        self._sources[fd] = OutputPipe(fd, local_rank, stream)
        self._selector.register(fd, selectors.EVENT_READ)

    def start(self) -> None:
        self._thread.start()

    def catch_up(self, timeout: float) -> bool:
        """Wait until everything that is in the pipes now is in the tails, at most ``timeout`` seconds.

        False: it is not there yet.
        """
        done = threading.Event()
        with self._lock:
            self._asked.append(done)
        self._pipe.wake()
        return done.wait(timeout)

    def close(self) -> None:
        """Begin to read the rest; no process writes any more. ``over`` is set later: this call does not wait."""
        if not self._closing:
            self._closing = True
            self._pipe.wake()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception as error:
                note("drain: %r" % error)
                time.sleep(DRAIN_FAULT_PAUSE_S)
        try:
            self._empty(time.monotonic() + ENDLESS_WRITER_S)
            for source in self._sources.values():
                self._record(source, source.splitter.flush(final=True))
        finally:
            self.over = True
            self._changed()

    def _turn(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        if asked:
            self._empty(time.monotonic() + 1.0)
            for done in asked:
                done.set()
        for key, _ in self._selector.select(self._until_flush()):
            if key.fileobj is self._pipe:
                self._pipe.clear()
            else:
                self._ready(self._sources[key.fd])
        self._flush()

    def _empty(self, deadline: float) -> None:
        for source in self._sources.values():
            while time.monotonic() < deadline and source.open and self._ready(source):
                pass

    def _ready(self, source: OutputPipe) -> bool:
        """Read once without waiting; return whether the pipe had data."""
        try:
            data = os.read(source.fd, DRAIN_READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._finish(source)
            return False
        self.last_output = boottime()
        with self._lock:
            source.remember(data)
        self._record(source, source.splitter.feed(data))
        source.flush_at = time.monotonic() + UNFINISHED_LINE_S if source.splitter.pending else None
        return True

    def _until_flush(self) -> Optional[float]:
        times = [source.flush_at for source in self._sources.values() if source.flush_at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _flush(self) -> None:
        now = time.monotonic()
        for source in self._sources.values():
            if source.flush_at is not None and now >= source.flush_at:
                self._record(source, source.splitter.flush())
                source.flush_at = now + UNFINISHED_LINE_S if source.splitter.pending else None

    def tails(self) -> Dict[Tuple[Optional[int], str], str]:
        """Return (local rank, or ``None`` for the launcher; stream) -> the end of its output."""
        with self._lock:
            return {(source.local_rank, source.stream): source.tail() for source in self._sources.values()}

    def tracebacks(self) -> Dict[int, float]:
        """Return local rank -> Unix seconds of its last traceback."""
        return {
            source.local_rank: source.traceback_at
            for source in self._sources.values()
            if source.local_rank is not None and source.traceback_at is not None and source.stream == lines.STDERR
        }

    def count_timeouts(self) -> Dict[int, int]:
        """Return local rank -> how often its output spoke of a collective that timed out."""
        return {
            source.local_rank: source.timeouts
            for source in self._sources.values()
            if source.local_rank is not None and source.timeouts and source.stream == lines.STDERR
        }

    def said(self) -> Dict[Tuple[int, str], float]:
        """Return (local rank, stream) -> Unix seconds of its last output."""
        own = (source for source in self._sources.values() if source.local_rank is not None)
        return {(source.local_rank or 0, source.stream): source.said_at for source in own}

    def _finish(self, source: OutputPipe) -> None:
        source.open = False
        self._selector.unregister(source.fd)
        self._record(source, source.splitter.flush(final=True))
        source.flush_at = None

    def _record(self, source: OutputPipe, pieces: List[Tuple[bytes, bytes]]) -> None:
        if not pieces:
            return
        rank = None if source.local_rank is None else self._rank_of(source.local_rank)
        now, stream = time.time(), source.stream
        blob = b"".join([lines.encode(now, rank, stream, text, end, self._attempt) for text, end in pieces])
        self._writer.submit(blob, len(pieces))
