"""``ddpctl kill``: everything gone, everywhere, with proof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, Survivors, UsageError
from ddpctl.render.status import kill_view
from ddpctl.spec.outcome import KillOutcome, RunStatus
from ddpctl.spec.ranges import fold
from ddpctl.spec.values import plural
from ddpctl.stages.status import live_runs
from ddpctl.stages.stop import stop_run
from ddpctl_worker import contract


def kill(
    job: str = session.JobArgument,
    grace: float = typer.Option(
        None, "--grace", min=0.0, help="Seconds from SIGTERM to SIGKILL; default: the job's timeouts.stop (10)."
    ),
    every: bool = typer.Option(False, "--all", help="Kill every live run of that name."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """End a run on every node and prove that nothing of it is left. Safe to repeat."""
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        runs = live_runs(fleet, job)
        if len(runs) > 1 and not every:
            raise _which(job, runs)
        outcomes = [
            stop_run(run.job, run.run, run.hosts, fleet, grace=run.grace if grace is None else grace, by=session.me())
            for run in runs
        ]
    if as_json:
        documents = [outcome.to_json() for outcome in outcomes]
        session.print_json({"schema": contract.SCHEMA, "runs": documents} if every else documents[0])
    else:
        for outcome in outcomes:
            session.print_view(kill_view(outcome))
    _require_proofs(outcomes)
    return 0


def _which(job: str, runs: Sequence[RunStatus]) -> UsageError:
    found = "; ".join(f"{run.run} on {fold(run.hosts)}, started {run.started or '-'}" for run in runs)
    return UsageError(
        f"{len(runs)} runs of {job} are live: {found}",
        hint=f"name one by its id (ddpctl kill {runs[-1].run}), or kill them all: ddpctl kill {job} --all",
    )


def _require_proofs(outcomes: Sequence[KillOutcome]) -> None:
    """Raises as ``require_proof``: the gravest error, once the others have been told."""
    errors: list[DdpctlError] = []
    for outcome in outcomes:
        try:
            require_proof(outcome)
        except DdpctlError as error:
            errors.append(error)
    errors.sort(key=lambda one: one.exit_code)
    for other in errors[:-1]:
        session.warn(str(other))
    if errors:
        raise errors[-1]


def require_proof(outcome: KillOutcome) -> None:
    """Turn anything but proof into an error.

    Raises:
        Survivors: processes are left. HostsFailed: a node gave no proof. ConnectError: a node could not be asked.
    """
    if outcome.survivors:
        left = ", ".join(f"{host} pid {pid} ({cmd})" for host, pid, cmd in outcome.survivors)
        raise Survivors(
            f"{plural(len(outcome.survivors), 'process')} of {outcome.run} survived: {left}",
            hint="a process in state D waits in the kernel for a device: repair it or reboot the node, then kill again",
        )
    if any(not isinstance(error, ConnectError) for error in outcome.errors.values()):
        count = f"{len(outcome.errors)} of {len(outcome.nodes)} hosts"
        raise HostsFailed(f"{count} did not confirm that {outcome.run} is gone", outcome.errors)
    if outcome.unreachable:
        raise ConnectError(
            f"{outcome.run} was ended on every host that answered; not reached: {', '.join(outcome.unreachable)}",
            hint=f"once they answer again: ddpctl kill {outcome.run}",
        )
