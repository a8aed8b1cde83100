"""Line charts as SVG in a page, drawn by pygal in the colours of the page's style sheet."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# The page's own colours, so that a chart is light where the page is light.
_STYLE = {
    "background": "transparent",
    "plot_background": "transparent",
    "foreground": "var(--ink)",
    "foreground_strong": "var(--ink)",
    "foreground_subtle": "var(--line)",
    "guide_stroke_color": "var(--line)",
    "major_guide_stroke_color": "var(--line)",
    "colors": ("var(--info)", "var(--soft)", "var(--warning)", "var(--ok)"),
    "font_family": "system-ui, sans-serif",
    "label_font_size": 12,
    "major_label_font_size": 12,
    "title_font_size": 13,
    "legend_font_size": 13,
    "value_label_font_size": 12,
}
_WIDTH, _HEIGHT = 720, 360  # of the picture's own units; it grows and shrinks with the page

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, x: str, y: str, ticks: Mapping[float, str] | None = None) -> str:
    """Lines through points; ``ticks`` labels places of the x axis (default: the places of the points)."""
    places = ticks or {place: f"{place:g}" for points in series.values() for place, _ in points}
    top = max((value for points in series.values() for _, value in points), default=0.0)
    pygal = _pygal()
    chart = pygal.XY(
        style=pygal.style.Style(**_STYLE),
        js=[],
        disable_xml_declaration=True,
        width=_WIDTH,
        height=_HEIGHT,
        x_title=x,
        y_title=y,
        show_legend=len(series) > 1,
        legend_at_bottom=True,
        truncate_label=-1,
        show_y_guides=True,
        range=(0, top * 1.05 or 1),
        x_value_formatter=lambda place: places.get(place, f"{place:g}"),
        value_formatter=lambda value: f"{value:.4g}",
    )
    chart.x_labels = [{"value": place, "label": label} for place, label in sorted(places.items())]
    for name, points in series.items():
        chart.add(name, list(points))
    chart.add_xml_filter(_without_scripts)
    return f"<figure>{chart.render(is_unicode=True)}</figure>"


def _pygal() -> Any:
    """Imported when a chart is drawn, without the import hook that it leaves: that one has no ``find_spec``, and is for
    maps. With it, Python 3.11 warns at every module that is not there. What else it adds stays: the finder of
    importlib_metadata takes over from Python's own, which finds no package any more."""
    import pygal
    import pygal.style

    sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return pygal


def _without_scripts(tree: Any) -> Any:
    """pygal adds one for its tooltips, which come from a network; a picture is enough."""
    for parent in tree.iter():
        for child in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(child)
    return tree


def bytes_ticks(sizes: Sequence[int]) -> dict[float, str]:
    """Places of message sizes on a logarithmic axis: the power of two of each, and its name."""
    return {math.log2(size): size_text(size) for size in sizes}


def size_text(size: float) -> str:
    """``64 KiB``: three digits and a unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1023.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
