"""``ddpctl attach``: follow again, from the next line."""

from __future__ import annotations

from pathlib import Path

from ddpctl import files
from ddpctl.cli import session
from ddpctl.cli.end import conclude
from ddpctl.cli.follow import follow_run
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
    with session.fleet_of(inventory) as fleet:
        run = find_run(fleet, job)
        try:
            end = follow_run(run, fleet, offsets=files.load_positions(run.run))
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(
                f"detached: {run.job} goes on", hint=f"ddpctl attach {run.job} follows it again"
            ) from None
    return conclude(end)
