"""The results of the benchmarks: tables for the terminal, and an HTML page each, with plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.render.chart import bytes_ticks, line_chart, size_text
from ddpctl.render.console import Whole, columns
from ddpctl.render.page import page, table
from ddpctl.spec.bench import NetworkReport, Rank, Reduce, ScalingReport, ScalingRow
from ddpctl.spec.values import plural

SCALING_HEAD = ("nodes", "processes", "samples/s", "speed-up", "efficiency", "in comm", "slowest rank")
PAIRS_HEAD = ("hosts", "bus GB/s", "latency")
WHOLE_HEAD = ("all hosts, size", "time", "bus GB/s")


def scaling_view(report: ScalingReport) -> RenderableType:
    """Return a table with a row for each size."""
    head = Text(f"{report.job}  cluster {report.cluster}", style="bold")
    return Group(head, _table(SCALING_HEAD, scaling_rows(report)))


def scaling_rows(report: ScalingReport) -> list[tuple[str, ...]]:
    """Return the cells of the table, in the order of SCALING_HEAD."""
    return [
        (
            str(row.nodes),
            _processes(row),
            f"{row.figures.samples_per_s:.1f}",
            f"{report.speed_up(row):.2f}x",
            f"{report.efficiency(row):.0%}",
            "-" if row.figures.comm_share is None else f"{row.figures.comm_share:.0%}",
            _slowest(row.figures.slowest),
        )
        for row in report.rows
    ]


def _processes(row: ScalingRow) -> str:
    if row.parallel == "ddp":
        return str(row.processes)
    return f"1 (dp, {plural(row.devices, 'device')})"


def _slowest(rank: Rank | None) -> str:
    if rank is None:
        return "-"
    share = "" if rank.comm_share is None else f" (waits {rank.comm_share:.0%})"
    return f"{rank.host}:{rank.rank}{share}"


def network_view(report: NetworkReport) -> RenderableType:
    """Return the pairs, all hosts together, and the slow hosts."""
    head = Text(f"all_reduce over {report.backend}  cluster {report.cluster}", style="bold")
    parts: list[RenderableType] = [head, _table(PAIRS_HEAD, pair_rows(report)), Text("")]
    parts += [_table(WHOLE_HEAD, whole_rows(report.whole)), Text("")]
    parts += [Text(line, style="yellow" if report.slow else "green") for line in verdict(report)]
    return Group(*parts)


def pair_rows(report: NetworkReport) -> list[tuple[str, ...]]:
    """Return the cells of a row for each pair of hosts, in the order of PAIRS_HEAD."""
    return [
        (
            " - ".join(pair.hosts),
            f"{pair.busbw_gb_s:.3f}",
            "-" if pair.latency_us is None else f"{pair.latency_us:.0f} us",
        )
        for pair in report.pairs
    ]


def whole_rows(whole: Sequence[Reduce]) -> list[tuple[str, ...]]:
    """Return the cells of a row for each message size, in the order of WHOLE_HEAD."""
    return [(size_text(reduce.size), f"{reduce.time_us:.0f} us", f"{reduce.busbw_gb_s:.3f}") for reduce in whole]


def verdict(report: NetworkReport) -> list[str]:
    """Return a line for each slow host or pair, or a line that nothing is slow."""
    if report.slow:
        return [f"slow: {' - '.join(slow.hosts)}: {slow.why}" for slow in report.slow]
    if len(report.hosts) < 3:
        return ["two hosts have only one link, so there is nothing to compare"]
    return ["no host and no pair of hosts is slower than half of the others"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    found = columns(*(name.upper() for name in head))
    for row in rows:
        found.add_row(*map(Text, row))
    return Whole(found)


# --- pages -----------------------------------------------------------------------------------------------------------


def scaling_html(report: ScalingReport) -> str:
    """Return the page: speed-up against the ideal, time in communication, and the table."""
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
            "in which a rank sends gradients or waits for another rank. The slowest rank waits least."
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
    """Return the page: bandwidth over message size, and the pairs."""
    points = [(math.log2(reduce.size), reduce.busbw_gb_s) for reduce in report.whole]
    ticks = bytes_ticks([reduce.size for reduce in report.whole])
    warnings = "".join(f'<article class="warning"><p>{escape(line)}</p></article>' for line in verdict(report))
    calm = "".join(f"<p>{escape(line)}</p>" for line in verdict(report))
    chart = line_chart({"all hosts": points}, x="message size", y="bus bandwidth, GB/s", ticks=ticks)
    parts = [
        _head("ddpctl bench network", report.cluster, f"{plural(len(report.hosts), 'host')}, {report.backend}"),
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
