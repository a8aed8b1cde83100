"""``ddpctl tail``: the output of a run, merged, of all or of some ranks and hosts."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.follow import hosts_with_output, print_lines
from ddpctl.errors import UsageError
from ddpctl.spec.inventory import suggestion
from ddpctl.spec.outcome import RunStatus
from ddpctl.stages.follow import Selection
from ddpctl.stages.status import find_run


def tail(
    job: str = session.JobArgument,
    follow: bool = typer.Option(False, "-f", "--follow", help="Keep printing new lines until the run ends."),
    rank: str = typer.Option(None, "--rank", help="Only these ranks: 2 or 0,3 or 4-7."),
    host: str = typer.Option(None, "--host", help="Only these hosts: node1 or node[0-3],node7."),
    lines: int = typer.Option(None, "-n", "--lines", min=0, help="Only the last N lines of each host; default: all."),
    option: Path | None = session.InventoryOption,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per line."),
) -> int:
    """Print the output of a run, each line with its host:rank."""
    ranks = parse_ranks(rank) if rank is not None else None
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        run = find_run(fleet, job)
        hosts = _hosts(run, host, ranks)
        selection = Selection(ranks=ranks, lines=lines)
        print_lines(run, fleet, hosts, selection, follow=follow, as_json=as_json)
    return 0


def parse_ranks(text: str) -> frozenset[int]:
    """``0,3,8-11`` as a set.

    Raises:
        UsageError: it has another form.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise UsageError(f"--rank {text!r} is not a list of ranks", hint="write 2, or 0,3, or 4-7")
        end = int(last) if dash else int(first)
        if end < int(first) or end - int(first) > 100_000:
            raise UsageError(f"--rank {text!r}: {part} is not a range", hint="write the smaller rank first")
        ranks.update(range(int(first), end + 1))
    return frozenset(ranks)


def _hosts(run: RunStatus, text: str | None, ranks: frozenset[int] | None) -> list[str]:
    """The hosts to read: those named, or those that run one of the ranks."""
    if text is not None:
        names = session.host_names(text)
        for name in names:
            if name not in run.hosts:
                raise UsageError(f"{run.run} does not run on {name!r}", hint=suggestion(name, run.hosts))
        return names
    if ranks is None:
        return hosts_with_output(run)
    hosts = [node.host for node in run.nodes if ranks & set(node.ranks)]
    if not hosts:
        raise UsageError(f"{run.run} has no rank {min(ranks)}", hint=f"its ranks are 0 to {run.world_size - 1}")
    return hosts
