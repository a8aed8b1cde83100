"""The events that a stage reports while it works. ``render`` shows them live, as lines, or as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ddpctl.errors import DdpctlError


@dataclass(frozen=True)
class StageStarted:
    """A stage begins. ``total`` is the number of its steps (hosts, bytes, pairs); ``None``: unknown."""

    stage: str
    total: int | None = None
    unit: str = "hosts"


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` steps on ``host`` (``None``: on all hosts), in the unit of the stage."""

    stage: str
    done: int
    total: int | None = None
    host: str | None = None
    note: str = ""


@dataclass(frozen=True)
class StageEnded:
    """A stage is over. ``result`` is shown in place of ``ok`` or ``failed``, and ``note`` after it."""

    stage: str
    ok: bool
    note: str = ""
    result: str = ""


@dataclass(frozen=True)
class Note:
    """A message for the user; ``level`` is ``info`` or ``warning``."""

    message: str
    level: str = "info"
    host: str | None = None


class Line(NamedTuple):
    """A line that a process of the job wrote. ``time``: Unix seconds by the clock of its host.

    ``end``: the line end, ``\\n`` or ``\\r`` (a progress bar); empty: the process has not ended the line yet.
    ``offset``: the position after this line in the host's log. ``attempt``: from 1.
    """

    host: str
    rank: int | None
    stream: str
    time: float
    text: str
    end: str = "\n"
    offset: int = 0
    attempt: int = 1


Event = StageStarted | Progress | StageEnded | Note
Tell = Callable[[Event], None]


def counting(stage: str, total: int, tell: Tell) -> Callable[[str, object], None]:
    """Return a callback for a fleet that reports progress for each finished host; any thread may call it."""
    done = itertools.count(1)

    def on_done(host: str, result: object) -> None:
        tell(Progress(stage, next(done), total, host, str(result) if isinstance(result, DdpctlError) else ""))

    return on_done
