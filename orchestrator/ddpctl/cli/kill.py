"""``ddpctl kill``: everything gone, everywhere, with proof."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import ConnectError, Survivors
from ddpctl.render.status import kill_view
from ddpctl.spec.outcome import KillOutcome
from ddpctl.stages.status import find_run
from ddpctl.stages.stop import stop_run

DEFAULT_GRACE_S = 10.0


def kill(
    job: str = session.JobArgument,
    grace: float = typer.Option(
        None, "--grace", min=0.0, help="Seconds from SIGTERM to SIGKILL; default: the job's timeouts.stop (10)."
    ),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """End a run on every node and prove that nothing of it is left. Harmless when repeated."""
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        run = find_run(fleet, job)
        if grace is None:
            grace = float((run.record.get("timeouts") or {}).get("stop") or DEFAULT_GRACE_S)
        outcome = stop_run(run.job, run.run, run.hosts, fleet, grace=grace, by=session.me())
    if as_json:
        session.print_json(outcome.to_json())
    else:
        session.print_view(kill_view(outcome))
    require_proof(outcome)
    return 0


def require_proof(outcome: KillOutcome) -> None:
    """Turn anything but proof into an error.

    Raises:
        Survivors: processes are left. ConnectError: a node could not be asked.
    """
    if outcome.survivors:
        left = ", ".join(f"{host} pid {pid} ({cmd})" for host, pid, cmd in outcome.survivors)
        raise Survivors(
            f"{len(outcome.survivors)} processes of {outcome.run} survived: {left}",
            hint="a process in state D waits in the kernel for a device: mend that or reboot the node, then kill again",
        )
    if outcome.unreachable:
        raise ConnectError(
            f"{outcome.run} was ended where it could be reached, but not on {', '.join(outcome.unreachable)}",
            hint=f"once they answer again: ddpctl kill {outcome.run}",
        )
