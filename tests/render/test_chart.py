"""A chart in a page."""

from __future__ import annotations

import sys
from importlib.metadata import distribution

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpctl.render.chart import curve_chart, line_chart, short_number


def test_a_chart_is_a_picture_and_leaves_imports_alone() -> None:
    picture = line_chart({"ddp": [(1, 10.0), (2, 19.0)]}, x="processes", y="samples/s")
    assert "<svg" in picture
    assert "<script" not in picture
    assert all(hasattr(finder, "find_spec") for finder in sys.meta_path)
    assert distribution("pytest").version


FIGURES = st.floats(-1e299, 1e299) | st.integers(-(1 << 53), 1 << 53)


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=6), min_size=1, max_size=3))
@example([[(1, 1e250), (2, -1e250)]])
@example([[(1e299, 5e-324)], [(5e-324, 0.0)]])
@example([[(1, 1.0), (2, 1.0000000000000002)]])
def test_a_curve_of_any_numbers_is_a_picture(lines: list[list[tuple[float, float]]]) -> None:
    picture = curve_chart(lines, resumed=[points[0][0] for points in lines[1:]])
    assert picture.startswith("<svg")
    assert "<script" not in picture
    assert "nan" not in picture


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03123456, "0.03123"), (5120, "5120"), (12_500, "12.5k"), (-3.2e6, "-3.2M"), (1e-5, "1e-05"), (1e250, "1e+250")],
)
def test_a_number_in_a_few_letters(value: float, text: str) -> None:
    assert short_number(value) == text
