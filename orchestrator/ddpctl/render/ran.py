"""The results of plain commands: the output of `exec`, and the fixes of a preflight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from ddpctl.render.clean import clean
from ddpctl.spec.autofix import Applied, Fix
from ddpctl.spec.command import Ran
from ddpctl.spec.fold import group_by
from ddpctl.spec.ranges import fold_names


def output_lines(results: Mapping[str, Ran]) -> Iterator[tuple[str, str]]:
    """Yield ("stdout" or "stderr", line) in the order of the hosts: ``node[0-2,5]: text``, without the line's end."""
    for outputs, hosts in group_by(lambda host: (results[host].stdout, results[host].stderr), results).items():
        where = fold_names(hosts)
        for stream, text in zip(("stdout", "stderr"), outputs, strict=True):
            for line in text.removesuffix("\n").split("\n") if text else ():
                yield stream, f"{where}: {clean(line.removesuffix(chr(13)))}"


def fixes_view(fixes: Sequence[Fix]) -> RenderableType:
    """Return every command whole on a line of its own, below its host."""
    if not fixes:
        return Text("no finding has a fix that ddpctl can run")
    lines = [Text("the commands, exactly as they would run:", style="bold")]
    for host in dict.fromkeys(fix.host for fix in fixes):
        lines.append(Text(host, style="bold"))
        lines += [
            Text.assemble(("  ", ""), fix.command, (f"  # {fix.check}", "dim")) for fix in fixes if fix.host == host
        ]
    return Lines(*lines)


def fixed_view(done: Sequence[Applied]) -> RenderableType:
    """Return a line for each command, and the output of failed commands."""
    lines = []
    for applied in done:
        fix, ran = applied.fix, applied.ran
        lines.append(
            Text.assemble(f"{fix.host}: {fix.command}: ", ("ok", "green") if ran.ok else (ran.trouble, "bold red"))
        )
        if not ran.ok:
            lines += [Text(f"  {line}") for line in f"{ran.stdout}{ran.stderr}".splitlines()]
    return Lines(*lines)
