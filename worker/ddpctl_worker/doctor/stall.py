"""When a run may be stuck, from what its ranks show every few seconds. Pure: fed with times on one monotonic clock.

It does not say that the run is stuck, only that it is time to look closely (``verdict.py`` decides then): nobody has
entered or left a collective for longer than the stall and longer than this run ever paused before, while somebody
waits in one, or while no rank does any work at all.

While nobody is found stuck, because work excuses the rank that the others wait for, the looks get rarer. What may end
an excuse brings the next one forward: a rank that works less, ends or wakes, and the time that an excuse is good for.
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
from ddpctl_worker.rules.verdict import BUSY_BYTES, BUSY_CPU, BUSY_FACTOR, MOVING_FACTOR


class _Known:
    """What is known of one rank."""

    def __init__(self) -> None:
        self.seen = 0.0
        self.place: Optional[Tuple[Any, ...]] = None
        self.pending: Optional[float] = None  # since when it is in a collective
        self.idle = False
        self.work = 0  # as far as it may excuse a pause: 2 it reads or writes, 1 it computes

    def fresh(self, now: float) -> bool:
        return now - self.seen < GLANCE_FRESH_S


class Stall:
    """``feed`` it with every glance at a rank; ``due`` says when to look closely."""

    def __init__(self, stall: float) -> None:
        self._stall = stall
        self._ranks: Dict[int, _Known] = {}
        self._moved: Optional[float] = None  # when a rank last entered or left a collective
        self._idle: Optional[float] = None  # since when no rank has done any work
        self._looked = self._look_at = 0.0
        self._excused: Optional[float] = None  # since when looks have found nothing stuck
        self.longest = 0.0  # pause that ended by itself, in seconds

    @property
    def limit(self) -> float:
        """Seconds after which a pause is no ordinary one any more."""
        return max(self._stall, LONGER_FACTOR * self.longest)

    def paused_since(self, now: float) -> Optional[float]:
        """Since when nothing moves, where that is no ordinary pause any more; else None."""
        if self._held_up(now):
            return self._moved
        idle = None if self._idle is None else max(self._idle, self._moved or 0.0)
        return idle if idle is not None and self._fresh(now) and now - idle >= self.limit else None

    def feed(self, rank: int, glance: Dict[str, Any], now: float) -> bool:
        """``glance``: ``place`` (changes with every collective that is entered or left; None without a record),
        ``pending`` (seconds in the present one, or None), ``cpu`` (percent of a core), ``bytes`` a second.

        Returns whether the run has moved.
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
        if not all(one.idle for one in self._ranks.values() if one.fresh(now)):
            self._idle = None
        elif self._idle is None:
            self._idle = now
        return moved

    def left(self, rank: int) -> None:
        """The rank has ended: what it showed last says nothing any more."""
        if self._ranks.pop(rank, None) is not None:
            self._look_soon()

    def due(self, now: float, *, diagnosed: bool = False) -> bool:
        """Whether to look closely now. ``diagnosed``: an earlier look has found the run stuck, and another one shows
        whether it still is."""
        if not diagnosed and self.paused_since(now) is None:
            self._look_soon()
            return False
        if not self._ranks or now < self._look_at:
            return False
        self._looked, self._look_at = now, now + LOOK_AGAIN_S
        return True

    def looked(self, now: float, stuck: bool, ends: Iterable[float]) -> bool:
        """A close look is over. ``ends``: in how many seconds what excuses a rank may be over.

        Returns whether the run is stuck, if an earlier look has found it so. Where a record shows that nothing has
        moved since, a rank that works for a while is no proof that it is not.
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
        """Whether somebody waits in a collective and nobody has entered or left one, for longer than the limit."""
        if self._moved is None or now - self._moved < self.limit:
            return False
        return any(one.pending is not None and now - one.pending >= self.limit for one in self._fresh(now))


def excuses_end(waited: float, limit: float, looks: Sequence[Dict[str, Any]]) -> List[float]:
    """In how many seconds what excuses a rank in ``looks`` may be over: verdict.py has the rules.

    ``waited``: for how long the others have waited. A shorter sleep than from one look to the next is one of many.
    """
    ends = [factor * limit - waited for factor in (BUSY_FACTOR, MOVING_FACTOR)]
    sleepers = [one for look in looks for one in (look, *(look.get("children") or ()))]
    sleeps = [float(one["sleep_s"]) for one in sleepers if one.get("sleep_s") is not None]
    return ends + [sleep for sleep in sleeps if sleep > LOOK_AGAIN_S]


def _work(glance: Dict[str, Any]) -> int:
    if float(glance.get("bytes") or 0.0) >= BUSY_BYTES:
        return 2
    return 1 if float(glance.get("cpu") or 0.0) >= BUSY_CPU else 0
