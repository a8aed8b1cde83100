"""``ddpctl restart``: a new attempt of a run that has ended."""

from __future__ import annotations

from pathlib import Path

from ddpctl.cli import session
from ddpctl.cli.interrupts import Interrupts
from ddpctl.cli.up import DetachOption, OnInterrupt, OnInterruptOption, bring_up, follow_up, show_detached
from ddpctl.render.console import stderr_console
from ddpctl.render.progress import ProgressView
from ddpctl.stages.preflight import Options
from ddpctl.stages.restart import launch_again


def restart(
    job: str = session.JobArgument,
    any_project: bool = session.AnyProjectOption,
    detach: bool = DetachOption,
    on_interrupt: OnInterrupt = OnInterruptOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Continue an ended run from its newest complete checkpoint: same code, same settings, on the hosts that are there.

    The new run has the same name, and its attempts continue the count. A host that was lost and is back takes part. A
    live run is left alone.
    """
    inventory = session.load(None, option, job=job)
    with Interrupts() as interrupts, session.fleet_of(inventory) as fleet:
        with ProgressView(stderr_console()) as view:
            run = session.find_run(fleet, job, None if any_project else inventory)
            if not any_project:
                session.refuse_other_folder(run, job, inventory)
            launch = launch_again(fleet, inventory, run, session.new_identity(inventory), view.tell)
        run = bring_up(launch, fleet, Options(), any_project=True, as_json=as_json)
        if detach:
            return show_detached(run, as_json=as_json)
        return follow_up(run, fleet, interrupts, on_interrupt, as_json=as_json)
