"""Which checkpoint a start resumes from, whose it is, and how that is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddpctl.spec.origin import Origin
from ddpctl.spec.times import elapsed, lasting
from ddpctl_worker.checkpoint.complete import moment
from ddpctl_worker.checkpoint.entries import step_of

Row = Sequence[str]  # writer, entry, version, time: a checkpoint on a host, in short


@dataclass(frozen=True)
class Start:
    """A run that was started with the job's folder for checkpoints; ``since``: ISO 8601, by the host's clock."""

    run: str
    since: str
    origin: Origin | None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Start:
        origin = data.get("origin")
        return Start(data["run"], data["since"], Origin.from_json(origin) if origin else None)


@dataclass(frozen=True)
class Resumed:
    """The newest checkpoint that a start finds, and the run that saved it (None: not on record)."""

    entry: str
    time: str
    start: Start | None = None

    def line(self, now: datetime) -> str:
        """``resumes from step_120 (step 120, saved 4 min ago by run R); `ddpctl up --fresh` starts without it``."""
        step = step_of(self.entry)
        age = elapsed(self.time, now.isoformat())
        words = [] if step is None else [f"step {step}"]
        saved = "saved" if age is None else f"saved {lasting(max(0.0, age))} ago"
        words.append(f"{saved} by run {self.start.run}" if self.start else saved)
        return f"resumes from {self.entry} ({', '.join(words)}); `ddpctl up --fresh` starts without it"


def newest(rows: Mapping[str, Sequence[Row]], starts: Mapping[str, Sequence[Start]]) -> Resumed | None:
    """The newest of the checkpoints that the hosts have; None where they have none. Both by host."""
    every = [(host, row) for host, known in rows.items() for row in known]
    if not every:
        return None
    host, (_, entry, _, time) = max(every, key=lambda one: (moment(one[1][3]), one[0] == one[1][0], one[1][1], one[0]))
    return Resumed(entry, time, start_of(time, starts.get(host, ())))


def start_of(time: str, starts: Sequence[Start]) -> Start | None:
    """The last run that had started by then; None: all of those on record started later."""
    before = [one for one in starts if moment(one.since) <= moment(time)]
    return max(before, key=lambda one: moment(one.since), default=None)
