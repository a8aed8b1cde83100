"""The checkpoint that a start resumes from, the run that saved it, and the line that says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from ddpctl.spec.bounds import Count, Hash, Moment, Name, Place, Unicode
from ddpctl.spec.origin import Origin
from ddpctl.spec.times import duration_seconds, elapsed
from ddpctl_worker.rules.entries import step_of
from ddpctl_worker.rules.order import oldest_first, when_of

Version = Annotated[Unicode, Field(pattern="^([0-9a-f]{32})?$")]  # empty: it is unknown whether the entry is complete


class CheckpointRow(TypedDict):
    """The summary of a checkpoint on a host (ddpctl_worker.checkpoint.listing.summarize): the shared rules read it."""

    writer: Name
    entry: Place
    version: Version
    time: Moment
    clock: Name
    serial: Count
    run: Name | None
    attempt: Count


@dataclass(frozen=True)
class Start:
    """A run that used the checkpoint folder of the job."""

    run: Name
    origin: Origin | None


@dataclass(frozen=True)
class Holdings:
    """The requested files that a node has: complete files with their sizes, and bytes of partial files.

    If the request named a job: ``checkpoints`` of the job, its last ``starts``, and the ``serial`` of the newest start.
    """

    have: Annotated[Mapping[Hash, Count], Field(alias="sizes")]
    partial: Mapping[Hash, Count]
    free: Count
    checkpoints: tuple[CheckpointRow, ...] = ()
    starts: Annotated[tuple[Start, ...], Field(max_length=1000)] = ()
    serial: Count = 0


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


def newest_resumed(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], starts: Mapping[str, Sequence[Start]]
) -> Resumed | None:
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
