"""Which of several saves is the newest one. Pure.

Attempts have an order of their own (attempts.py). Within an attempt, the saves with times of one host's clock are in
the order of that clock. A clock is never compared with another one: saves of different clocks are merged by their
steps.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Tuple, TypeVar

from ddpctl_worker.rules.attempts import AttemptId, attempt_of
from ddpctl_worker.rules.entries import step_of

T = TypeVar("T")


class When(NamedTuple):
    """When an entry was saved. ``clock``: the host by whose clock ``moment`` is (s since 1970)."""

    attempt: AttemptId
    clock: str
    moment: float
    entry: str

    def is_newer(self, than: When) -> bool:
        """Of two entries of one series."""
        if self.attempt != than.attempt:
            return self.attempt > than.attempt
        if self.clock == than.clock:
            return self.moment > than.moment
        return (step_of(self.entry) or 0) > (step_of(than.entry) or 0)


def when_of(found: Mapping[str, Any]) -> When:
    """Of a manifest, or of anything else that says as much."""
    return When(attempt_of(found), found["clock"], moment(found["time"]), found["entry"])


def oldest_first(found: Iterable[T], when: Callable[[T], When], rest: Callable[[T], Any]) -> List[T]:
    """The same order on every host: ``rest`` decides where nothing else does."""
    clocks: Dict[Tuple[AttemptId, str], List[T]] = {}
    for one in sorted(found, key=lambda one: (when(one), rest(one)), reverse=True):
        clocks.setdefault(when(one)[:2], []).append(one)
    ordered: List[T] = []
    for attempt in sorted({attempt for attempt, _ in clocks}):
        left = [saves for (of, _), saves in sorted(clocks.items()) if of == attempt]
        while left:
            first = min(left, key=lambda saves: step_of(when(saves[-1]).entry) or 0)
            ordered.append(first.pop())
            left = [saves for saves in left if saves]
    return ordered


def moment(time: str) -> float:
    """A time in ISO 8601 with its zone, in seconds."""
    return datetime.fromisoformat(time).timestamp()
