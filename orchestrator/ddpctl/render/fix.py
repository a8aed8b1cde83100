"""The fixes of a preflight: what would be run where, and how it went."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from ddpctl.spec.autofix import Applied, Fix


def plan_view(fixes: Sequence[Fix]) -> RenderableType:
    """Every command whole on a line of its own, below its host."""
    if not fixes:
        return Text("nothing here is fixed by a command that ddpctl runs")
    lines = [Text("to be run as it is printed:", style="bold")]
    for host in dict.fromkeys(fix.host for fix in fixes):
        lines.append(Text(host, style="bold"))
        lines += [
            Text.assemble(("  ", ""), fix.command, (f"  # {fix.check}", "dim")) for fix in fixes if fix.host == host
        ]
    return Lines(*lines)


def fixed_view(done: Sequence[Applied]) -> RenderableType:
    """A line a command; what it said where it failed."""
    lines = []
    for one in done:
        result = ("ok", "green") if one.ran.ok else (one.ran.trouble, "bold red")
        lines.append(Text.assemble(f"{one.fix.host}: {one.fix.command}: ", result))
        if not one.ran.ok:
            lines += [Text(f"  {line}") for line in f"{one.ran.stdout}{one.ran.stderr}".splitlines()]
    return Lines(*lines)
