"""The measurements of ranks, put together to the curves of the job."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.curves import RankCurve, RankCurves, combine_curves, curves, growing_curves
from ddpctl.spec.limits import MOST_POINTS

FIGURES = st.floats(-1e250, 1e250)
POINTS = st.lists(st.tuples(st.integers(0, 50), FIGURES), max_size=40)


def rank(**names: list[list[float]]) -> RankCurves:
    series = {name: RankCurve(tuple((x, y) for x, y in points), len(points), 0, None) for name, points in names.items()}
    return RankCurves("step", False, series)


def test_a_line_for_each_attempt_and_the_loss_first() -> None:
    first = {"1": {"0": rank(samples_per_s=[[1, 9.0]], loss=[[1, 3.0], [2, 2.0]])}}
    second = {"2": {"0": rank(loss=[[2, 1.9], [3, 1.0]])}}
    found = curves([first, second])
    assert [one.name for one in found] == ["loss", "samples_per_s"]
    assert [(line.attempt, line.points) for line in found[0].lines] == [
        (1, ((1, 3.0), (2, 2.0))),
        (2, ((2, 1.9), (3, 1.0))),
    ]
    assert found[0].count == 4


def test_rates_of_ranks_add_up_and_everything_else_is_averaged() -> None:
    hosts = [
        {"1": {"0": rank(loss=[[0, 1.0], [10, 2.0]], samples_per_s=[[0, 10], [10, 10]])}},
        {"1": {"1": rank(loss=[[0, 3.0], [10, 4.0]], samples_per_s=[[0, 5], [10, 7]])}},
    ]
    loss, speed = curves(hosts)
    assert loss.lines[0].points == ((0, 2.0), (10, 3.0))
    assert speed.lines[0].points == ((0, 15), (10, 17))


def test_between_its_points_a_rank_is_on_the_line_between_them() -> None:
    assert combine_curves("loss", [[(0, 0.0), (10, 10.0)], [(5, 1.0)]]) == [(0, 0.5), (5, 3.0), (10, 5.5)]


def test_between_the_greatest_values_it_is_finite() -> None:
    """JSON has no infinity."""
    far = 10**12
    found = combine_curves("loss", [[(0, -1e299), (far, 1e299)], [(far // 2, 0.0)]])
    assert found == [(0, -5e298), (far // 2, 0.0), (far, 5e298)]


@given(POINTS)
def test_a_step_that_goes_back_begins_a_line_and_no_point_is_lost(points: list[tuple[float, float]]) -> None:
    parts = list(growing_curves(points))
    assert [point for part in parts for point in part] == points
    for part in parts:
        assert part
        assert all(before[0] <= after[0] for before, after in pairwise(part))
    assert all(after[0][0] < before[-1][0] for before, after in pairwise(parts))


@given(st.lists(POINTS.filter(bool), min_size=2, max_size=4))
def test_together_they_stay_between_the_lowest_and_the_highest(ranks: list[list[tuple[float, float]]]) -> None:
    ordered = [sorted(points, key=lambda point: point[0]) for points in ranks]
    values = [y for points in ranks for _, y in points]
    room = 1e-9 * max(abs(value) for value in values)
    found = combine_curves("loss", ordered)
    assert len(found) <= MOST_POINTS
    assert {found[0][0], found[-1][0]} == {min(x for p in ranks for x, _ in p), max(x for p in ranks for x, _ in p)}
    assert all(min(values) - room <= y <= max(values) + room for _, y in found)


def test_many_ranks_with_points_of_their_own_are_bounded() -> None:
    ranks = [[(step + number / 1000, float(number)) for step in range(100)] for number in range(100)]
    found = combine_curves("loss", ranks)
    assert len(found) <= MOST_POINTS
    assert all(y == pytest.approx(49.5) for _, y in found)
