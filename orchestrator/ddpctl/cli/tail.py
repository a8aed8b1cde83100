"""``ddpctl tail``: the output of a run, merged, of all or of some ranks and hosts."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ddpctl.cli import session
from ddpctl.cli.follow import LineLook, print_lines
from ddpctl.errors import UsageError
from ddpctl.spec.inventory import suggestion
from ddpctl.spec.outcome import RunStatus
from ddpctl.stages.follow import Selection

LINES = 50
ALL = "all"
_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def tail(
    job: str = session.JobArgument,
    follow: bool = typer.Option(False, "-f", "--follow", help="Keep printing new lines until the run ends."),
    rank: str = typer.Option(None, "--rank", metavar="R,...", help="Only these ranks: 2 or 0,3 or 4-7."),
    host: str = typer.Option(None, "--host", metavar="H,...", help="Only these hosts: node1 or node[0-3],node7."),
    lines: str = typer.Option(
        None,
        "-n",
        "--lines",
        metavar="N",
        help="Only the last N lines of all hosts together, or all. Default: 50; with --since, --grep or --json all.",
    ),
    since: str = typer.Option(
        None, "--since", metavar="TIME", help="Only lines since then: 90s, 10m, 2h or 1d ago, or a time in ISO 8601."
    ),
    grep: str = typer.Option(
        None, "--grep", metavar="PATTERN", help="Only lines in which this regular expression (Python's) is found."
    ),
    timestamps: bool = typer.Option(False, "--timestamps", help="Print each line's time, local, in front of it."),
    no_fold: bool = typer.Option(False, "--no-fold", help="Print equal lines of several ranks one by one."),
    option: Path | None = session.InventoryOption,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per line."),
) -> int:
    """Print the output of a run in the order of time, each line with its host:rank."""
    ranks = parse_ranks(rank) if rank is not None else None
    start = parse_since(since) if since is not None else {}
    if grep is not None:
        check_pattern(grep)
    whole = since is not None or grep is not None or as_json
    selection = Selection(ranks=ranks, lines=parse_lines(lines, None if whole else LINES), grep=grep, **start)
    look = LineLook(follow=follow, as_json=as_json, folded=not no_fold, timestamps=timestamps)
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        run = session.find_run(fleet, job, inventory)
        print_lines(run, fleet, _hosts(run, host, ranks), selection, look)
    return 0


def parse_lines(text: str | None, default: int | None) -> int | None:
    """How many; None: all.

    Raises:
        UsageError: it is no number.
    """
    if text is None:
        return default
    if text == ALL:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(f"--lines {text!r} is not a number of lines", hint=f"write -n 100, or -n {ALL}")
    return int(text)


def parse_since(text: str) -> dict[str, Any]:
    """``{"ago": seconds}`` for ``10m``: the nodes count it back by their own clocks. ``{"since": Unix seconds}`` for a
    time; without a zone it is local.

    Raises:
        UsageError: it is neither.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return {"ago": float(int(ago[1]) * _SECONDS[ago[2]])}
    try:
        return {"since": max(0.0, datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())}
    except (ValueError, OverflowError, OSError):
        hint = "write 90s, 10m, 2h or 1d, or a time such as 2026-01-31T14:05:00"
        raise UsageError(f"--since {text!r} is neither a duration nor a time", hint=hint) from None


def check_pattern(text: str) -> None:
    """Raises UsageError where it is wrong."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        where = getattr(error, "pos", None)
        place = "" if where is None else f", at character {where + 1}"
        what = getattr(error, "msg", None) or str(error)
        hint = "it is a regular expression of Python; put a backslash before characters that stand for themselves"
        raise UsageError(f"--grep {text!r} is no pattern: {what}{place}", hint=hint) from None


def parse_ranks(text: str) -> frozenset[int]:
    """``0,3,8-11`` as a set.

    Raises:
        UsageError: it has another form.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--rank {text[:60]!r} is not a list of ranks", hint="write 2, or 0,3, or 4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 100_000:
            raise UsageError(f"--rank {text[:60]!r}: {part} is not a range", hint="write the smaller rank first")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)


def _hosts(run: RunStatus, text: str | None, ranks: frozenset[int] | None) -> list[str]:
    """The hosts to read: those named, or those that may run one of the ranks; of both, those of both."""
    return list(run.hosts) if text is None and ranks is None else chosen_hosts(run, text, ranks)


def chosen_hosts(run: RunStatus, text: str | None, ranks: frozenset[int] | None) -> list[str]:
    """What --host and --rank leave of a run's hosts.

    Raises:
        UsageError: a host that the run is not on, or nobody is left.
    """
    names = list(run.hosts) if text is None else session.host_names(text)
    for name in names:
        if name not in run.hosts:
            raise UsageError(f"{run.run} does not run on {name!r}", hint=suggestion(name, run.hosts))
    if ranks is None:
        return names
    having = run.hosts_of(ranks)
    chosen = [name for name in names if name in having]
    if not chosen:
        where = "" if text is None else f" on {text}"
        what = f"{run.run} has no rank {','.join(map(str, sorted(ranks)))}{where}"
        raise UsageError(what, hint=f"its ranks are 0 to {run.world_size - 1}")
    return chosen
