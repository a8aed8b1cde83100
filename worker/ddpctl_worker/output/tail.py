"""The tail verb: a run's log from an absolute offset on, live, whether or not the supervisor is alive."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Iterator, Optional, Set

from ddpctl_worker import notes
from ddpctl_worker.channel import Channel
from ddpctl_worker.contract import STALE, TERMINAL
from ddpctl_worker.output.lines import STREAMS, decode
from ddpctl_worker.output.logs import Reader, backwards, segments
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run.record import named_by
from ddpctl_worker.run.status import node_status, refuse_elsewhere

POLL_S = 0.04
JUDGE_S = 2.0  # how often a quiet run without an exit record is looked at: its supervisor may be dead


def tail(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"lines": [...]} frames, then {"offset", "state"}; with ``follow`` also {"state", "heartbeat_age_s"}
    at the beginning and whenever the supervisor falls silent or its host is cut off (``stale``) or is back, and from
    node rank 0 {"stuck"}: why the run is stuck, and null once it moves again.

    From ``offset``, or from the last ``lines`` lines, or from the beginning; ``ranks`` keeps these ranks only. With
    ``follow`` it ends when the run is over on this node and all is read, or when the reader goes away.
    """
    paths, _ = named_by(request)
    wanted = request.get("ranks")
    ranks = None if wanted is None else set(wanted)
    reader = Reader(paths.logs)
    offset = request.get("offset")
    if offset is None:
        lines = request.get("lines")
        offset = 0 if lines is None else before_last(paths.logs, int(lines), ranks)
    follow = _Follow(paths, channel) if request.get("follow") else None
    try:
        offset = _stream(reader, int(offset), ranks, follow, channel)
    finally:
        reader.close()
    return {"offset": offset, "state": node_status(paths)["state"]}


class _Follow:
    """Knows when a followed run is over."""

    def __init__(self, paths: RunPaths, channel: Channel) -> None:
        self._paths, self._channel = paths, channel
        self._judge_at = 0.0
        self._stale: Optional[bool] = None  # as last told
        self._stuck: Optional[Dict[str, Any]] = None  # as last told

    def over(self) -> bool:
        """Asked before a read that finds nothing: then nothing more can come."""
        if os.path.exists(self._paths.exit):
            return True
        now = time.monotonic()
        if now < self._judge_at:
            return False
        self._judge_at = now + JUDGE_S
        refuse_elsewhere(self._paths)  # its end may never be seen from here
        status = node_status(self._paths)
        stale = status["state"] == STALE or bool(status["note"])
        if status["state"] not in TERMINAL and stale != self._stale:
            self._stale = stale
            state = STALE if stale else status["state"]
            self._channel.send({"state": state, "heartbeat_age_s": status["heartbeat_age_s"]})
        stuck = status["diagnosis"]
        if status["node_rank"] == 0 and _who(stuck) != _who(self._stuck):
            self._stuck = stuck
            self._channel.send({"stuck": stuck})
        return status["state"] in TERMINAL


def _who(stuck: Optional[Dict[str, Any]]) -> Any:
    """What makes a diagnosis news. Its sentence does not: that changes with every second of the wait."""
    return None if stuck is None else (stuck.get("time"), stuck.get("suspects"))


def _stream(reader: Reader, offset: int, ranks: Optional[Set[int]], follow: Optional[_Follow], channel: Channel) -> int:
    while not channel.closed.is_set():
        over = follow is None or follow.over()  # before the read: what was written until now will be seen
        batch = reader.read(offset)
        offset = batch.offset
        lines = list(_shown(batch.records, ranks))
        if batch.skipped:
            lines.insert(0, _gap(batch.skipped, offset if not lines else lines[0]["offset"]))
        if lines:
            channel.send({"lines": lines})
        if not batch.records:
            if over:
                break
            time.sleep(POLL_S)
    return offset


def _shown(records: Any, ranks: Optional[Set[int]]) -> Iterator[Dict[str, Any]]:
    for end, line in records:
        value = decode(line)
        if value is None or (ranks is not None and value.get("r") not in ranks):
            continue
        yield {
            "rank": value.get("r"),
            "stream": STREAMS.get(str(value.get("s")), "stderr"),
            "time": notes.iso(value.get("t", 0.0)),
            "text": value["x"],
            "end": value.get("e", "\n"),
            "offset": end,
            "attempt": value.get("a", 1),
        }


def _gap(size: int, offset: int) -> Dict[str, Any]:
    text = "ddpctl: %d bytes of the log are no longer kept here" % size
    where = {"rank": None, "stream": "stderr", "time": notes.now_iso(), "offset": offset, "attempt": 1}
    return dict(where, text=text, end="\n")


def before_last(folder: str, count: int, ranks: Optional[Set[int]]) -> int:
    """The offset from which exactly the last ``count`` lines (of these ranks) follow. Pieces without an end belong to
    the line that they begin."""
    seen = 0
    best: Optional[int] = None
    for segment in reversed(segments(folder)):
        for offset, line in backwards(segment):
            value = decode(line)
            if value is None or (ranks is not None and value.get("r") not in ranks):
                continue
            if value.get("e") or best is None:
                if seen == count:
                    return best if best is not None else offset + len(line) + 1
                seen += 1
            best = offset
    return best or 0
