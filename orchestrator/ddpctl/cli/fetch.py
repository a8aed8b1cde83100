"""``ddpctl fetch``: logs, records and declared outputs from every node."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import HostsFailed, NoSuchJob, UsageError
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.values import plural
from ddpctl.stages.checkpoints import fetch_checkpoint, list_checkpoints
from ddpctl.stages.fetch import fetch_run, nowhere
from ddpctl.stages.status import find_run

LIST = "`ddpctl checkpoints JOB` says what is there, and what is missing"


def fetch(
    job: str = session.JobArgument,
    dest: Path = typer.Argument(None, metavar="DEST", help="Destination folder; default: ./<run>.", show_default=False),
    checkpoints: bool = typer.Option(
        False, "--checkpoints", help="Instead: the checkpoints that a restart would resume from, to DEST/checkpoints/."
    ),
    option: Path | None = session.InventoryOption,
) -> int:
    """Copy logs, records and declared outputs of a run from every node to DEST/<host>/."""
    inventory = session.load(None, option, job=job)
    if dest is not None:
        _check(dest)
    if checkpoints:
        return _fetch_newest(inventory, job, dest)
    with session.at_work(inventory) as (fleet, tell):
        run = find_run(fleet, job)
        folder = dest if dest is not None else Path(run.run)
        outcome = fetch_run(run.run, run.hosts, folder, fleet, tell)
    for host, fetched in outcome.results.items():
        typer.echo(f"{folder / host}: {plural(len(fetched.files), 'file')}, {fetched.bytes} bytes")
    for name in nowhere(outcome):
        session.warn(f"warning: declared output {name} was not found on any node that answered")
    if outcome.errors:
        raise HostsFailed(f"could not fetch from {len(outcome.errors)} of {len(run.hosts)} hosts", outcome.errors)
    return 0


def _fetch_newest(inventory: Inventory, job: str, dest: Path | None) -> int:
    """The checkpoints that a start of the job would resume from, if the hosts that answer have all of them.

    Raises:
        NoSuchJob: every host answered, and there is no complete one. HostsFailed: some did not answer; what the others
            have is here.
    """
    with session.at_work(inventory) as (fleet, tell):
        found = list_checkpoints(fleet, job)
        total = plural(len(fleet.hosts), "host")
        if not found.resumed and not found.errors:
            raise NoSuchJob(f"no complete checkpoint of {found.job} on {total}", hint=LIST)
        folder = (dest if dest is not None else Path(found.job)) / "checkpoints"
        counts = [(one, fetch_checkpoint(found.job, one, folder, fleet, tell)) for one in found.resumed]
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
