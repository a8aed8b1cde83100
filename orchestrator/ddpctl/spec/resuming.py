"""The checkpoint that a start resumes from, the run that saved it, and the line that says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddpctl.spec.bounds import Name
from ddpctl.spec.origin import Origin
from ddpctl.spec.times import duration_seconds, elapsed
from ddpctl_worker.rules.entries import step_of
from ddpctl_worker.rules.order import oldest_first, when_of

Row = Mapping[str, Any]  # the summary of a checkpoint on a host (ddpctl_worker.checkpoint.listing.summarize)


@dataclass(frozen=True)
class Start:
    """A run that used the checkpoint folder of the job."""

    run: Name
    origin: Origin | None


@dataclass(frozen=True)
class Resumed:
    """The newest checkpoint that a start finds, and the run that saved it (None: no host has a record of the run)."""

    entry: str
    time: str
    start: Start | None = None

    def line(self, now: datetime) -> str:
        """Return the line for the user.

        ``resumes from step_120 (step 120, saved 4 min ago by run R); `ddpctl up --fresh` starts without it``
        """
        step = step_of(self.entry)
        age = elapsed(self.time, now.isoformat())
        words = [] if step is None else [f"step {step}"]
        saved = "saved" if age is None else f"saved {duration_seconds(max(0.0, age))} ago"
        words.append(f"{saved} by run {self.start.run}" if self.start else saved)
        return f"resumes from {self.entry} ({', '.join(words)}); `ddpctl up --fresh` starts without it"


def newest_resumed(rows: Mapping[str, Sequence[Row]], starts: Mapping[str, Sequence[Start]]) -> Resumed | None:
    """Return the newest checkpoint that any host has.

    ``None`` if there is no checkpoint. Both arguments are by host.
    """
    every = [row for of_host in rows.values() for row in of_host]
    if not every:
        return None
    row = oldest_first(every, when_of, lambda row: (row["writer"], row["version"]))[-1]
    return Resumed(row["entry"], row["time"], start_of(row["run"], starts))


def start_of(run: str | None, starts: Mapping[str, Sequence[Start]]) -> Start | None:
    """Return the start of ``run``; ``None`` if no host has a record of it."""
    return next((start for of_host in starts.values() for start in of_host if start.run == run), None)
