"""The tail verb: sends a run's log from an offset on, also live, with or without a supervisor."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any, Callable, Dict, List, Optional, cast

from ddpctl_worker.record.judgement import refuse_elsewhere
from ddpctl_worker.record.lines import STREAMS, decode, decode_all
from ddpctl_worker.record.logs import Batch, Reader, backwards, segments
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.record import named_by
from ddpctl_worker.record.status import node_status
from ddpctl_worker.verbs.limits import JUDGE_RUN_S, LINE_SEARCH_S, LOG_FRAME_BYTES, LOG_POLL_S
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, QUEUED, STALE, TERMINAL


def tail(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Send {"lines": columns, "offset", "more"} frames, and answer with {"offset", "state"}.

    The log is sent from ``offset``, from the last ``lines`` lines, from the time ``since`` (Unix seconds), or from
    ``ago`` seconds before now; without any of these keys from the beginning. ``ranks`` keeps the lines of these ranks,
    ``grep`` the lines with a match of this pattern. ``more``: another frame of lines follows at once.

    With ``follow`` these frames come as well:

        {"state", "heartbeat_age_s"}   at the beginning, and when the supervisor falls silent or its host is cut off
                                       (``stale``), and when it is back
        {"stuck"}                      from node rank 0: why the run is stuck, and null once it moves again
        {"lag"}                        when the checkpoints fall far behind, and when they have caught up

    With ``follow`` a frame without ``more`` always comes, even without lines. The verb ends when the run is over on
    this node and the whole log is sent, or when the reader goes away.
    """
    paths, _ = named_by(request)
    wanted = _Wanted(request, channel)
    reader = Reader(paths.logs)
    try:
        offset = request.get("offset")
        if offset is None:
            offset = _start(paths.logs, reader, request, wanted)
        follow = _Follow(paths, channel) if request.get("follow") else None
        offset = _stream(reader, int(offset), wanted, follow, channel)
    finally:
        reader.close()
    return {"offset": offset, "state": node_status(paths)["state"]}


class _Wanted:
    """The filter for lines."""

    def __init__(self, request: Dict[str, Any], channel: Channel) -> None:
        ranks, pattern = request.get("ranks"), request.get("grep")
        self._ranks = None if ranks is None else set(ranks)
        self._search = None if pattern is None else _search(pattern)
        self._channel = channel
        self.all = ranks is None and pattern is None

    def __call__(self, value: Dict[str, Any]) -> bool:
        if self._ranks is not None and value.get("r") not in self._ranks:
            return False
        if self._search is None:
            return True
        return not self._channel.closed.is_set() and self._found(str(value["x"]))

    def _found(self, text: str) -> bool:
        """Search a line. The timer's signal interrupts a search that takes too long; nothing else could."""
        assert self._search is not None
        signal.setitimer(signal.ITIMER_VIRTUAL, LINE_SEARCH_S)
        try:
            return self._search(text) is not None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _search(pattern: str) -> Any:
    signal.signal(signal.SIGVTALRM, _too_long)
    try:
        return re.compile(pattern).search
    except re.error as error:  # this Python may be older than the controller's, which accepted the pattern
        raise WorkerError(BAD_REQUEST, "its Python cannot read the pattern: %s" % error) from None


def _too_long(_number: int, _frame: Any) -> None:
    hint = "write a simpler pattern: one without a repeat inside a repeat, such as (a+)+"
    raise WorkerError(BAD_REQUEST, "the pattern takes more than %g s for one line" % LINE_SEARCH_S, hint)


class _Follow:
    """Decides when a followed run is over, and sends changes of its state."""

    def __init__(self, paths: RunPaths, channel: Channel) -> None:
        self._paths, self._channel = paths, channel
        self._judge_at = 0.0
        self._stale: Optional[bool] = None  # as last sent
        self._stuck: Optional[Dict[str, Any]] = None  # as last sent
        self._late = False  # whether the checkpoints are far behind, as last sent

    def over(self) -> bool:
        """Return whether nothing more can come. Call it before a read that may find nothing."""
        if os.path.exists(self._paths.exit):
            return True
        now = time.monotonic()
        if now < self._judge_at:
            return False
        self._judge_at = now + JUDGE_RUN_S
        refuse_elsewhere(self._paths)  # the end of a run on another machine may never show here
        status = node_status(self._paths)
        stale = status["state"] == STALE or (bool(status["note"]) and status["state"] != QUEUED)
        if status["state"] not in TERMINAL and stale != self._stale:
            self._stale = stale
            state = STALE if stale else status["state"]
            self._channel.send({"state": state, "heartbeat_age_s": status["heartbeat_age_s"]})
        stuck = status["diagnosis"]
        if status["node_rank"] == 0 and _who(stuck) != _who(self._stuck):
            self._stuck = stuck
            self._channel.send({"stuck": stuck})
        lag = status["lag"]
        if lag is not None and lag["late"] != self._late:
            self._late = lag["late"]
            self._channel.send({"lag": lag})
        return status["state"] in TERMINAL


def _who(stuck: Optional[Dict[str, Any]]) -> Any:
    """Return the part of a diagnosis that makes it news. Its sentence changes with every second of the wait."""
    return None if stuck is None else (stuck.get("time"), stuck.get("suspects"))


def _stream(reader: Reader, offset: int, wanted: _Wanted, follow: Optional[_Follow], channel: Channel) -> int:
    reached_end = follow is None  # whether a frame without ``more`` has been sent
    ahead: Optional[Batch] = None
    while not channel.closed.is_set():
        over = follow is None or follow.over()  # before the read, which then sees all lines written until now
        batch = ahead or reader.read(offset, LOG_FRAME_BYTES)
        offset = batch.offset
        ahead = reader.read(offset, LOG_FRAME_BYTES) if batch.records else None
        if ahead is not None and not ahead.records:
            ahead = None
        lines = _columns(batch, wanted)
        if lines["text"] or not (reached_end or ahead):
            channel.send({"lines": lines, "offset": offset, "more": ahead is not None})
        reached_end = ahead is None
        if not batch.records:
            if over:
                break
            time.sleep(LOG_POLL_S)
    return offset


def _columns(batch: Batch, wanted: _Wanted) -> Dict[str, List[Any]]:
    """Return the lines of a batch as a list for each field.

    This is half the size of a list of objects, and takes a third of the time.
    """
    values = decode_all([line for _, line in batch.records])
    ends = [end for end, _ in batch.records]
    if wanted.all and None not in values:
        found = cast(List[Dict[str, Any]], values)
    else:
        pairs = zip(ends, values)  # noqa: B905  (Python 3.8)
        kept = [(end, value) for end, value in pairs if value is not None and wanted(value)]
        ends, found = [end for end, _ in kept], [value for _, value in kept]
    lines: Dict[str, List[Any]] = {
        "rank": [value.get("r") for value in found],
        "stream": [STREAMS.get(value.get("s", ""), "stderr") for value in found],
        "time": [value.get("t", 0.0) for value in found],
        "text": [value["x"] for value in found],
        "end": [value.get("e", "\n") for value in found],
        "offset": ends,
        "attempt": [value.get("a", 1) for value in found],
    }
    if batch.skipped:
        _put_first(lines, _gap(batch.skipped, ends[0] if ends else batch.offset, found[0] if found else {}))
    return lines


def _put_first(lines: Dict[str, List[Any]], line: Dict[str, Any]) -> None:
    for name, column in lines.items():
        column.insert(0, line[name])


def _gap(size: int, offset: int, following: Dict[str, Any]) -> Dict[str, Any]:
    text = "ddpctl: %d bytes of the log are no longer kept here" % size
    moment = following.get("t", time.time())
    where = {"rank": None, "stream": "stderr", "time": moment, "offset": offset, "attempt": 1}
    return dict(where, text=text, end="\n")


def _start(folder: str, reader: Reader, request: Dict[str, Any], wanted: _Wanted) -> int:
    """Return the offset of the first requested line."""
    lines, since, ago = request.get("lines"), request.get("since"), request.get("ago")
    if ago is not None:
        since = time.time() - ago  # by the clock of the lines' times
    return max(
        0 if lines is None else before_last(folder, int(lines), wanted),
        0 if since is None else at_time(folder, reader, float(since)),
    )


def at_time(folder: str, reader: Reader, since: float) -> int:
    """Return the offset of the first line of this time or later, or of the log's end.

    Times in a log may be a little out of order. All lines after the first are shown, whatever their times.
    """
    offset = 0
    for segment in segments(folder):
        first = reader.read(segment.start, 1).records
        if first and _time(first[0][1]) >= since:
            break
        offset = segment.start
    while True:
        batch = reader.read(offset, LOG_FRAME_BYTES)
        if not batch.records:
            return batch.offset
        for end, line in batch.records:
            if _time(line) >= since:
                return end - len(line) - 1
        offset = batch.offset


def _time(line: bytes) -> float:
    value = decode(line)
    return 0.0 if value is None else float(value.get("t", 0.0))


def before_last(folder: str, count: int, wanted: Callable[[Dict[str, Any]], bool]) -> int:
    """Return the offset before the last ``count`` wanted lines.

    A piece without a line end belongs to the line that it begins.
    """
    seen = 0
    best: Optional[int] = None
    for segment in reversed(segments(folder)):
        for offset, line in backwards(segment):
            value = decode(line)
            if value is None or not wanted(value):
                continue
            if value.get("e") or best is None:
                if seen == count:
                    return best if best is not None else offset + len(line) + 1
                seen += 1
            best = offset
    return best or 0
