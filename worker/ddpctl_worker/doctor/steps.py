"""From the times at which ranks entered their collectives to one lag per rank and step. Pure.

A collective ends when its last rank has entered it, so a slow rank makes all others wait, and every rank's steps take
as long as that rank's. Only the order in which the ranks arrive names the slow one.

1. The *lag* of a rank in a collective is its arrival minus the median arrival of the others.
2. Buckets that follow each other show the same delay again, and a rank may be late because it waited for another one
   in the collective before (gloo's broadcast is a tree: a rank waits for those that it sends to). So a lag counts at
   most from the time at which everyone had entered the rank's collective before this one.
3. DDP has several collectives in a step, and only those after the delay show it. The number of collectives in a step is
   the period of the time between them. Of each step, that collective is taken in which one rank made all others wait
   longest: there the rank that was delayed first is late alone, and nobody who waited for it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Deque, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.doctor.limits import (
    GAP_FLOOR_S,
    KEPT_COLLECTIVES,
    KEPT_STEPS,
    MIN_GAPS,
    MOST_GROUPS,
    MOST_PERIOD,
    PERIOD_FLOOR,
    PERIOD_SLACK,
)

Entries = Mapping[str, Sequence[Tuple[int, float]]]  # group -> (sequence number, arrival in Unix seconds)


class Step(NamedTuple):
    """The collective of a step in which one rank made the others wait longest."""

    at: float  # end of the step, Unix seconds
    seconds: float  # how long the step took
    lags: Dict[int, float]  # rank -> seconds later than the median of the others; below 0: earlier
    own: Dict[int, float]  # the same, less what the rank may have waited itself in the step before it
    last: int  # the rank that came last


class _Row(NamedTuple):
    """A collective that all ranks of the group have entered."""

    seq: int
    middle: float
    lags: Dict[int, float]
    waits: Dict[int, float]  # rank -> seconds until the last rank came
    margin: float  # seconds between the last rank and the one before it
    last: int


class Collectives:
    """The collectives of a job, of a few groups. Feed it what is new, in any order of ranks."""

    def __init__(self) -> None:
        self._groups: Dict[str, ProcessGroup] = {}
        self._all_in: Dict[int, float] = {}  # rank -> when all had entered its last collective, of any group
        self.newest = -math.inf  # the last arrival of all, Unix seconds

    def add(self, reports: Mapping[int, Entries]) -> None:
        """New arrivals: rank -> group -> (sequence number, Unix seconds). What is known already does no harm."""
        for rank, entries in reports.items():
            for name, arrivals in entries.items():
                if arrivals:
                    self._group(name).add(rank, arrivals)
                    self.newest = max(self.newest, max(at for _, at in arrivals))
        ready = [(max(at.values()), seq, name, at) for name, group in self._groups.items() for seq, at in group.ready()]
        for _, seq, name, at in sorted(ready, key=lambda one: one[:3]):
            self._groups[name].entered(seq, at, self._all_in)
            top = max(at.values())
            self._all_in.update(dict.fromkeys(at, top))
        for group in self._groups.values():
            group.close_steps()

    def groups(self) -> List[ProcessGroup]:
        return list(self._groups.values())

    def _group(self, name: str) -> ProcessGroup:
        if name not in self._groups:
            if len(self._groups) >= MOST_GROUPS:
                del self._groups[min(self._groups, key=lambda one: self._groups[one].newest)]
            self._groups[name] = ProcessGroup()
        return self._groups[name]


class ProcessGroup:
    """The collectives of one process group."""

    def __init__(self) -> None:
        self.steps: Deque[Step] = deque(maxlen=KEPT_STEPS)
        self.count = 0  # steps so far, also those that are no longer kept
        self.newest = -math.inf  # the last arrival, Unix seconds
        self._open: Dict[int, Dict[int, float]] = {}  # sequence number -> rank -> arrival
        self._heads: Dict[int, int] = {}  # rank -> its highest sequence number
        self._done = -1
        self._before: Optional[Tuple[int, float]] = None  # sequence number and median arrival of the last collective
        self._gaps: Deque[float] = deque(maxlen=KEPT_COLLECTIVES)
        self._period: Optional[int] = None
        self._fresh = 0  # gaps since that was found
        self._rows: List[_Row] = []  # not yet a step
        self._earlier: List[_Row] = []  # of the step before
        self._end: Optional[float] = None  # of the step before

    def add(self, rank: int, arrivals: Sequence[Tuple[int, float]]) -> None:
        for seq, at in arrivals:
            if seq > self._done:
                self._open.setdefault(seq, {})[rank] = at
            self._heads[rank] = max(self._heads.get(rank, -1), seq)
            self.newest = max(self.newest, at)
        for seq in sorted(self._open)[:-KEPT_COLLECTIVES]:
            del self._open[seq]

    def ready(self) -> List[Tuple[int, Dict[int, float]]]:
        """Takes out the collectives that every rank of the group has entered, in their order.

        One that a rank has passed without reporting it (its record was full) is dropped.
        """
        head, found = min(self._heads.values()), []
        for seq in sorted(seq for seq in self._open if seq <= head):
            at = self._open.pop(seq)
            if len(at) == len(self._heads) > 1:
                found.append((seq, at))
        self._done = max(self._done, head)
        return found

    def entered(self, seq: int, at: Dict[int, float], all_in: Mapping[int, float]) -> None:
        """Collective ``seq`` is complete; ``all_in``: rank -> when all had entered the rank's collective before it."""
        middle = median(at.values())
        follows = self._before is not None and self._before[0] == seq - 1
        if self._before and follows:
            self._gaps.append(middle - self._before[1])
            self._fresh += 1
            self._rows.append(_row(seq, middle, at, all_in))
        else:  # the one before is not known, so neither is how long ago it was
            self._rows, self._earlier, self._end = [], [], None
        self._before = (seq, middle)

    def close_steps(self) -> None:
        """Cuts the collectives into steps. Where in a step the cut is does not matter."""
        count = self._steps_period()
        while count and len(self._rows) >= count:
            rows, self._rows = self._rows[:count], self._rows[count:]
            if self._end is not None:
                self.steps.append(_step(self._earlier, rows, self._end))
                self.count += 1
            self._earlier, self._end = rows, rows[-1].middle
        del self._rows[:-KEPT_COLLECTIVES]

    def _steps_period(self) -> Optional[int]:
        """The number of collectives in a step. It takes most of the time of a judgement, so it is found again when a
        quarter of the gaps is new."""
        if self._period is None or self._fresh >= len(self._gaps) // 4:
            self._period, self._fresh = period(list(self._gaps)), 0
        return self._period


def _row(seq: int, middle: float, at: Dict[int, float], all_in: Mapping[int, float]) -> _Row:
    order = sorted(at, key=lambda rank: at[rank])
    times = [at[rank] for rank in order]
    lags = {}
    for place, rank in enumerate(order):
        lag = at[rank] - _median_without(times, place)
        lags[rank] = _since(lag, at[rank], all_in.get(rank)) if lag > 0 else lag
    last = order[-1]
    margin = _since(times[-1] - times[-2], at[last], all_in.get(last))
    return _Row(seq, middle, lags, {rank: times[-1] - at[rank] for rank in at}, margin, last)


def _since(lag: float, arrival: float, start: Optional[float]) -> float:
    """The part of ``lag`` that lies after ``start``."""
    return lag if start is None else max(0.0, min(lag, arrival - start))


def _step(earlier: List[_Row], rows: List[_Row], start: float) -> Step:
    place = max(range(len(rows)), key=lambda i: rows[i].margin)
    row, before = rows[place], (earlier + rows[:place])[-len(rows) :]
    own = dict(row.lags)
    for rank, lag in row.lags.items():
        if lag > 0:
            own[rank] = max(0.0, lag - max((one.waits.get(rank, 0.0) for one in before), default=0.0))
    return Step(rows[-1].middle, rows[-1].middle - start, row.lags, own, row.last)


def period(gaps: Sequence[float]) -> Optional[int]:
    """After how many collectives the times between them repeat; None while there are too few.

    The smallest shift for which the gaps differ least from themselves. The median of the differences, so that an
    additional collective now and then (logging) does not matter; logarithms, so that a long pause does not.
    """
    if len(gaps) < MIN_GAPS:
        return None
    logs = [math.log(max(gap, 0.0) + GAP_FLOOR_S) for gap in gaps]
    most = min(MOST_PERIOD, len(logs) // 3)
    misfit = {shift: median(abs(b - a) for a, b in _pairs(logs, shift)) for shift in range(1, most + 1)}
    bound = PERIOD_SLACK * min(misfit.values()) + PERIOD_FLOOR
    return next(shift for shift in misfit if misfit[shift] <= bound)


def _pairs(values: Sequence[float], shift: int) -> Iterable[Tuple[float, float]]:
    return zip(values, values[shift:])  # noqa: B905  (Python 3.8; the last values have no counterpart)


def median(values: Iterable[float]) -> float:
    """The median of a non-empty set of numbers."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2


def _median_without(ordered: Sequence[float], place: int) -> float:
    """The median of ``ordered`` less the one at ``place``."""

    def at(i: int) -> float:
        return ordered[i if i < place else i + 1]

    left = len(ordered) - 1
    return (at(left // 2) + at((left - 1) // 2)) / 2
