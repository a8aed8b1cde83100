"""A chart in a page."""

from __future__ import annotations

import sys
from importlib.metadata import distribution

from ddpctl.render.chart import line_chart


def test_a_chart_is_a_picture_and_leaves_imports_alone() -> None:
    picture = line_chart({"ddp": [(1, 10.0), (2, 19.0)]}, x="processes", y="samples/s")
    assert "<svg" in picture
    assert "<script" not in picture
    assert all(hasattr(finder, "find_spec") for finder in sys.meta_path)
    assert distribution("pytest").version
