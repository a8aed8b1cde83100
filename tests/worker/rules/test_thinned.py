"""A series that is thinned out keeps its ends and its extremes, however long it is and in whatever parts it comes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.rules.limits import LEAST_POINTS
from ddpctl_worker.rules.thinned import Thinned

VALUES = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e299, 1e299, allow_nan=False))


@given(st.lists(VALUES, min_size=1, max_size=700), st.integers(0, 60), st.integers(0, 60))
def test_bounded_with_its_ends_and_extremes_and_in_order(values: list[float], most: int, sent: int) -> None:
    kept = Thinned(most)
    for x, y in enumerate(values):
        kept.add(x, y)
    assert kept.count == len(values)
    points = kept.points(sent)
    assert len(points) <= max(LEAST_POINTS, sent)
    assert len(points) <= max(LEAST_POINTS, most)
    whole = [[x, y] for x, y in enumerate(values)]
    assert all(point in whole for point in points)
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert (points[0], points[-1]) == (whole[0], whole[-1])
    assert min(y for _, y in points) == min(values)
    assert max(y for _, y in points) == max(values)


@given(st.lists(VALUES, max_size=40))
def test_a_short_one_stays_whole(values: list[float]) -> None:
    kept = Thinned(100)
    for x, y in enumerate(values):
        kept.add(x, y)
    assert kept.points(100) == [[x, y] for x, y in enumerate(values)]


def test_every_stretch_is_still_there() -> None:
    """A curve, and not only its extremes: no gap of a million steps."""
    kept = Thinned(500)
    for x in range(200_000):
        kept.add(x, x % 1000)
    places = [x for x, _ in kept.points(500)]
    assert 250 <= len(places) <= 500
    assert max(after - before for before, after in pairwise(places)) < 4000
