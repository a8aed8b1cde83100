"""Orders saves by age. Pure.

Attempts have an order of their own (attempts.py). Within an attempt, saves whose times come from the clock of the same
host are in the order of that clock. Clocks of two hosts are never compared: their saves are merged by step.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Tuple, TypeVar

from ddpctl_worker.rules.attempts import AttemptId, attempt_of
from ddpctl_worker.rules.entries import step_of

T = TypeVar("T")


class When(NamedTuple):
    """The time of a save. ``clock`` is the host that measured ``moment`` (seconds since 1970)."""

    attempt: AttemptId
    clock: str
    moment: float
    entry: str

    def is_newer(self, than: When) -> bool:
        """Return whether this save is newer than another save of the same series."""
        if self.attempt != than.attempt:
            return self.attempt > than.attempt
        if self.clock == than.clock:
            return self.moment > than.moment
        return (step_of(self.entry) or 0) > (step_of(than.entry) or 0)


def when_of(found: Mapping[str, Any]) -> When:
    """Return the time of a save from its manifest or from a row with the same fields."""
    return When(attempt_of(found), found["clock"], moment_of(found["time"]), found["entry"])


def oldest_first(found: Iterable[T], when: Callable[[T], When], rest: Callable[[T], Any]) -> List[T]:
    """Return the saves in the same order on every host; ``rest`` decides between saves that are equal otherwise."""
    clocks: Dict[Tuple[AttemptId, str], List[T]] = {}
    for save in sorted(found, key=lambda save: (when(save), rest(save)), reverse=True):
        clocks.setdefault(when(save)[:2], []).append(save)
    ordered: List[T] = []
    for attempt in sorted({attempt for attempt, _ in clocks}):
        left = [saves for (of, _), saves in sorted(clocks.items()) if of == attempt]
        while left:
            first = min(left, key=lambda saves: step_of(when(saves[-1]).entry) or 0)
            ordered.append(first.pop())
            left = [saves for saves in left if saves]
    return ordered


def moment_of(time: str) -> float:
    """Return an ISO 8601 time with a zone as seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()
