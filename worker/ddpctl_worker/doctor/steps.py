"""Computes a lag for each rank and step, from the times at which the ranks entered their collectives. Pure.

A collective ends when its last rank has entered it. So a slow rank makes all other ranks wait, and every rank's steps
take as long as the slow rank's. Only the order of the arrivals shows which rank is slow.

1. The *lag* of a rank in a collective is its arrival minus the median arrival of the other ranks.
2. Buckets that follow each other show the same delay again. A rank may also be late because it waited for another rank
   in the collective before (gloo's broadcast is a tree: a rank waits for the ranks to which it sends). So a lag counts
   at most from the time at which all ranks had entered the rank's previous collective.
3. DDP has several collectives in a step, and only the collectives after the delay show it. The number of collectives in
   a step is the period of the times between them. Each step is represented by the collective in which a single rank
   made the other ranks wait longest: in it only the rank with the original delay is late, and no rank that waited for
   that rank.
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
    """The collective of a step in which a single rank made the other ranks wait longest."""

    at: float  # end of the step, Unix seconds
    seconds: float  # how long the step took
    lags: Dict[int, float]  # rank -> seconds later than the median of the other ranks
    own: Dict[int, float]  # the same, less the rank's own waits during the last step
    last: int  # the rank that came last


class _Row(NamedTuple):
    """A collective that all ranks of the group have entered."""

    seq: int
    middle: float
    lags: Dict[int, float]
    waits: Dict[int, float]  # rank -> seconds until the last rank came
    margin: float  # seconds between the last two arrivals
    last: int


class Collectives:
    """The collectives of a job, of a few process groups. Takes new arrivals in any order of ranks."""

    def __init__(self) -> None:
        self._groups: Dict[str, ProcessGroup] = {}
        self._all_in: Dict[int, float] = {}  # rank -> when its last collective was complete
        self.newest = -math.inf  # the latest arrival in any group, Unix seconds

    def add(self, reports: Mapping[int, Entries]) -> None:
        """Add arrivals: rank -> group -> (sequence number, Unix seconds). A repeated arrival does no harm."""
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
    """The collectives of a process group."""

    def __init__(self) -> None:
        self.steps: Deque[Step] = deque(maxlen=KEPT_STEPS)
        self.count = 0  # all steps so far, kept or not
        self.newest = -math.inf  # the last arrival, Unix seconds
        self._open: Dict[int, Dict[int, float]] = {}  # sequence number -> rank -> arrival
        self._heads: Dict[int, int] = {}  # rank -> its highest sequence number
        self._done = -1
        self._before: Optional[Tuple[int, float]] = None  # sequence number and median arrival of the last collective
        self._gaps: Deque[float] = deque(maxlen=KEPT_COLLECTIVES)
        self._period: Optional[int] = None
        self._fresh = 0  # new gaps since the period was computed
        self._rows: List[_Row] = []  # collectives after the last step
        self._earlier: List[_Row] = []  # collectives of the last step
        self._end: Optional[float] = None  # of the last step, Unix seconds

    def add(self, rank: int, arrivals: Sequence[Tuple[int, float]]) -> None:
        for seq, at in arrivals:
            if seq > self._done:
                self._open.setdefault(seq, {})[rank] = at
            self._heads[rank] = max(self._heads.get(rank, -1), seq)
            self.newest = max(self.newest, at)
        for seq in sorted(self._open)[:-KEPT_COLLECTIVES]:
            del self._open[seq]

    def ready(self) -> List[Tuple[int, Dict[int, float]]]:
        """Remove and return the collectives that every rank of the group has entered, in ascending order.

        A collective is dropped if a rank has passed it without reporting it, because the rank's record was full.
        """
        head, found = min(self._heads.values()), []
        for seq in sorted(seq for seq in self._open if seq <= head):
            at = self._open.pop(seq)
            if len(at) == len(self._heads) > 1:
                found.append((seq, at))
        self._done = max(self._done, head)
        return found

    def entered(self, seq: int, at: Dict[int, float], all_in: Mapping[int, float]) -> None:
        """Take a complete collective. ``all_in``: rank -> the time at which its previous collective was complete."""
        middle = median(at.values())
        follows = self._before is not None and self._before[0] == seq - 1
        if self._before and follows:
            self._gaps.append(middle - self._before[1])
            self._fresh += 1
            self._rows.append(_row(seq, middle, at, all_in))
        else:  # the collective before is unknown, and so is the gap
            self._rows, self._earlier, self._end = [], [], None
        self._before = (seq, middle)

    def close_steps(self) -> None:
        """Cut the collectives into steps. The position of the cut within a step does not matter."""
        count = self._steps_period()
        while count and len(self._rows) >= count:
            rows, self._rows = self._rows[:count], self._rows[count:]
            if self._end is not None:
                self.steps.append(_step(self._earlier, rows, self._end))
                self.count += 1
            self._earlier, self._end = rows, rows[-1].middle
        del self._rows[:-KEPT_COLLECTIVES]

    def _steps_period(self) -> Optional[int]:
        """Return the number of collectives in a step.

        The period takes most of the time of a judgement, so it is computed again only when a quarter of the gaps is
        new.
        """
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
    """Return the part of ``lag`` that lies after ``start``."""
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
    """Return the number of collectives after which the times between them repeat, or ``None`` with too few gaps.

    The period is the smallest shift for which the gaps differ least from the shifted gaps. The median of the
    differences ignores an additional collective now and then (logging); logarithms reduce the weight of a long pause.
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
    """Return the median of a non-empty set of numbers."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Return the median of ``ordered`` without the value at ``place``."""

    def at(i: int) -> float:
        return ordered[i if i < place else i + 1]

    left = len(ordered) - 1
    return (at(left // 2) + at((left - 1) // 2)) / 2
