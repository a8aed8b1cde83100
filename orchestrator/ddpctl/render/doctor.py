"""The doctor's findings: the verdict first, then the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.render.console import Whole, columns
from ddpctl.render.status import slow_line
from ddpctl.spec.doctor import DoctorReport, rank_json
from ddpctl_worker.rules import frames
from ddpctl_worker.rules.verdict import numbers


def doctor_view(found: DoctorReport, *, stacks: bool = False) -> RenderableType:
    """Return the verdict, the ranks by place, a row for each rank, the evidence, and what is not known."""
    diagnosis = found.diagnosis
    style = "bold red" if diagnosis.suspects or diagnosis.stuck else ""
    parts: list[RenderableType] = [Text(f"{found.job}  {found.state}  run {found.run}"), Text(diagnosis.verdict, style)]
    if found.looks:
        parts += [Text(""), Whole(_groups(found)), Text(""), Whole(_ranks(found))]
    if diagnosis.evidence:
        parts += [Text(""), *(Text(line) for line in diagnosis.evidence)]
    if stacks:
        parts += [Text(line) for look in found.looks for line in stack_lines(look)]
    parts += [Text(slow_line(slow), style="yellow") for slow in found.slow]
    parts += [Text(f"not known: {line}", style="yellow") for line in diagnosis.missing]
    return Group(*parts)


def _groups(found: DoctorReport) -> Any:
    table = columns("RANKS", "WHERE")
    for group in found.diagnosis.groups:
        table.add_row(numbers(group["ranks"]), Text(str(group["where"])))
    return table


def _ranks(found: DoctorReport) -> Any:
    table = columns("RANK", "HOST", "PID", "STATE", "CPU", "RSS", "OUTPUT", "COLLECTIVE")
    for look in sorted(found.looks, key=lambda look: int(look["rank"])):
        rank = rank_json(look)
        collective = rank["collective"]
        table.add_row(
            str(rank["rank"]),
            Text(str(rank["host"])),
            str(rank["pid"]),
            Text(str(rank["state"])),
            _or_dash(rank["cpu"], "{:.0f}%"),
            _or_dash(rank["rss_mb"], "{:.0f} MB"),
            _or_dash(rank["last_output_age_s"], "{:.0f}s ago"),
            "-" if collective is None else Text(f"{collective['op']} #{collective['seq']} {collective['state']}"),
        )
    return table


def stack_lines(look: Mapping[str, Any]) -> list[str]:
    lines = [f"rank {look['rank']} on {look['host']}:"]
    stack = look.get("stack")
    if not stack:
        return [*lines, "    no stack"]
    return lines + [f"  {'*' if frames.is_own(frame) else ' '} {frame[0]}:{frame[1]} in {frame[2]}" for frame in stack]


def _or_dash(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
