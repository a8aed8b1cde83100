"""Empties the pipes of the launcher and its ranks into the log: never blocks a rank, never waits for one."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple

from ddpctl_worker import lines
from ddpctl_worker.logs import Writer
from ddpctl_worker.record import boottime

READ_BYTES = 256 << 10
FLUSH_S = 0.2  # an unfinished line is shown after this
TAIL_BYTES = 64 << 10  # kept in memory of each stream, to explain a failure
_TRACEBACK = b"Traceback (most recent call last)"


class Source:
    """One pipe: whose it is, what is unfinished of it, and the end of what it said."""

    def __init__(self, fd: int, local_rank: Optional[int], stream: str) -> None:
        self.fd, self.local_rank, self.stream = fd, local_rank, stream
        self.splitter = lines.Splitter()
        self.flush_at: Optional[float] = None
        self.stuck: Optional[Tuple[bytes, int]] = None  # records that the writer had no room for
        self.open = True
        self.traceback_at: Optional[float] = None  # wall clock; when the last traceback came
        self.said_at = 0.0  # wall clock; the last output
        self._tail: Deque[bytes] = deque()
        self._tail_size = 0

    def remember(self, data: bytes) -> None:
        self.said_at = time.time()
        if _TRACEBACK in data:
            self.traceback_at = self.said_at
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft())

    def tail(self) -> str:
        """The last 64 KiB, as text."""
        return b"".join(self._tail)[-TAIL_BYTES:].decode("utf-8", "replace")


class Drain:
    """All pipes of a run. ``watch(fd, on)`` is told which of them should wake the loop."""

    def __init__(
        self, writer: Writer, rank_of: Callable[[int], Optional[int]], watch: Callable[[int, bool], None]
    ) -> None:
        self._writer, self._rank_of, self._watch = writer, rank_of, watch
        self._sources: Dict[int, Source] = {}
        self.last_output = 0.0  # seconds since boot; 0.0: none yet

    def add(self, fd: int, local_rank: Optional[int], stream: str) -> None:
        self._sources[fd] = Source(fd, local_rank, stream)
        self._watch(fd, True)

    def ready(self, fd: int) -> bool:
        """Read what is there, once; True when there was something."""
        source = self._sources[fd]
        if source.stuck is not None or not source.open:
            return False
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._finish(source)
            return False
        self.last_output = boottime()
        source.remember(data)
        self._record(source, source.splitter.feed(data))
        source.flush_at = time.monotonic() + FLUSH_S if source.splitter.pending else None
        return True

    def due(self) -> Optional[float]:
        """When ``flush`` should be called next (monotonic); None: not before something else happens."""
        times = [one.flush_at for one in self._sources.values() if one.flush_at is not None]
        if any(one.stuck for one in self._sources.values()):
            times.append(time.monotonic() + 0.05)
        return min(times) if times else None

    def flush(self) -> None:
        """Write unfinished lines that are old enough, and retry what the writer had no room for."""
        now = time.monotonic()
        for source in self._sources.values():
            if source.stuck is not None:
                blob, count = source.stuck
                if not self._writer.submit(blob, count):
                    continue
                source.stuck = None
                if source.open:
                    self._watch(source.fd, True)
            if source.flush_at is not None and now >= source.flush_at:
                self._record(source, source.splitter.flush())
                source.flush_at = now + FLUSH_S if source.splitter.pending else None

    def finish(self, timeout: float = 20.0) -> None:
        """Nobody writes any more: take all that is left in the pipes, and the unfinished lines."""
        deadline = time.monotonic() + timeout
        for source in list(self._sources.values()):
            while time.monotonic() < deadline:
                if source.stuck is not None:
                    time.sleep(0.02)
                    self.flush()
                elif not source.open or not self.ready(source.fd):
                    break
            self._record(source, source.splitter.flush(final=True))

    def tails(self) -> Dict[Tuple[Optional[int], str], str]:
        """(local rank or None for the launcher, stream) -> the end of what it said."""
        return {(one.local_rank, one.stream): one.tail() for one in self._sources.values()}

    def tracebacks(self) -> Dict[int, float]:
        """local rank -> when it wrote its last traceback, wall clock."""
        return {
            one.local_rank: one.traceback_at
            for one in self._sources.values()
            if one.local_rank is not None and one.traceback_at is not None and one.stream == lines.STDERR
        }

    def said(self) -> Dict[Tuple[int, str], float]:
        """(local rank, stream) -> when it last wrote there, wall clock."""
        own = (one for one in self._sources.values() if one.local_rank is not None)
        return {(one.local_rank or 0, one.stream): one.said_at for one in own}

    def _finish(self, source: Source) -> None:
        source.open = False
        self._watch(source.fd, False)
        self._record(source, source.splitter.flush(final=True))
        source.flush_at = None

    def _record(self, source: Source, pieces: List[Tuple[bytes, bytes]]) -> None:
        if not pieces:
            return
        rank = None if source.local_rank is None else self._rank_of(source.local_rank)
        now, stream = time.time(), source.stream
        blob = b"".join([lines.encode(now, rank, stream, text, end) for text, end in pieces])
        if source.stuck is not None:
            source.stuck = (source.stuck[0] + blob, source.stuck[1] + len(pieces))
        elif not self._writer.submit(blob, len(pieces)):
            source.stuck = (blob, len(pieces))
            if source.open:
                self._watch(source.fd, False)
