"""A run's log on a node: segments of limited size with absolute offsets, one writer, any number of readers.

A segment is a file named after the offset of its first byte. The first segment and the newest segments are kept: the
beginning and the end of a job matter most. Records never span segments. If the disk is full, or hangs until the queue
is full, lines are lost. The log counts them, and a line gives their number once writing works again.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from typing import Deque, Iterator, List, NamedTuple, Optional, Tuple

from ddpctl_worker.machine.notes import note
from ddpctl_worker.record.limits import LOG_BYTES, QUEUE_BYTES, SEGMENT_BYTES
from ddpctl_worker.record.lines import STDERR, encode

_SUFFIX = ".jsonl"
_NAME = re.compile(r"[0-9]{20}\.jsonl\Z")


class Segment(NamedTuple):
    start: int
    path: str


def segments(folder: str) -> List[Segment]:
    """Return the segments on disk, in order. The script knows the folder too, and may have files of its own there."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [Segment(int(one[: -len(_SUFFIX)]), os.path.join(folder, one)) for one in names if _NAME.match(one)]
    return sorted(found)


class Writer:
    """Appends records in a thread of its own. A disk slower than the ranks loses lines and never delays a rank."""

    def __init__(
        self, folder: str, *, segment: int = SEGMENT_BYTES, total: int = LOG_BYTES, resume: bool = False
    ) -> None:
        self._folder, self._resume = folder, resume
        self._segment, self._total = segment, max(total, 2 * segment)
        self._chunk = min(1 << 20, segment // 4)  # bytes of one write
        self._cond = threading.Condition()
        self._queue: Deque[bytes] = deque()
        self._queued = 0
        self._closing = False
        self.dropped = 0  # lines, ever
        self._untold = 0  # dropped lines that no line of the log reports yet
        self._fd = -1
        self._offset = 0  # of the end of the log
        self._start = 0  # of the open segment
        self._kept: List[Tuple[int, int, str]] = []  # start, size, path of closed segments
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self.over = False  # closed, and every record that the disk takes is on disk

    def start(self) -> None:
        self._thread.start()

    def submit(self, blob: bytes, lines: int) -> bool:
        """Queue whole records without waiting; return False if the queue was full and the records were dropped."""
        with self._cond:
            if self._queued and self._queued + len(blob) > QUEUE_BYTES:
                self._drop(lines)
                return False
            self._queue.append(blob)
            self._queued += len(blob)
            self._cond.notify()
        return True

    def close(self) -> None:
        """Tell the thread to write the queue, sync, and be ``over``; does not wait."""
        with self._cond:
            self._closing = True
            self._cond.notify()

    def _drop(self, lines: int) -> None:
        self.dropped += lines
        self._untold += lines

    def _run(self) -> None:
        try:
            if self._resume:
                self._continue()
            while self._turn():
                pass
            self._tell_of_loss()
            self._finish_segment()
        finally:
            self.over = True

    def _continue(self) -> None:
        """Continue the log of an earlier attempt, without the half record at its end."""
        try:
            there = segments(self._folder)
            sizes = [os.stat(one.path).st_size for one in there]
            self._kept = [(one.start, size, one.path) for one, size in zip(there, sizes)]  # noqa: B905  (Python 3.8)
            if there:
                self._offset = Reader(self._folder).end()
                os.truncate(there[-1].path, self._offset - there[-1].start)
        except OSError as error:
            note("log: %r" % error)

    def _turn(self) -> bool:
        """Write once; return False after the last write. An error loses one write and never ends the thread."""
        with self._cond:
            while not self._queue and not self._closing:
                self._cond.wait()
            batch, size = self._take()
        if not batch:
            return False
        try:
            self._tell_of_loss()
            self._append(b"".join(batch))
        except Exception as error:
            note("log: %r" % error)
        finally:
            with self._cond:
                self._queued -= size
        return True

    def _take(self) -> Tuple[List[bytes], int]:
        batch: List[bytes] = []
        size = 0
        while self._queue and size < self._chunk:
            batch.append(self._queue.popleft())
            size += len(batch[-1])
        return batch, size

    def _tell_of_loss(self) -> None:
        if self._untold:
            with self._cond:
                lines, self._untold = self._untold, 0
            text = "ddpctl: %d lines of output were dropped here: they could not be written to disk" % lines
            if not self._append(encode(time.time(), None, STDERR, text.encode("ascii"), b"\n"), marker=True):
                with self._cond:
                    self._untold += lines

    def _append(self, blob: bytes, marker: bool = False) -> bool:
        """Write whole records. On a full disk the rest is dropped from a record's boundary on."""
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
        """Remove half a record at the end; no reader has consumed it."""
        try:
            os.ftruncate(self._fd, size)
            os.lseek(self._fd, size, os.SEEK_SET)
        except OSError:
            self._finish_segment()  # the next segment begins after the last whole record

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
        with contextlib.suppress(OSError):  # the lines are as safe as this disk allows
            os.fdatasync(fd)
        with contextlib.suppress(OSError):  # NFS reports a full disk only here
            os.close(fd)
        path = os.path.join(self._folder, "%020d%s" % (self._start, _SUFFIX))
        self._kept.append((self._start, self._offset - self._start, path))
        while len(self._kept) > 1 and sum(size for _, size, _ in self._kept) + self._segment > self._total:
            _, _, old = self._kept.pop(1)
            with contextlib.suppress(OSError):
                os.unlink(old)


class Batch(NamedTuple):
    """Whole records with the offset after each, the offset to continue at, and the number of bytes that are gone."""

    records: List[Tuple[int, bytes]]
    offset: int
    skipped: int


class Reader:
    """Reads the log from any offset, while a writer appends to it or without a writer."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: List[Segment] = []
        self._fd = -1
        self._open: Optional[Segment] = None

    def read(self, offset: int, limit: int = 1 << 20) -> Batch:
        """Return about ``limit`` bytes of whole records from ``offset`` on; an empty batch if nothing is new."""
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
        """Return the offset after the last whole record."""
        self._known = segments(self._folder)
        if not self._known:
            return 0
        last = self._known[-1]
        return next((at + len(record) + 1 for at, record in backwards(last)), last.start)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._open = -1, None

    def _segment_at(self, offset: int) -> Optional[Segment]:
        """Return the segment that holds ``offset``, or the first segment after it."""
        best: Optional[Segment] = None
        for one in self._known:
            if one.start <= offset:
                best = one
            else:
                # ``offset`` is at or after the end of ``best``: continue with the next segment.
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


def backwards(segment: Segment) -> Iterator[Tuple[int, bytes]]:
    """Yield (offset, record) of every whole record in a segment, from the last to the first."""
    try:
        file = open(segment.path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        end = file.seek(0, os.SEEK_END)
        rest = b""  # the end of a record that begins earlier
        while end > 0:
            step = min(end, 256 << 10)
            end -= step
            file.seek(end)
            blob = file.read(step) + rest
            lines = blob.splitlines(keepends=True)
            rest = lines.pop(0) if end > 0 else b""
            at = segment.start + end + len(blob)
            for line in reversed(lines):
                at -= len(line)
                if line.endswith(b"\n"):  # not half a record at the end of the log
                    yield at, line[:-1]
