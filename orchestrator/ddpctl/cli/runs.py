"""The commands about runs: `ps`, `status`, `doctor` and `report` read them, `kill` and `rm` end and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, Interrupted, UsageError
from ddpctl.render.doctor import doctor_view
from ddpctl.render.report import report_view
from ddpctl.render.report_page import report_html
from ddpctl.render.status import kill_view, removal_view, runs_table, status_view
from ddpctl.spec.event import Tell
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.kill import KillOutcome
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.removal import RemovedRun, removal_document
from ddpctl.spec.runs import runs_document
from ddpctl.spec.slots import other_runs
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.doctor import ask_doctor
from ddpctl.stages.remove import remove_run
from ddpctl.stages.report import make_report
from ddpctl.stages.save import save_run
from ddpctl.stages.slots import ask_claims, unknown_claims
from ddpctl.stages.status import all_runs, find_run, live_runs, name_missing, runs_of_project
from ddpctl.stages.stop import stop_run
from ddpctl.stages.untracked import with_untracked
from ddpctl.transport.base import Fleet
from ddpctl_worker.wire import contract


def ps(
    inventory: Path | None = session.InventoryArgument,
    everything: bool = typer.Option(
        False, "-a", "--all", help="Include older finished runs (default: active runs and each job's latest)."
    ),
    mine: bool = typer.Option(False, "--mine", help="Leave out the runs of other accounts."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """List the jobs on the nodes, from whichever account and machine they were started.

    Of another account's run the list has what its claim of slots shows.
    """
    where = session.load(inventory, option, recorded=True)
    with session.fleet_of(where) as fleet:
        runs, outcome = all_runs(fleet, everything=everything)
        claims, shown = ask_claims(fleet)
    others = [] if mine else other_runs(claims, {run.run for run in runs})
    if as_json:
        session.print_json(runs_document(runs, others, claims, datetime.now(timezone.utc)))
    elif runs or others:
        session.print_view(runs_table(runs, where.project, others, claims))
    else:
        session.warn(f"no runs on {plural(len(fleet.hosts), 'host')}; `ddpctl up` starts one")
    for host, why in unknown_claims(shown).items():
        if host not in outcome.errors:
            session.warn(f"warning: {host}: the runs of other accounts are not known: {why}")
    for host, answer in outcome.results.items():
        if answer.get("left_out"):
            session.warn(f"warning: {host} has {answer['left_out']} more old runs; ddpctl gc removes them")
    if outcome.errors:
        raise HostsFailed(f"{len(outcome.errors)} of {len(fleet.hosts)} hosts did not answer", outcome.errors)
    return 0


def status(
    job: str | None = session.OptionalJobArgument,
    option: Path | None = session.InventoryOption,
    causes: bool = typer.Option(False, "--causes", help="After a failure: also show what else may have caused it."),
    as_json: bool = session.JsonOption,
) -> int:
    """Show the state of a run on every node."""
    inventory = session.load(None, option, job=job, recorded=True)
    with session.fleet_of(inventory) as fleet:
        run = with_untracked(fleet, session.find_run(fleet, job, inventory))
    session.show(run, partial(status_view, candidates=causes), as_json=as_json)
    for node in run.nodes:
        if as_json and node.note:  # the view has it
            session.warn(f"{node.host}: {node.note}")
    return 0


StacksOption = typer.Option(False, "--stacks", help="Also show the Python stack of every rank.")


def doctor(
    job: str | None = session.OptionalJobArgument,
    option: Path | None = session.InventoryOption,
    stacks: bool = StacksOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Say why a run is stuck or slow: where every rank is, and for which rank the other ranks wait."""
    inventory = session.load(None, option, job=job, recorded=True)
    with session.fleet_of(inventory) as fleet:
        found = ask_doctor(fleet, job, inventory)
    session.show(found, lambda consultation: doctor_view(consultation, stacks=stacks), as_json=as_json)
    return 0


HtmlOption = typer.Option(None, "--html", metavar="FILE", help="Also write it as one self-contained HTML page.")


def report(
    job: str | None = session.OptionalJobArgument,
    option: Path | None = session.InventoryOption,
    html: Path | None = HtmlOption,
    as_json: bool = session.JsonOption,
) -> int:
    """One page about a run, live or ended: how it went, its attempts and metrics, and what ran."""
    session.check_page(html)
    inventory = session.load(None, option, job=job, recorded=True)
    with session.fleet_of(inventory) as fleet:
        made = make_report(fleet, job, inventory)
    with session.with_page(html, lambda: report_html(made)):
        session.show(made, report_view, as_json=as_json)
        session.warn_silent_hosts(made.run)
        for host, why in made.missing.items():
            if as_json:  # the view has it
                session.warn(f"{host}: {why}")
    return 0


KilledArgument = typer.Argument(
    None,
    metavar="JOB",
    help="A job's or run's name, a run id, or the beginning of one. Without it, kill only lists the live runs.",
    show_default=False,
)


def kill(
    job: str | None = KilledArgument,
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
    inventory = session.load(None, option, job=job, recorded=True)
    with session.working_fleet(inventory) as (fleet, tell):
        if job is None:  # a kill never chooses
            raise name_missing(*runs_of_project(fleet, None if any_project else inventory))
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
            by, longer = session.author(), grace is not None
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
    """Ask for a checkpoint and return its name. After a failure warn and return ``None``: the run is killed anyway."""
    if run.verdict.terminal:
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
        f"{run.run}{f' of project {run.project}' if several else ''} on {fold_names(run.hosts)}, "
        f"started {run.verdict.started or '-'}"
        for run in runs
    )
    return UsageError(
        f"{len(runs)} runs of {job} are live: {found}",
        hint=f"name one by its id (ddpctl kill {runs[-1].run}), or kill them all: ddpctl kill {job} --all",
    )


def _require_proofs(outcomes: Sequence[KillOutcome]) -> None:
    """Check the proof of every run. Raises as ``session.require_proof``: the gravest error; the rest are warnings."""
    errors: list[DdpctlError] = []
    for outcome in outcomes:
        try:
            session.require_proof(outcome)
        except DdpctlError as error:
            errors.append(error)
    session.raise_gravest(errors)


def _require_answers(job: str, runs: Sequence[RunStatus]) -> None:
    """Refuse a success where every run was over already, because a live run may be on a silent host.

    Raises:
        ConnectError: a host did not answer, and no run was live on the hosts that did.
    """
    newest = runs[-1]
    if newest.silent_hosts and all(run.verdict.terminal for run in runs):
        over = f"{newest.run} was over already, and {session.silent_hosts(newest)}"
        message = f"{over}: another run of {newest.job} may be there"
        raise ConnectError(message, hint=f"once they answer again: ddpctl kill {job}")
    session.warn_silent_hosts(newest)


RunsArgument = typer.Argument(
    ..., metavar="RUN", help="Names (each its newest run), run ids, or beginnings of them.", show_default=False
)


def rm(
    runs: list[str] = RunsArgument,
    any_project: bool = session.AnyProjectOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Remove ended runs from the nodes: records, logs and outputs, never checkpoints. A live run is refused."""
    inventory = session.load(None, option, job=runs[0])
    removed: list[RemovedRun] = []
    errors: list[DdpctlError] = []
    with session.fleet_of(inventory) as fleet:
        for run in _found(fleet, runs, None if any_project else inventory, errors):
            try:
                removed.append(remove_run(run, fleet))
                removed[-1].raise_for_errors()
            except DdpctlError as error:
                errors.append(error)
    if as_json and removed:
        session.print_json(removal_document(removed))
    elif removed:
        session.print_view(removal_view(removed))
    session.raise_gravest(errors)
    return 0


def _found(fleet: Fleet, words: list[str], of: Inventory | None, errors: list[DdpctlError]) -> list[RunStatus]:
    """Return the runs that the words mean, without duplicates. Failures are added to ``errors``.

    All words are looked up before the first removal: once a job's newest run is gone, its name means another run.
    ``of``: a name means a job of this project, started from this folder.
    """
    found: dict[str, RunStatus] = {}
    for word in words:
        try:
            run = find_run(fleet, word, of)
            if of is not None:
                session.refuse_other_folder(run, word, of)
            found.setdefault(run.run, run)
        except DdpctlError as error:
            errors.append(error)
    return list(found.values())
