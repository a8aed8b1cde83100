"""Line charts as SVG, drawn by pygal in the colours of the page's style sheet."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

# The page's own colours, so that a chart is light on a light page.
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
_SMALL = {"label_font_size": 14, "major_label_font_size": 14, "stroke_width": "2", "stroke_opacity": "1"}
_WIDTH, _HEIGHT = 720, 360  # in the picture's own units; it scales with the page

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, x: str, y: str, ticks: Mapping[float, str] | None = None) -> str:
    """Return lines through points; ``ticks`` labels places of the x axis (default: the places of the points)."""
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


def curve_chart(lines: Sequence[Points], *, resumed: Sequence[float] = ()) -> str:
    """Return a curve with a line for each attempt: the newest stands out, and dashes mark where later attempts began.

    The picture is small: two fit side by side, and a phone shows a whole picture. pygal gets places from 0 to 1 with
    labels, because its own label algorithm does not end for values that are very large, very small or very close
    together.
    """
    across = Axis.of([x for points in lines for x, _ in points])
    upward = Axis.of([y for points in lines for _, y in points], rooted=True)
    pygal = _pygal()
    colors = ("var(--soft)",) * (len(resumed) + len(lines) - 1) + ("var(--info)",)
    chart = pygal.XY(
        style=pygal.style.Style(**{**_STYLE, **_SMALL, "colors": colors}),
        js=[],
        disable_xml_declaration=True,
        width=480,
        height=250,
        margin=6,
        margin_right=22,  # half of the last label
        show_legend=False,
        truncate_label=-1,
        show_x_guides=False,
        show_y_guides=True,
        range=(0, 1),
        xrange=(0, 1),
    )
    chart.x_labels = across.labels(short_number)
    chart.y_labels = upward.labels(lambda value: short_number(value, thousands=1e3))
    for x in resumed:
        place = across.place(x)
        chart.add(None, [(place, 0), (place, 1)], show_dots=False, stroke_style={"dasharray": "4, 4"})
    for points in lines:
        placed = [(across.place(x), upward.place(y)) for x, y in points]
        chart.add(None, placed, show_dots=len(points) == 1)
    chart.add_xml_filter(_without_scripts)
    return str(chart.render(is_unicode=True))


def use_picture(values: Sequence[float | None]) -> str:
    """Return percentages over time as an area, on a ground that is missing where the value is unknown.

    pygal's pictures are too large for a row of a table.
    """
    shapes = ""
    for begin, end in _known(values):
        steps = "".join(f"V{100 - (values[place] or 0.0):.0f}H{place + 1}" for place in range(begin, end))
        shapes += f'<rect x="{begin}" width="{end - begin}" height="100"/><path d="M{begin} 100{steps}V100Z"/>'
    return f'<svg class="use" viewBox="0 0 {len(values)} 100" preserveAspectRatio="none">{shapes}</svg>'


def _known(values: Sequence[float | None]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each stretch of known values."""
    begin = 0
    for known, stretch in groupby(values, key=lambda value: value is not None):
        end = begin + len(list(stretch))
        if known:
            yield begin, end
        begin = end


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; the place of a value on it is between 0 and 1."""

    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float], *, rooted: bool = False) -> Axis:
        """Return the axis of these values. ``rooted``: from 0 if that costs little space, else with some margin."""
        low, high = float(min(values)), float(max(values))
        if high == low:
            room = abs(low) / 10 or 1.0
            return Axis(low - room, high + room)
        room = (high - low) / 20 if rooted else 0.0
        return Axis(0.0 if rooted and 0 <= low < high / 2 else low - room, high + room)

    def place(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def labels(self, text: Callable[[float], str]) -> list[dict[str, Any]]:
        """Return up to five round numbers with their places; numbers with equal text appear once."""
        found = {text(value): self.place(value) for value in reversed(self._round_numbers())}
        return [{"value": place, "label": label} for label, place in reversed(found.items())]

    def _round_numbers(self) -> list[float]:
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
        step = next((size * power for size in (1, 2, 5) if size * power >= rough), 10 * power)
        if not step:
            return [self.low, self.high]
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


def short_number(value: float, *, thousands: float = 1e4) -> str:
    """Return at most four digits: ``0.0312``, ``5120``, ``12.5k``, ``3.2M``, ``1e-05``.

    ``thousands``: the least value that gets a ``k``.
    """
    for unit, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, thousands)):
        if least <= abs(value) < 1e12:
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}"


def _pygal() -> Any:
    """Import pygal when a chart is drawn, without the import hook that it leaves.

    The hook is for maps and has no ``find_spec``: with it, Python 3.11 warns at every module that is not found. pygal's
    other change stays: importlib_metadata's finder replaces Python's own, which no longer finds any package.
    """
    import pygal
    import pygal.style

    sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return pygal


def _without_scripts(tree: Any) -> Any:
    """Remove pygal's script for tooltips, which the page would load from a network."""
    for parent in tree.iter():
        for child in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(child)
    return tree


def bytes_ticks(sizes: Sequence[int]) -> dict[float, str]:
    """Return the places of message sizes on a logarithmic axis (base 2), with their names."""
    return {math.log2(size): size_text(size) for size in sizes}


def size_text(size: float) -> str:
    """Return a size as ``64 KiB``: three digits and a unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1023.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
