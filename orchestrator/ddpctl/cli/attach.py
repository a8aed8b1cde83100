"""``ddpctl attach``: follow again, from the next line."""

from __future__ import annotations

from pathlib import Path

from ddpctl.cli import session
from ddpctl.cli.follow import conclude, follow_run, how_to_go_on
from ddpctl.cli.interrupts import Interrupts
from ddpctl.errors import Interrupted


def attach(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
) -> int:
    """Follow the output of a run again, from the next line (on another machine: from the first line).

    Ctrl-C detaches; it never kills the job.
    """
    inventory = session.load(None, option, job=job)
    with Interrupts(), session.fleet_of(inventory) as fleet:
        try:
            run = session.find_run(fleet, job, inventory)
            end = follow_run(run, fleet)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(f"detached; {job} was not changed", hint=how_to_go_on(job)) from None
    return conclude(end)
