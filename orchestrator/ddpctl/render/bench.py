"""What the benchmarks measured, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpctl.render.chart import size_text
from ddpctl.render.console import Whole
from ddpctl.spec.bench import NetworkReport, Rank, Reduce, ScalingReport, ScalingRow

SCALING_HEAD = ("nodes", "processes", "samples/s", "speed-up", "efficiency", "in comm", "slowest rank")
PAIRS_HEAD = ("hosts", "bus GB/s", "latency")
WHOLE_HEAD = ("all hosts, size", "time", "bus GB/s")


def scaling_view(report: ScalingReport) -> RenderableType:
    """A row a size."""
    head = Text(f"{report.job}  cluster {report.cluster}", style="bold")
    return Group(head, _table(SCALING_HEAD, scaling_rows(report)))


def scaling_rows(report: ScalingReport) -> list[tuple[str, ...]]:
    """The cells of the table, in the order of SCALING_HEAD."""
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
    return f"1 (dp, {row.devices} device{'' if row.devices == 1 else 's'})"


def _slowest(rank: Rank | None) -> str:
    if rank is None:
        return "-"
    share = "" if rank.comm_share is None else f" (waits {rank.comm_share:.0%})"
    return f"{rank.host}:{rank.rank}{share}"


def network_view(report: NetworkReport) -> RenderableType:
    """The pairs, the whole, and who is slow."""
    head = Text(f"all_reduce over {report.backend}  cluster {report.cluster}", style="bold")
    parts: list[RenderableType] = [head, _table(PAIRS_HEAD, pair_rows(report)), Text("")]
    parts += [_table(WHOLE_HEAD, whole_rows(report.whole)), Text("")]
    parts += [Text(line, style="yellow" if report.slow else "green") for line in verdict(report)]
    return Group(*parts)


def pair_rows(report: NetworkReport) -> list[tuple[str, ...]]:
    """The cells of a row for each pair of hosts, in the order of PAIRS_HEAD."""
    return [
        (" - ".join(one.hosts), f"{one.busbw_gb_s:.3f}", "-" if one.latency_us is None else f"{one.latency_us:.0f} us")
        for one in report.pairs
    ]


def whole_rows(whole: Sequence[Reduce]) -> list[tuple[str, ...]]:
    """The cells of a row for each message size, in the order of WHOLE_HEAD."""
    return [(size_text(one.size), f"{one.time_us:.0f} us", f"{one.busbw_gb_s:.3f}") for one in whole]


def verdict(report: NetworkReport) -> list[str]:
    """A line for everything that is slow, or one that says that nothing is."""
    if report.slow:
        return [f"slow: {' - '.join(one.hosts)}: {one.why}" for one in report.slow]
    if len(report.hosts) < 3:
        return ["two hosts have one link: there is nothing to compare it with"]
    return ["no host and no pair of hosts is slower than half of the others"]


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name.upper())
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return Whole(table)
