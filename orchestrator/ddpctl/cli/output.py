"""The commands for a run's output: `tail` prints it, `attach` follows it, `fetch` copies files to this machine."""

from __future__ import annotations

import os
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ddpctl.cli import session
from ddpctl.cli.follow import LineLook, conclude, follow_run, print_lines, tell_beside
from ddpctl.cli.interrupts import Interrupts
from ddpctl.cli.limits import MOST_LINES, RANK_SPAN, TAIL_LINES
from ddpctl.code import RUNS_FOLDER
from ddpctl.errors import HostsFailed, Interrupted, NoSuchJob, UsageError, is_interrupt
from ddpctl.render.status import untracked_lines
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.inventory import Inventory, suggestion
from ddpctl.spec.names import how_to_go_on
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural, whole_number
from ddpctl.stages.checkpoints import fetch_checkpoint, list_checkpoints
from ddpctl.stages.fetch import KeptFiles, fetch_run, missing_outputs
from ddpctl.stages.fetch import watch as watch_outputs
from ddpctl.stages.follow import Selection
from ddpctl.stages.joining import wait_for_ranks
from ddpctl.stages.status import is_in_line
from ddpctl.stages.untracked import with_untracked
from ddpctl.transport.base import Fleet

ALL = "all"
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(rf"([0-9]{{1,9}})([{''.join(_SECONDS)}])")


def tail(
    job: str | None = session.OptionalJobArgument,
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
    selection = Selection(ranks=ranks, lines=parse_lines(lines, None if whole else TAIL_LINES), grep=grep, **start)
    look = LineLook(follow=follow, as_json=as_json, folded=not no_fold, timestamps=timestamps)
    inventory = session.load(None, option, job=job, recorded=True)
    with session.fleet_of(inventory) as fleet:
        run = session.find_run(fleet, job, inventory)
        print_lines(run, fleet, _hosts(run, host, ranks), selection, look)
    return 0


def parse_lines(text: str | None, default: int | None) -> int | None:
    """Return the number of lines; ``None`` means all lines.

    Raises:
        UsageError: the text is neither a number nor "all".
    """
    if text is None:
        return default
    if text == ALL:
        return None
    number = whole_number(text, 0, MOST_LINES)
    if number is None:
        raise UsageError(f"--lines {text!r} is not a number of lines", hint=f"write -n 100, or -n {ALL}")
    return number


def parse_since(text: str) -> dict[str, Any]:
    """Return ``{"ago": seconds}`` for a duration such as ``10m``, ``{"since": Unix seconds}`` for a time.

    The nodes subtract a duration from their own clocks. A time without a zone is local.

    Raises:
        UsageError: the text is neither a duration nor a time.
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
    """Raises UsageError: the text is not a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        where = getattr(error, "pos", None)
        place = "" if where is None else f", at character {where + 1}"
        what = getattr(error, "msg", None) or str(error)
        hint = "it is a regular expression of Python; put a backslash before characters that stand for themselves"
        raise UsageError(f"--grep {text!r} is no pattern: {what}{place}", hint=hint) from None


def parse_ranks(text: str) -> frozenset[int]:
    """Return ``0,3,8-11`` as a set.

    Raises:
        UsageError: the text has another form.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--rank {text[:60]!r} is not a list of ranks", hint="write 2, or 0,3, or 4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > RANK_SPAN:
            raise UsageError(f"--rank {text[:60]!r}: {part} is not a range", hint="write the smaller rank first")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)


def _hosts(run: RunStatus, text: str | None, ranks: frozenset[int] | None) -> list[str]:
    return list(run.hosts) if text is None and ranks is None else chosen_hosts(run, text, ranks)


def chosen_hosts(run: RunStatus, text: str | None, ranks: frozenset[int] | None) -> list[str]:
    """Return the run's hosts that --host names and that have a rank of --rank.

    Raises:
        UsageError: the run is not on a named host, or no host remains.
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


def attach(
    job: str | None = session.OptionalJobArgument,
    option: Path | None = session.InventoryOption,
) -> int:
    """Follow the output of a run again, from the next line (on another machine: from the first line).

    Ctrl-C detaches; it never kills the job.
    """
    inventory = session.load(None, option, job=job, recorded=True)
    with Interrupts(), session.fleet_of(inventory) as fleet:
        run: RunStatus | None = None
        try:
            run = session.find_run(fleet, job, inventory)
            job = job or run.run
            with wait_for_ranks(run, fleet, tell_beside):
                end = follow_run(run, fleet)
        except BaseException as error:
            if job is None or not is_interrupt(error):
                raise
            queued = run is not None and is_in_line(fleet, run)
            raise Interrupted(f"detached; {job} was not changed", hint=how_to_go_on(job, queued=queued)) from None
    return conclude(end)


LIST = "`ddpctl checkpoints JOB` says what is there, and what is missing"


def fetch(
    job: str = session.JobArgument,
    dest: Path = typer.Argument(
        None, metavar="DEST", help="Destination folder; default: ./ddpctl-runs/<job>/<run>.", show_default=False
    ),
    host: str = typer.Option(None, "--host", metavar="H,...", help="Only from these hosts: node1 or node[0-3],node7."),
    rank: str = typer.Option(
        None,
        "--rank",
        metavar="R,...",
        help="Only the logs of these ranks, and the outputs of the hosts that run them.",
    ),
    output: list[str] = typer.Option(
        None, "--output", metavar="PATH", help="Instead of the job's outputs: this path or pattern; repeatable."
    ),
    watch: bool = typer.Option(
        False, "--watch", help="Copy what changes in the outputs every few seconds, until the run ends."
    ),
    checkpoints: bool = typer.Option(
        False, "--checkpoints", help="Instead: the checkpoints that a restart would resume from, to DEST/checkpoints/."
    ),
    option: Path | None = session.InventoryOption,
) -> int:
    """Copy logs, records and declared outputs of a run from every node to DEST/<host>/."""
    ranks = parse_ranks(rank) if rank is not None else None
    selection = {"host": host, "rank": rank, "output": output, "watch": watch}
    if checkpoints and (given := [name for name, value in selection.items() if value]):
        raise UsageError(f"--{given[0]} has no effect with --checkpoints", hint="remove one of the two")
    inventory = session.load(None, option, job=job)
    if dest is not None:
        _check(dest)
    if checkpoints:
        return _fetch_newest(inventory, job, dest)
    with session.working_fleet(inventory) as (fleet, tell):
        run = session.find_run(fleet, job, inventory)
        hosts = chosen_hosts(run, host, ranks)
        folder = dest if dest is not None else Path(RUNS_FOLDER, run.job, run.run)
        kept: dict[str, KeptFiles] | None = {} if watch else None
        if kept is not None:
            _watch(run, hosts, folder, fleet, tell, kept, output or None)
        outcome = fetch_run(
            run.run,
            hosts,
            folder,
            fleet,
            tell,
            ranks=sorted(ranks) if ranks is not None else None,
            outputs=output or None,
            kept=kept,
        )
        run = with_untracked(fleet, run)
    for name, fetched in outcome.results.items():
        typer.echo(f"{folder / name}: {plural(len(fetched.files), 'file')}, {fetched.bytes} bytes")
    for missing in missing_outputs(outcome):
        session.warn(f"warning: declared output {missing} was not found on any node that answered")
    for line in [] if output else untracked_lines(run.run, run.untracked):
        session.warn(line)
    if outcome.errors:
        raise HostsFailed(f"could not fetch from {len(outcome.errors)} of {len(hosts)} hosts", outcome.errors)
    return 0


def _watch(
    run: RunStatus,
    hosts: list[str],
    folder: Path,
    fleet: Fleet,
    tell: Tell,
    kept: dict[str, KeptFiles],
    outputs: list[str] | None,
) -> None:
    """Copy changed outputs until the run is over.

    Raises:
        Interrupted: Ctrl-C. Every copied file is whole, or the beginning of a growing file.
    """
    if not run.verdict.terminal:
        tell(Note(f"bringing the outputs of {run.run} to {folder} until it ends; Ctrl-C stops that"))
    try:
        watch_outputs(run, hosts, folder, fleet, tell, kept, outputs)
    except KeyboardInterrupt:
        hint = f"logs and records: ddpctl fetch {run.run} {shlex.quote(str(folder))}"
        raise Interrupted(
            f"interrupted; {run.job} was not changed, and what is in {folder} is whole", hint=hint
        ) from None


def _fetch_newest(inventory: Inventory, job: str, dest: Path | None) -> int:
    """Copy the checkpoints that a start of the job would resume from, as far as answering hosts have them.

    Raises:
        NoSuchJob: every host answered, and there is no complete checkpoint.
        HostsFailed: some hosts did not answer. The checkpoints of the other hosts have been copied.
    """
    with session.working_fleet(inventory) as (fleet, tell):
        found = list_checkpoints(fleet, job, inventory)
        total = plural(len(fleet.hosts), "host")
        if not found.resumed and not found.errors:
            raise NoSuchJob(f"no complete checkpoint of {found.job} on {total}", hint=LIST)
        folder = (dest if dest is not None else Path(RUNS_FOLDER, found.job)) / "checkpoints"
        counts = [(saved, fetch_checkpoint(found.job_id, saved, folder, fleet, tell)) for saved in found.resumed]
    for saved, files in counts:
        typer.echo(f"{folder / saved.entry}: {plural(files, 'file')}, {saved.size} bytes, hashes verified")
    if found.errors:
        what = "a newer checkpoint may lie there"
        if not found.resumed:
            what = f"no complete checkpoint of {found.job} on those that answered"
        raise HostsFailed(f"{len(found.errors)} of {total} did not answer: {what}", found.errors)
    return 0


def _check(dest: Path) -> None:
    """Refuse a path that cannot become a folder, before a host is contacted. No folder is created yet.

    Raises:
        UsageError: a file is in the way, or the parent folder is not writable.
    """
    there = next(path for path in (dest, *dest.absolute().parents) if os.path.exists(path))
    if not os.path.isdir(there):
        raise UsageError(f"cannot fetch into {dest}: {there} is not a folder", hint="name another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"cannot fetch into {dest}: {there} is not writable", hint="name another folder")
