"""A run's log on a node: size-capped segments addressed by absolute offsets, one writer, any number of readers.

A segment is a file named after the offset of its first byte. The first segment and the newest ones are kept: how a job
began and how it ended matter most. Records never span segments. What could not be written (full disk) is counted, and
a line in the log says so once writing works again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable, List, NamedTuple, Optional, Tuple

from ddpctl_worker.lines import STDERR, encode
from ddpctl_worker.record import note

SEGMENT_BYTES = 16 << 20
TOTAL_BYTES = 512 << 20
QUEUE_BYTES = 64 << 20
STALL_S = 10.0  # a disk that takes nothing for so long costs lines rather than the ranks' time
_SUFFIX = ".jsonl"


class Segment(NamedTuple):
    start: int
    path: str


def segments(folder: str) -> List[Segment]:
    """The segments that are there, in order."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [Segment(int(one[: -len(_SUFFIX)]), os.path.join(folder, one)) for one in names if one.endswith(_SUFFIX)]
    return sorted(found)


class Writer:
    """Appends records from a thread of its own, so that a slow disk never holds up the ranks.

    ``pulse`` is called about once a second from that thread: the heartbeat, which so tells of both threads.
    """

    def __init__(
        self,
        folder: str,
        pulse: Callable[[], None],
        *,
        segment: int = SEGMENT_BYTES,
        total: int = TOTAL_BYTES,
        stall: float = STALL_S,
    ) -> None:
        self._folder, self._pulse = folder, pulse
        self._segment, self._total, self._stall = segment, max(total, 2 * segment), stall
        self._chunk = min(1 << 20, segment // 4)  # bytes of one write
        self._cond = threading.Condition()
        self._queue: List[Tuple[bytes, int]] = []
        self._queued = 0
        self._closing = False
        self._beat_at = 0.0
        self._written_at = time.monotonic()
        self.dropped = 0  # lines, ever
        self._untold = 0  # dropped lines that the log does not speak of yet
        self._fd = -1
        self._offset = 0  # of the end of the log
        self._start = 0  # of the open segment
        self._kept: List[Tuple[int, int, str]] = []  # start, size, path of closed segments
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, blob: bytes, lines: int) -> bool:
        """Queue whole records. False: the queue is full, come back later (after a while it drops them: True)."""
        with self._cond:
            if self._queued and self._queued + len(blob) > QUEUE_BYTES:
                if time.monotonic() - self._written_at < self._stall:
                    return False
                self._drop(lines)
                return True
            self._queue.append((blob, lines))
            self._queued += len(blob)
            self._cond.notify()
        return True

    def close(self, timeout: float = 30.0) -> None:
        """Write what is queued, sync, end the thread."""
        with self._cond:
            self._closing = True
            self._cond.notify()
        self._thread.join(timeout)

    def _drop(self, lines: int) -> None:
        self.dropped += lines
        self._untold += lines

    def _run(self) -> None:
        while self._turn():
            pass
        self._tell_of_loss()
        self._finish_segment()
        self._beat_at = 0.0
        self._beat()

    def _turn(self) -> bool:
        """One round; False when all is written and nothing will follow. A fault costs a round, never the thread."""
        self._beat()
        with self._cond:
            if not self._queue and not self._closing:
                self._cond.wait(max(0.0, self._beat_at - time.monotonic()))
            batch, self._queue = self._queue, []
            closing = self._closing
        if not batch:
            return not closing
        try:
            self._write(batch)
        except Exception as error:
            note("log: %r" % error)
        finally:
            with self._cond:
                self._queued -= sum(len(blob) for blob, _ in batch)
                self._written_at = time.monotonic()
        return True

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        self._beat_at = time.monotonic() + 1.0
        try:
            self._pulse()
        except Exception as error:
            note("heartbeat: %r" % error)

    def _write(self, batch: List[Tuple[bytes, int]]) -> None:
        self._tell_of_loss()
        pending: List[bytes] = []
        size = 0
        for blob, _ in batch:
            pending.append(blob)
            size += len(blob)
            if size >= self._chunk:
                self._append(b"".join(pending))
                pending, size = [], 0
                self._beat()  # a slow disk is no dead supervisor
        if pending:
            self._append(b"".join(pending))

    def _tell_of_loss(self) -> None:
        if self._untold:
            with self._cond:
                told, self._untold = self._untold, 0
            text = "ddpctl: %d lines of output were dropped here: they could not be written to disk" % told
            if not self._append(encode(time.time(), None, STDERR, text.encode("ascii"), b"\n"), marker=True):
                with self._cond:
                    self._untold += told

    def _append(self, blob: bytes, marker: bool = False) -> bool:
        """Write whole records; what does not fit any more is dropped at a record's boundary."""
        done = 0
        try:
            self._ready()
            view = memoryview(blob)
            while done < len(blob):
                done += os.write(self._fd, view[done:])
        except OSError:
            whole = blob.rfind(b"\n", 0, done) + 1
            lost = blob.count(b"\n", whole)
            if self._fd >= 0:
                self._cut(self._offset - self._start + whole)
            self._offset += whole
            if not marker:
                with self._cond:
                    self._drop(lost)
            return False
        self._offset += len(blob)
        return True

    def _cut(self, size: int) -> None:
        """Take half a record off the end; readers never consume one."""
        try:
            os.ftruncate(self._fd, size)
            os.lseek(self._fd, size, os.SEEK_SET)
        except OSError:
            self._finish_segment()  # the next one begins where the log's whole records end

    def _ready(self) -> None:
        if self._fd >= 0 and self._offset - self._start >= self._segment:
            self._finish_segment()
        if self._fd < 0:
            path = os.path.join(self._folder, "%020d%s" % (self._offset, _SUFFIX))
            self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._start = self._offset

    def _finish_segment(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):  # the lines are as safe as this disk lets them be
            os.fdatasync(fd)
        with contextlib.suppress(OSError):  # NFS tells only here that there was no room
            os.close(fd)
        path = os.path.join(self._folder, "%020d%s" % (self._start, _SUFFIX))
        self._kept.append((self._start, self._offset - self._start, path))
        while len(self._kept) > 1 and sum(size for _, size, _ in self._kept) + self._segment > self._total:
            _, _, old = self._kept.pop(1)
            with contextlib.suppress(OSError):
                os.unlink(old)


class Batch(NamedTuple):
    """What a reader got: whole records with the offset behind each, where to go on, and bytes that are gone."""

    records: List[Tuple[int, bytes]]
    offset: int
    skipped: int


class Reader:
    """Reads the log from any offset, while it is being written, with or without a writer alive."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: List[Segment] = []
        self._fd = -1
        self._open: Optional[Segment] = None

    def read(self, offset: int, limit: int = 1 << 20) -> Batch:
        """Up to about ``limit`` bytes of whole records from ``offset``; none when there is nothing new."""
        skipped = 0
        for refresh in (False, True):
            if refresh or not self._known:
                self._known = segments(self._folder)
            at = self._segment_at(offset)
            if at is None:
                continue
            if offset < at.start:  # the segments in between were dropped
                skipped += at.start - offset
                offset = at.start
            records = self._records(at, offset, limit)
            if records:
                return Batch(records, records[-1][0], skipped)
        return Batch([], offset, skipped)

    def end(self) -> int:
        """The offset behind the last whole record."""
        self._known = segments(self._folder)
        if not self._known:
            return 0
        last = self._known[-1]
        return last.start + whole_size(last.path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._open = -1, None

    def _segment_at(self, offset: int) -> Optional[Segment]:
        """The segment to read ``offset`` from, or the first one after it."""
        best: Optional[Segment] = None
        for one in self._known:
            if one.start <= offset:
                best = one
            else:
                # ``offset`` is at or behind the end of ``best``: go on with the next one.
                if best is None or not _covers(best, offset):
                    return one
                break
        return best

    def _records(self, at: Segment, offset: int, limit: int) -> List[Tuple[int, bytes]]:
        if self._open != at:
            self.close()
            try:
                self._fd = os.open(at.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return []  # dropped just now: the listing is refreshed
            self._open = at
        while True:
            blob = os.pread(self._fd, limit, offset - at.start)
            end = blob.rfind(b"\n") + 1
            if end or len(blob) < limit:
                break
            limit *= 2  # one record longer than the limit
        found = []
        for line in blob[:end].split(b"\n")[:-1]:
            offset += len(line) + 1
            found.append((offset, line))
        return found


def _covers(one: Segment, offset: int) -> bool:
    try:
        return offset < one.start + os.stat(one.path).st_size
    except FileNotFoundError:
        return False


def whole_size(path: str) -> int:
    """Bytes of whole records in a segment."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        while size > 0:
            step = min(size, 1 << 16)
            file.seek(size - step)
            cut = file.read(step).rfind(b"\n")
            if cut >= 0:
                return size - step + cut + 1
            size -= step
    return 0
