"""A benchmark as one self-contained page with its charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pygal
from pygal.style import Style

from ddpctl.render.bench import (
    PAIRS_HEAD,
    SCALING_HEAD,
    WHOLE_HEAD,
    pair_rows,
    scaling_rows,
    verdict,
    whole_rows,
)
from ddpctl.render.page import page, table
from ddpctl.spec.bench import NetworkReport, ScalingReport

# The page's own colours, so that a chart is light where the page is light.
_STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--ink)",
    foreground_strong="var(--ink)",
    foreground_subtle="var(--line)",
    guide_stroke_color="var(--line)",
    major_guide_stroke_color="var(--line)",
    colors=("var(--info)", "var(--soft)", "var(--warning)", "var(--ok)"),
    font_family="system-ui, sans-serif",
    label_font_size=12,
    major_label_font_size=12,
    title_font_size=13,
    legend_font_size=13,
    value_label_font_size=12,
)
_WIDTH, _HEIGHT = 720, 360  # of the picture's own units; it grows and shrinks with the page

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, x: str, y: str, ticks: Mapping[float, str] | None = None) -> str:
    """Lines through points; ``ticks`` labels places of the x axis (default: the places of the points)."""
    places = ticks or {place: f"{place:g}" for points in series.values() for place, _ in points}
    top = max((value for points in series.values() for _, value in points), default=0.0)
    chart = pygal.XY(
        style=_STYLE,
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


def scaling_html(report: ScalingReport) -> str:
    """Speed-up against the ideal one, samples per second, and the table."""
    rows = [row for row in report.rows if row.parallel == "ddp"]
    ideal = [(float(row.processes), float(row.processes)) for row in rows]
    lines = {"measured": [(float(row.processes), report.speed_up(row)) for row in rows], "ideal": ideal}
    for row in report.rows:
        if row.parallel == "dp":
            lines["DataParallel"] = [(float(row.devices), report.speed_up(row))]
    parts = [
        _head("ddpctl bench scaling", report.job, f"cluster {report.cluster}"),
        _section("Speed-up", line_chart(lines, x="processes", y="speed-up")),
        _section("Figures", table(SCALING_HEAD, scaling_rows(report))),
        _note(
            "Speed-up: samples per second by those of the first row, per process. Communication: the share of the time "
            "in which a rank sends gradients or waits for another rank. The slowest rank is the one that waits least."
        ),
    ]
    shares = [(float(row.processes), row.figures.comm_share) for row in rows if row.figures.comm_share is not None]
    if len(shares) > 1:
        picture = line_chart(
            {"share of time": [(x, 100 * share) for x, share in shares]}, x="processes", y="communication, %"
        )
        parts.insert(2, _section("Time in communication", picture))
    return page(f"scaling of {report.job}", parts)


def network_html(report: NetworkReport) -> str:
    """Bandwidth over message size, and the pairs."""
    points = [(math.log2(one.size), one.busbw_gb_s) for one in report.whole]
    ticks = bytes_ticks([one.size for one in report.whole])
    warnings = "".join(f'<article class="warning"><p>{escape(line)}</p></article>' for line in verdict(report))
    calm = "".join(f"<p>{escape(line)}</p>" for line in verdict(report))
    chart = line_chart({"all hosts": points}, x="message size", y="bus bandwidth, GB/s", ticks=ticks)
    parts = [
        _head("ddpctl bench network", report.cluster, f"{len(report.hosts)} hosts, {report.backend}"),
        _section("Verdict", warnings if report.slow else calm),
        _section("Bandwidth over message size", chart),
        _section("Pairs of hosts", table(PAIRS_HEAD, pair_rows(report))),
        _section("All hosts together", table(WHOLE_HEAD, whole_rows(report.whole))),
    ]
    return page(f"network of {report.cluster}", parts)


def _head(what: str, title: str, facts: str) -> str:
    return (
        f'<header><p class="what">{escape(what)}</p><h1>{escape(title)}</h1>'
        f'<p class="soft">{escape(facts)}</p></header>'
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _note(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'
