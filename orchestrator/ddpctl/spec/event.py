"""What a stage tells while it works; ``render`` draws it live, as lines, or as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ddpctl.errors import DdpctlError


@dataclass(frozen=True)
class StageStarted:
    """A stage begins: ``total`` is how many steps (hosts, bytes, pairs) it has, None when unknown."""

    stage: str
    total: int | None = None
    unit: str = "hosts"


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` on ``host`` (None: overall), in the unit of the stage."""

    stage: str
    done: int
    total: int | None = None
    host: str | None = None
    note: str = ""


@dataclass(frozen=True)
class StageEnded:
    """A stage is over: ``result`` is shown instead of ``ok`` or ``failed``, ``note`` after it."""

    stage: str
    ok: bool
    note: str = ""
    result: str = ""


@dataclass(frozen=True)
class Note:
    """Something a person should read: level is ``info`` or ``warning``."""

    message: str
    level: str = "info"
    host: str | None = None


class Line(NamedTuple):
    """One line that a process of the job wrote; ``time`` in Unix seconds, by the clock of its host.

    ``end`` is what ended it: ``\\n``, ``\\r`` (a progress bar) or nothing (the process has not ended the line yet).
    ``offset`` is the position after this line in the host's log, to go on from; ``attempt`` counts from 1.
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
    """What a fleet calls with each host that is done and its result or error; may be called on any thread."""
    done = itertools.count(1)

    def on_done(host: str, result: object) -> None:
        tell(Progress(stage, next(done), total, host, str(result) if isinstance(result, DdpctlError) else ""))

    return on_done
