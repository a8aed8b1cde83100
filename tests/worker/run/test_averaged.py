"""Averages over a time of any length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.run.averaged import Averaged


def test_each_stretch_has_its_average() -> None:
    made = Averaged(4, 10.0)
    for at, value in ((0.0, 10.0), (9.9, 30.0), (25.0, 5.0), (31.0, None)):
        made.add(at, value)
    assert (made.length, made.values()) == (10.0, [20.0, None, 5.0, None])


def test_stretches_become_longer_and_no_more() -> None:
    made = Averaged(4, 10.0)
    for at in range(0, 160, 10):
        made.add(float(at), float(at))
    assert made.length == 40.0
    assert made.values() == [15.0, 55.0, 95.0, 135.0]


VALUES = st.tuples(st.floats(0, 1e7), st.none() | st.floats(0, 100))


@given(st.lists(VALUES, min_size=1, max_size=60), st.integers(2, 9))
def test_no_value_is_lost(values: list[tuple[float, float | None]], most: int) -> None:
    made = Averaged(most, 1.0)
    for at, value in sorted(values, key=lambda one: one[0]):
        made.add(at, value)
    assert len(made.values()) <= most
    known = [value for _, value in values if value is not None]
    assert sum(total for total, _ in made._sums) == pytest.approx(sum(known))
    assert sum(count for _, count in made._sums) == len(known)
