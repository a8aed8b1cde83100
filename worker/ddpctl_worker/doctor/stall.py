"""When a run may be stuck, from what its ranks show every few seconds. Pure: fed with times on one monotonic clock.

It does not say that the run is stuck, only that it is time to look closely (``verdict.py`` decides then): nobody has
entered or left a collective for longer than the stall and longer than this run ever paused before, while somebody
waits in one, or while no rank does any work at all.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

AGAIN_S = 5.0  # from one close look to the next while nothing moves
LONGER = 1.5  # a pause must be this many times as long as any before
IDLE_CPU = 3.0  # percent of a core; less is no work
IDLE_BYTES = 4 << 10  # in a second
FRESH_S = 15.0  # what a rank showed longer ago says nothing


class _Known:
    """What is known of one rank."""

    def __init__(self) -> None:
        self.seen = 0.0
        self.place: Optional[Tuple[Any, ...]] = None
        self.pending: Optional[float] = None  # since when it is in a collective
        self.idle = False

    def fresh(self, now: float) -> bool:
        return now - self.seen < FRESH_S


class Stall:
    """``feed`` it with every glance at a rank; ``due`` says when to look closely."""

    def __init__(self, stall: float) -> None:
        self._stall = stall
        self._ranks: Dict[int, _Known] = {}
        self._moved: Optional[float] = None  # when a rank last entered or left a collective
        self._idle: Optional[float] = None  # since when no rank has done any work
        self._looked = 0.0
        self.longest = 0.0  # pause that ended by itself, in seconds

    @property
    def limit(self) -> float:
        """Seconds after which a pause is no ordinary one any more."""
        return max(self._stall, LONGER * self.longest)

    @property
    def since(self) -> Optional[float]:
        """When the run last moved; None: it never has."""
        return self._moved

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
        if not all(one.idle for one in self._ranks.values() if one.fresh(now)):
            self._idle = None
        elif self._idle is None:
            self._idle = now
        return moved

    def left(self, rank: int) -> None:
        """The rank has ended: what it showed last says nothing any more."""
        self._ranks.pop(rank, None)

    def due(self, now: float) -> bool:
        """Whether to look closely now."""
        if not self._ranks or now - self._looked < AGAIN_S:
            return False
        fresh = [one for one in self._ranks.values() if one.fresh(now)]
        waits = any(one.pending is not None and now - one.pending >= self.limit for one in fresh)
        still = self._moved is not None and now - self._moved >= self.limit
        idle = self._idle is not None and now - max(self._idle, self._moved or 0.0) >= self.limit
        if (waits and still) or (idle and fresh):
            self._looked = now
            return True
        return False
