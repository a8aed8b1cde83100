"""Decides when a run may be stuck, from the glances at its ranks. Pure: all times are of the same monotonic clock.

``Stall`` does not say that the run is stuck, only that a close look is due (``rules/verdict.py`` then decides). A close
look is due if no rank has entered or left a collective for longer than the stall, and for longer than this run ever
paused before, and in addition

- a rank waits in a collective, or
- no rank does any work at all.

Close looks get rarer while they find nothing stuck, because work excuses the rank for which the other ranks wait. The
next look comes earlier when an excuse may end: a rank works less, ends or wakes, or the time of the excuse is over.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ddpctl_worker.doctor.limits import (
    GLANCE_FRESH_S,
    IDLE_BYTES,
    IDLE_CPU,
    LONGER_FACTOR,
    LOOK_AGAIN_S,
    MOST_LOOK_AGAIN_S,
    QUIET_SHARE,
)
from ddpctl_worker.rules.limits import BUSY_BYTES, BUSY_CPU, BUSY_FACTOR, MOVING_FACTOR


class _Known:
    """The last glance at a rank."""

    def __init__(self) -> None:
        self.seen = 0.0
        self.place: Optional[Tuple[Any, ...]] = None
        self.pending: Optional[float] = None  # when the rank entered its present collective
        self.idle = False
        self.work = 0  # that may excuse a pause: 2 for input and output, 1 for processor time, 0 without work

    def fresh(self, now: float) -> bool:
        return now - self.seen < GLANCE_FRESH_S


class Stall:
    """Takes every glance by ``feed``; ``due`` says when a close look is due."""

    def __init__(self, stall: float) -> None:
        self._stall = stall
        self._ranks: Dict[int, _Known] = {}
        self._moved: Optional[float] = None  # when a rank last entered or left a collective
        self._idle: Optional[float] = None  # when the last rank became idle
        self._looked = self._look_at = 0.0
        self._excused: Optional[float] = None  # the first of the looks in this pause that found nothing stuck
        self.longest = 0.0  # seconds of the longest pause that ended by itself

    @property
    def limit(self) -> float:
        """Seconds after which a pause is no longer an ordinary pause."""
        return max(self._stall, LONGER_FACTOR * self.longest)

    def paused_since(self, now: float) -> Optional[float]:
        """Return the start of the present pause, or ``None`` if the pause is ordinary so far."""
        if self._held_up(now):
            return self._moved
        idle = None if self._idle is None else max(self._idle, self._moved or 0.0)
        return idle if idle is not None and self._fresh(now) and now - idle >= self.limit else None

    def feed(self, rank: int, glance: Dict[str, Any], now: float) -> bool:
        """Take a glance at a rank, and return whether the rank has moved.

        place      changes with every collective that the rank enters or leaves; ``None`` without a record
        pending    seconds in the present collective, or ``None``
        cpu        percent of a core
        bytes      read and written in a second
        """
        known = self._ranks.setdefault(rank, _Known())
        place = None if glance.get("place") is None else tuple(glance["place"])
        moved = place is not None and place != known.place
        pending = glance.get("pending")
        known.seen, known.place = now, place if place is not None else known.place
        known.pending = None if pending is None else now - float(pending)
        known.idle = float(glance.get("cpu") or 0.0) < IDLE_CPU and float(glance.get("bytes") or 0.0) < IDLE_BYTES
        if moved:
            if self._moved is not None:
                self.longest = max(self.longest, now - self._moved)
            self._moved = now
        work = _work(glance)
        if moved or work < known.work:
            self._look_soon()
        known.work = work
        if not all(other.idle for other in self._ranks.values() if other.fresh(now)):
            self._idle = None
        elif self._idle is None:
            self._idle = now
        return moved

    def forget_rank(self, rank: int) -> None:
        """Forget a rank that has ended."""
        if self._ranks.pop(rank, None) is not None:
            self._look_soon()

    def is_due(self, now: float, *, diagnosed: bool = False) -> bool:
        """Return whether a close look is due.

        ``diagnosed``: an earlier look has found the run stuck, and another look shows whether it still is.
        """
        if not diagnosed and self.paused_since(now) is None:
            self._look_soon()
            return False
        if not self._ranks or now < self._look_at:
            return False
        self._looked, self._look_at = now, now + LOOK_AGAIN_S
        return True

    def take_look(self, now: float, stuck: bool, ends: Iterable[float]) -> bool:
        """Take the result of a close look, and return whether an earlier diagnosis still holds.

        ``ends``: seconds until each excuse of a rank may end. A diagnosis holds while the record shows that nothing has
        moved since: a rank that works for a while does not prove that the run moves.
        """
        if stuck:
            self._excused = None
            return True
        self._excused = now if self._excused is None else self._excused
        quiet = now - self._excused
        pause = min(MOST_LOOK_AGAIN_S, max(LOOK_AGAIN_S, QUIET_SHARE * quiet))
        self._look_at = min([self._looked + pause, *(now + end for end in ends if end > 0)])
        return self._held_up(now) and quiet < self.limit

    def _look_soon(self) -> None:
        self._excused = None
        self._look_at = min(self._look_at, self._looked + LOOK_AGAIN_S)

    def _fresh(self, now: float) -> List[_Known]:
        return [one for one in self._ranks.values() if one.fresh(now)]

    def _held_up(self, now: float) -> bool:
        """Return whether a rank waits in a collective, and no rank has moved, for longer than the limit."""
        if self._moved is None or now - self._moved < self.limit:
            return False
        return any(one.pending is not None and now - one.pending >= self.limit for one in self._fresh(now))


def excuses_end(waited: float, limit: float, looks: Sequence[Dict[str, Any]]) -> List[float]:
    """Return the seconds until each excuse in ``looks`` may end: ``rules/verdict.py`` has the rules.

    ``waited``: seconds that the other ranks have waited. A sleep shorter than the time between two looks does not
    count: such sleeps come in series.
    """
    ends = [factor * limit - waited for factor in (BUSY_FACTOR, MOVING_FACTOR)]
    sleepers = [one for look in looks for one in (look, *(look.get("children") or ()))]
    sleeps = [float(one["sleep_s"]) for one in sleepers if one.get("sleep_s") is not None]
    return ends + [sleep for sleep in sleeps if sleep > LOOK_AGAIN_S]


def _work(glance: Dict[str, Any]) -> int:
    if float(glance.get("bytes") or 0.0) >= BUSY_BYTES:
        return 2
    return 1 if float(glance.get("cpu") or 0.0) >= BUSY_CPU else 0
