"""``ddpctl attach``: follow again, from the next line."""

from __future__ import annotations

from pathlib import Path

from ddpctl import files
from ddpctl.cli import session
from ddpctl.cli.end import conclude
from ddpctl.cli.follow import follow_run
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
        end = follow_run(run, fleet, offsets=files.load_positions(run.run))
    return conclude(end)
