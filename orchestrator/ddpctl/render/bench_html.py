"""What the benchmarks measured, as one HTML page each, with plots."""

from __future__ import annotations

import math
from html import escape

from ddpctl.render.bench import (
    PAIRS_HEAD,
    SCALING_HEAD,
    WHOLE_HEAD,
    pair_rows,
    scaling_rows,
    verdict,
    whole_rows,
)
from ddpctl.render.chart import bytes_ticks, line_chart
from ddpctl.render.page import page, table
from ddpctl.spec.bench import NetworkReport, ScalingReport


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
