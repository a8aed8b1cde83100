"""``ddpctl status``: how a run stands on every node."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.status import status_view
from ddpctl.stages.untracked import with_untracked


def status(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
    causes: bool = typer.Option(False, "--causes", help="After a failure: also show what else may have caused it."),
    as_json: bool = session.JsonOption,
) -> int:
    """Show the state of a run on every node."""
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        run = with_untracked(fleet, session.find_run(fleet, job, inventory))
    session.show(run, partial(status_view, candidates=causes), as_json=as_json)
    for node in run.nodes:
        if as_json and node.note:  # the view has it
            session.warn(f"{node.host}: {node.note}")
    return 0
