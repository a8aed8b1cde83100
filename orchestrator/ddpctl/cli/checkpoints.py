"""The commands about checkpoints: `checkpoints` lists them, `checkpoint` asks for a new checkpoint."""

from __future__ import annotations

from pathlib import Path

from ddpctl.cli import session
from ddpctl.errors import HostsFailed
from ddpctl.render.checkpoints import checkpoints_view
from ddpctl.render.status import saved_view
from ddpctl.spec.values import plural
from ddpctl.stages.checkpoints import list_checkpoints
from ddpctl.stages.save import save_run


def checkpoints(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """List the checkpoints of a job on its hosts, newest first. They outlive the job's runs."""
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        found = list_checkpoints(fleet, job, inventory)
    session.show(found, checkpoints_view, as_json=as_json)
    if found.errors:
        message = f"{len(found.errors)} of {plural(len(fleet.hosts), 'host')} did not answer: more may lie there"
        raise HostsFailed(message, found.errors)
    return 0


def checkpoint(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Ask every rank to save a checkpoint now, and wait until it is complete. The run continues."""
    inventory = session.load(None, option, job=job)
    with session.working_fleet(inventory) as (fleet, tell):
        saved = save_run(fleet, session.find_run(fleet, job, inventory), tell)
    session.show(saved, saved_view, as_json=as_json)
    return 0
