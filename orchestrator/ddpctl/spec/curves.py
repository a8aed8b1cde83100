"""Curves of a job's metrics over its whole run, combined from the metrics of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Annotated, Any, Literal

from pydantic import Field

from ddpctl.spec.bounds import Count, Figure, Flag, Short
from ddpctl.spec.limits import MOST_GRID_VALUES, MOST_POINTS
from ddpctl.spec.metrics import RATE, job_value
from ddpctl_worker.rules.thinned import Thinned

Points = Sequence[tuple[float, float]]
Axis = Literal["step", "epoch", "line"]


@dataclass(frozen=True)
class RankCurve:
    """A metric of a rank in an attempt. ``not_finite_at``: the x of the first NaN or infinite value."""

    points: Annotated[tuple[tuple[Figure, Figure], ...], Field(max_length=500)]
    count: Count
    not_finite: Count
    not_finite_at: Figure | None


@dataclass(frozen=True)
class RankCurves:
    """The metrics of a rank in an attempt, by name."""

    axis: Axis
    sampled: Flag
    series: Annotated[Mapping[Short, RankCurve], Field(max_length=200)]


@dataclass(frozen=True)
class CurveLine:
    """A part of a curve: within one attempt, and with growing x."""

    attempt: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A metric over all attempts.

    ``axis``: the meaning of x (step, epoch, line). ``not_finite``: the number of NaN and infinite values, which are in
    no line; ``not_finite_at``: the x of the first. ``sampled``: a file was too long to be read as a whole.
    """

    name: str
    axis: str
    lines: tuple[CurveLine, ...]
    count: int
    not_finite: int = 0
    not_finite_at: float | None = None
    sampled: bool = False

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """Return the points of all lines, in the order of the lines."""
        return tuple(point for line in self.lines for point in line.points)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "lines": [vars(line) for line in self.lines]}


def curves(attempts: Sequence[Mapping[str, Mapping[str, RankCurves]]]) -> tuple[Curve, ...]:
    """Return the curves of a job, the loss first. ``attempts``: for each host, attempt -> rank -> its curves."""
    ranks: dict[int, list[RankCurves]] = {}
    for host in attempts:
        for attempt, of_rank in host.items():
            ranks.setdefault(int(attempt), []).extend(of_rank[rank] for rank in sorted(of_rank, key=_number))
    names = dict.fromkeys(name for attempt in sorted(ranks) for rank in ranks[attempt] for name in rank.series)
    return tuple(_curve(name, ranks) for name in sorted(names, key=_place))


def _number(rank: str) -> int:
    return int(rank or -1)


def _place(name: str) -> tuple[int, str]:
    """Return the sort key of a metric: the loss, then the accuracy, then rates, then the rest."""
    if "loss" in name:
        return 0, name
    return (2, name) if name.endswith(RATE) else (1 if "acc" in name else 3, name)


def _curve(name: str, ranks: Mapping[int, Sequence[RankCurves]]) -> Curve:
    lines: list[CurveLine] = []
    for attempt in sorted(ranks):
        series = [rank.series[name].points for rank in ranks[attempt] if name in rank.series]
        filled = [points for points in series if points]
        lines += [CurveLine(attempt, tuple(points)) for points in _of_job(name, filled)]
    having = [rank for attempt in ranks.values() for rank in attempt if name in rank.series]
    every = [rank.series[name] for rank in having]
    return Curve(
        name,
        axis=next((rank.axis for rank in having), "line"),
        lines=tuple(lines),
        count=sum(part.count for part in every),
        not_finite=sum(part.not_finite for part in every),
        not_finite_at=min((part.not_finite_at for part in every if part.not_finite_at is not None), default=None),
        sampled=any(rank.sampled for rank in having),
    )


def _of_job(name: str, ranks: Sequence[Points]) -> Iterator[Points]:
    """Yield the lines of an attempt: a single rank's lines as they are, or the lines of several ranks combined."""
    if len(ranks) == 1:
        yield from growing_curves(ranks[0])
        return
    for parts in zip_longest(*(list(growing_curves(points)) for points in ranks)):
        yield combine_curves(name, [part for part in parts if part])


def growing_curves(points: Points) -> Iterator[Points]:
    """Cut the points where x goes back: there a rank resumed from an earlier checkpoint."""
    cuts = [place for place, (before, after) in enumerate(pairwise(points), 1) if after[0] < before[0]]
    for begin, end in pairwise([0, *cuts, len(points)]):
        if begin < end:
            yield [(x, y) for x, y in points[begin:end]]


def combine_curves(name: str, ranks: Sequence[Points]) -> Points:
    """Return the curve of the job: at every x of any rank, the values of all ranks, combined by ``together``.

    Between two points of a rank its value is interpolated. Before its first and after its last point it is constant.
    """
    if len(ranks) == 1:
        return ranks[0]
    grid = sorted({x for points in ranks for x, _ in points})
    grid = grid[:: 1 + len(grid) * len(ranks) // MOST_GRID_VALUES]
    columns = zip(*(list(_at(points, grid)) for points in ranks), strict=True)
    return thin_curve([(x, job_value(name, values)) for x, values in zip(grid, columns, strict=True)], MOST_POINTS)


def thin_curve(points: Points, most: int) -> Points:
    """Return at most ``most`` of the points: both ends, and the extremes of every stretch."""
    kept = Thinned(most)
    for x, y in points:
        kept.add(x, y)
    return [(x, y) for x, y in kept.points(most)]


def _at(points: Points, grid: Sequence[float]) -> Iterator[float]:
    """Yield the values at all x of ``grid``. Both ``grid`` and the x of the points are sorted."""
    place = 0
    for x in grid:
        while place + 1 < len(points) and points[place + 1][0] <= x:
            place += 1
        (x0, y0), (x1, y1) = points[place], points[min(place + 1, len(points) - 1)]
        yield y0 if x <= x0 or x1 <= x0 else y0 + (y1 - y0) * ((x - x0) / (x1 - x0))
