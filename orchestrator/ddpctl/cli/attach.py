"""``ddpctl attach``: follow again, from the next line."""

from __future__ import annotations

from pathlib import Path

from ddpctl.cli import session
from ddpctl.cli.follow import conclude, follow_run, how_to_go_on
from ddpctl.cli.interrupts import Interrupts
from ddpctl.errors import Interrupted
from ddpctl.stages.status import find_run


def attach(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
) -> int:
    """Follow a run again: from the next line where this machine followed it before, else from its first.

    Ctrl-C detaches, never kills.
    """
    inventory = session.load(None, option, job=job)
    with Interrupts(), session.fleet_of(inventory) as fleet:
        try:
            run = find_run(fleet, job)
            end = follow_run(run, fleet)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(f"detached; nothing was done to {job}", hint=how_to_go_on(job)) from None
    return conclude(end)
