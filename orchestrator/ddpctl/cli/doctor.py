"""``ddpctl doctor``: where every rank of a run stands, and which one is odd."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.doctor import consultation_view
from ddpctl.stages.doctor import consult

StacksOption = typer.Option(False, "--stacks", help="Also show the Python stack of every rank.")


def doctor(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
    stacks: bool = StacksOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Say why a run is stuck or slow: where every rank is, and which one the others wait for."""
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        found = consult(fleet, job, inventory)
    session.show(found, lambda one: consultation_view(one, stacks=stacks), as_json=as_json)
    return 0
