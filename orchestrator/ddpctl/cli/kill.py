"""``ddpctl kill``: everything gone, everywhere, with proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, Interrupted, Survivors, UsageError
from ddpctl.render.status import kill_view
from ddpctl.spec.done import KillOutcome
from ddpctl.spec.event import Tell
from ddpctl.spec.outcome import RunStatus
from ddpctl.spec.ranges import fold
from ddpctl.spec.values import plural
from ddpctl.stages.save import save_run
from ddpctl.stages.status import live_runs
from ddpctl.stages.stop import stop_run
from ddpctl.transport.base import Fleet
from ddpctl_worker.wire import contract


def kill(
    job: str = session.JobArgument,
    grace: float = typer.Option(
        None,
        "--grace",
        min=0.0,
        metavar="SECONDS",
        help="Time from SIGTERM to SIGKILL; default: the job's timeouts.stop (30).",
    ),
    save: bool = typer.Option(False, "--save", help="Ask the ranks for a checkpoint first, and wait for it."),
    every: bool = typer.Option(False, "--all", help="Kill every live run of that name."),
    any_project: bool = session.AnyProjectOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """End a run on every node and prove that nothing of it is left. Safe to repeat."""
    inventory = session.load(None, option, job=job)
    with session.at_work(inventory) as (fleet, tell):
        runs = live_runs(fleet, job, None if any_project else inventory)
        if not any_project:
            for run in runs:
                session.refuse_other_folder(run, job, inventory)
        if len(runs) > 1 and not every:
            raise _which(job, runs)
        outcomes = []
        for run in runs:
            saved = _saved(fleet, run, tell) if save else None
            seconds = run.grace if grace is None else grace
            by, longer = session.me(), grace is not None
            stopped = stop_run(run.job, run.run, run.hosts, fleet, grace=seconds, by=by, longer=longer, tell=tell)
            outcomes.append(replace(stopped, asked_to_save=save, saved=saved))
    if as_json:
        documents = [outcome.to_json() for outcome in outcomes]
        session.print_json({"schema": contract.SCHEMA, "runs": documents} if every else documents[0])
    else:
        for outcome in outcomes:
            session.print_view(kill_view(outcome))
    _require_proofs(outcomes)
    _require_answers(job, runs)
    return 0


def _saved(fleet: Fleet, run: RunStatus, tell: Tell) -> str | None:
    """The name of the new checkpoint; without one a warning says why: the user wants the run to end all the same."""
    if run.terminal:
        return None
    try:
        return save_run(fleet, run, tell, last=True).name
    except Interrupted:
        raise
    except DdpctlError as error:
        session.warn(f"warning: {error}")
        session.warn(f"{run.run} is killed without a new checkpoint")
        return None


def _which(job: str, runs: Sequence[RunStatus]) -> UsageError:
    several = len({run.job_id for run in runs}) > 1
    found = "; ".join(
        f"{run.run}{f' of project {run.project}' if several else ''} on {fold(run.hosts)}, started {run.started or '-'}"
        for run in runs
    )
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
    session.raise_gravest(errors)


def _require_answers(job: str, runs: Sequence[RunStatus]) -> None:
    """Where nothing was left to end, the run that is meant may be on a host that did not answer.

    Raises:
        ConnectError: there is such a host.
    """
    newest = runs[-1]
    if newest.unheard and all(run.terminal for run in runs):
        what = f"{newest.run} was over already, and {session.unheard(newest)}: another run of {newest.job} may be there"
        raise ConnectError(what, hint=f"once they answer again: ddpctl kill {job}")
    session.tell_unheard(newest)


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
