"""``ddpctl checkpoint``: ask the ranks of a run for a checkpoint now."""

from __future__ import annotations

from pathlib import Path

from ddpctl.cli import session
from ddpctl.render.status import saved_view
from ddpctl.stages.save import save_run


def checkpoint(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Ask every rank to save a checkpoint now, and wait until it is complete. The run continues."""
    inventory = session.load(None, option, job=job)
    with session.at_work(inventory) as (fleet, tell):
        saved = save_run(fleet, session.find_run(fleet, job, inventory), tell)
    session.show(saved, saved_view, as_json=as_json)
    return 0
