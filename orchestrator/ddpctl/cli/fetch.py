"""``ddpctl fetch``: logs, records and declared outputs from every node."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.tail import chosen_hosts, parse_ranks
from ddpctl.code import RUNS_FOLDER
from ddpctl.errors import HostsFailed, Interrupted, NoSuchJob, UsageError
from ddpctl.render.status import untracked_lines
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.outcome import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.checkpoints import fetch_checkpoint, list_checkpoints
from ddpctl.stages.fetch import Brought, fetch_run, nowhere
from ddpctl.stages.fetch import watch as watch_outputs
from ddpctl.stages.untracked import with_untracked
from ddpctl.transport.base import Fleet

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
    if checkpoints and (given := [name for name, value in (("host", host), ("rank", rank), ("watch", watch)) if value]):
        raise UsageError(f"--{given[0]} has no effect with --checkpoints", hint="remove one of the two")
    inventory = session.load(None, option, job=job)
    if dest is not None:
        _check(dest)
    if checkpoints:
        return _fetch_newest(inventory, job, dest)
    with session.at_work(inventory) as (fleet, tell):
        run = session.find_run(fleet, job, inventory)
        hosts = chosen_hosts(run, host, ranks)
        folder = dest if dest is not None else Path(RUNS_FOLDER, run.job, run.run)
        kept: dict[str, Brought] | None = {} if watch else None
        if kept is not None:
            _watch(run, hosts, folder, fleet, tell, kept)
        outcome = fetch_run(
            run.run, hosts, folder, fleet, tell, ranks=sorted(ranks) if ranks is not None else None, kept=kept
        )
        run = with_untracked(fleet, run)
    for name, fetched in outcome.results.items():
        typer.echo(f"{folder / name}: {plural(len(fetched.files), 'file')}, {fetched.bytes} bytes")
    for output in nowhere(outcome):
        session.warn(f"warning: declared output {output} was not found on any node that answered")
    for line in untracked_lines(run.untracked):
        session.warn(line)
    if outcome.errors:
        raise HostsFailed(f"could not fetch from {len(outcome.errors)} of {len(hosts)} hosts", outcome.errors)
    return 0


def _watch(run: RunStatus, hosts: list[str], folder: Path, fleet: Fleet, tell: Tell, kept: dict[str, Brought]) -> None:
    """Outputs until the run is over.

    Raises:
        Interrupted: by Ctrl-C. Every file that is here is whole, or the beginning of one that grows.
    """
    if not run.terminal:
        tell(Note(f"bringing the outputs of {run.run} to {folder} until it ends; Ctrl-C stops that"))
    try:
        watch_outputs(run, hosts, folder, fleet, tell, kept)
    except KeyboardInterrupt:
        hint = f"logs and records: ddpctl fetch {run.run} {shlex.quote(str(folder))}"
        raise Interrupted(
            f"interrupted; {run.job} was not changed, and what is in {folder} is whole", hint=hint
        ) from None


def _fetch_newest(inventory: Inventory, job: str, dest: Path | None) -> int:
    """The checkpoints that a start of the job would resume from, if the hosts that answer have all of them.

    Raises:
        NoSuchJob: every host answered, and there is no complete one. HostsFailed: some did not answer; what the others
            have is here.
    """
    with session.at_work(inventory) as (fleet, tell):
        found = list_checkpoints(fleet, job, inventory)
        total = plural(len(fleet.hosts), "host")
        if not found.resumed and not found.errors:
            raise NoSuchJob(f"no complete checkpoint of {found.job} on {total}", hint=LIST)
        folder = (dest if dest is not None else Path(RUNS_FOLDER, found.job)) / "checkpoints"
        counts = [(one, fetch_checkpoint(found.job_id, one, folder, fleet, tell)) for one in found.resumed]
    for one, files in counts:
        typer.echo(f"{folder / one.entry}: {plural(files, 'file')}, {one.size} bytes, hashes verified")
    if found.errors:
        what = "a newer checkpoint may lie there"
        if not found.resumed:
            what = f"no complete checkpoint of {found.job} on those that answered"
        raise HostsFailed(f"{len(found.errors)} of {total} did not answer: {what}", found.errors)
    return 0


def _check(dest: Path) -> None:
    """Refuse a place that cannot be a folder; nothing is made there yet.

    Raises:
        UsageError: a file is in the way, or nothing may be written there.
    """
    there = next(path for path in (dest, *dest.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"cannot fetch into {dest}: {there} is not a folder", hint="name another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"cannot fetch into {dest}: {there} is not writable", hint="name another folder")
