"""``ddpctl up`` and ``ddpctl restart``: start a run, follow it, and handle Ctrl-C meanwhile."""

from __future__ import annotations

import contextlib
import enum
import os
import select
import sys
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.follow import conclude, follow_run, tell_beside
from ddpctl.cli.interrupts import Interrupts
from ddpctl.cli.prompt import TERMINAL, can_ask, choose
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import DdpctlError, Interrupted, PreflightFailed, UsageError, is_interrupt
from ddpctl.files.inventory import load_inventory, load_script
from ddpctl.files.records import save_run
from ddpctl.render.preflight import report_view
from ddpctl.render.progress import ProgressView
from ddpctl.render.status import plan_view, status_view
from ddpctl.spec.finding import Severity
from ddpctl.spec.names import check_run_name, how_to_go_on
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.joining import wait_for_ranks
from ddpctl.stages.launch import Launch, launch_of
from ddpctl.stages.preflight import Options
from ddpctl.stages.restart import launch_again
from ddpctl.stages.status import is_in_line, read_run
from ddpctl.stages.stop import stop_run
from ddpctl.stages.up import FACTS_ONLY, Up
from ddpctl.transport.base import Fleet


class OnInterrupt(str, enum.Enum):
    """The effect of Ctrl-C while the job's output is followed."""

    ASK = "ask"
    DETACH = "detach"
    KILL = "kill"


DetachOption = typer.Option(False, "-d", "--detach", help="Return once every node has started.")
OnInterruptOption = typer.Option(
    OnInterrupt.ASK,
    "--on-interrupt",
    metavar="|".join(OnInterrupt),
    help="What Ctrl-C does while following: ask (without a terminal: detach), detach, or kill the job.",
)


def up(
    inventory: Path | None = session.InventoryArgument,
    job: str = typer.Option(None, "--job", help="Job to run; required if the inventory has more than one."),
    name: str = typer.Option(
        None, "--name", help="Name for this run instead of the job's, so that runs of one job can be live side by side."
    ),
    nodes: int = typer.Option(None, "--nodes", min=1, help="Number of nodes to run on."),
    nproc: int = typer.Option(None, "--nproc", min=1, help="Processes per node."),
    sets: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a key of the job or of the inventory."
    ),
    detach: bool = DetachOption,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would run; connect to no host."),
    skip_preflight: bool = typer.Option(False, "--skip-preflight", help="Start without preflight."),
    deep: bool = typer.Option(False, "--deep", help="Also start every rank once, as preflight --deep does."),
    only: str = session.OnlyOption,
    skip: str = session.SkipOption,
    fresh: bool = typer.Option(
        False,
        "--fresh",
        help="Start without the checkpoints of earlier runs: they are renamed on every node, not deleted.",
    ),
    wait: bool = typer.Option(
        False, "--wait", help="If slots of a host are in use, wait in line for them; the nodes then start the job."
    ),
    any_project: bool = typer.Option(
        False, "--any-project", help="Resume from the job's checkpoint although another folder's run saved it."
    ),
    on_interrupt: OnInterrupt = OnInterruptOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Run preflight, send environment and code, start every node, and follow the output.

    A script given after -- runs on the inventory's hosts: ddpctl up lab.yaml -- train.py --epochs 3

    Options alone are added to the job's own arguments: ddpctl up --job train -- --lr 0.1
    """
    if skip_preflight and (
        given := [name for name, value in (("deep", deep), ("only", only), ("skip", skip)) if value]
    ):
        raise UsageError(f"--{given[0]} has no effect with --skip-preflight", hint="remove one of the two")
    launch = _launch(session.inventory_file(inventory, option, job=job), job, name, nodes, nproc, sets)
    for note in launch.notes:
        session.warn(f"warning: {note}")
    if launch.processes is not None:
        session.warn(launch.processes)
    if dry_run:
        session.show(launch.plan(), plan_view, as_json=as_json)
        return 0
    # The fleet has all hosts: each may have checkpoints of the job, or a live run of the name in --name.
    with Interrupts() as interrupts, session.fleet_of(launch.inventory) as fleet:
        checks = Options(only=session.ids(only), skip=session.ids(skip), deep=deep, reuse=True)
        options = FACTS_ONLY if skip_preflight else checks
        run = bring_up(launch, fleet, options, fresh=fresh, any_project=any_project, wait=wait, as_json=as_json)
        if detach:
            return show_detached(run, as_json=as_json)
        return follow_up(run, fleet, interrupts, on_interrupt, as_json=as_json)


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
        with ProgressView(session.stderr_console()) as view:
            run = session.find_run(fleet, job, None if any_project else inventory)
            if not any_project:
                session.refuse_other_folder(run, job, inventory)
            launch = launch_again(fleet, inventory, run, session.new_identity(inventory), view.tell)
        run = bring_up(launch, fleet, Options(), any_project=True, as_json=as_json)
        if detach:
            return show_detached(run, as_json=as_json)
        return follow_up(run, fleet, interrupts, on_interrupt, as_json=as_json)


def _launch(
    file: Path, job: str | None, name: str | None, nodes: int | None, nproc: int | None, sets: list[str]
) -> Launch:
    """Return the launch of the job that the command line means."""
    words = GLOBAL.script
    if words is None:
        inventory = load_inventory(file, sets=sets, job=job)
        spec = inventory.job(job)
    else:
        inventory, spec = load_script(file, words, sets=sets, job=job)
    if name is not None:
        check_run_name(name, spec.name, inventory.jobs)
    launch = launch_of(inventory, spec, session.new_identity(inventory), nodes=nodes, nproc=nproc)
    return launch if name is None else launch.named(name)


def bring_up(
    launch: Launch,
    fleet: Fleet,
    options: Options,
    *,
    fresh: bool = False,
    any_project: bool = False,
    wait: bool = False,
    as_json: bool,
) -> RunStatus:
    """Start the launch on every node; after a failure or an interrupt leave no process running.

    If preflight refuses the launch, its report is the JSON document that ``as_json`` promises.
    """
    view = ProgressView(session.stderr_console())
    up = Up(launch, fleet, view.tell, options, fresh=fresh, any_project=any_project, wait=wait)
    try:
        with view:
            run = up.run()
        if up.report is not None and options is not FACTS_ONLY:
            _tell_warnings(up.report)
        _record(launch, up)
        return run
    except PreflightFailed:
        if up.report is not None:
            session.stderr_console().print(report_view(up.report, skipped=False))
            if as_json:
                session.print_json(up.report.to_json())
        raise
    except BaseException as error:
        try:
            _undo(up, interrupted=is_interrupt(error))
        except KeyboardInterrupt:  # the first Ctrl-C; a second one raises nothing
            with contextlib.suppress(OSError):  # Ctrl-C has also ended the reader of stderr, such as `| tee`
                session.warn(f"warning: {error}")  # why the run is being ended
            _undo(up, interrupted=True)
        raise


def _record(launch: Launch, up: Up) -> None:
    """Record the run for later commands on this machine: its inventory file, its plan and its locked packages.

    Every node has confirmed the start, so a fault here is a warning.
    """
    assert up.plan is not None
    lock = dict(up.environment.lock) if up.environment else {}
    try:
        data = {"inventory": launch.inventory.file, "plan": up.plan.to_json(), "lock": lock}
        save_run(up.plan.job, up.plan.run, data)
    except Exception as error:
        if is_interrupt(error):
            raise
        session.warn(f"warning: could not record this run ({error}); pass `-i INVENTORY` to later commands")


def _undo(up: Up, *, interrupted: bool) -> None:
    """End a run that did not start on every node, and name any process that is left.

    Raises:
        Interrupted: an interrupt ended the start.
        Survivors, ConnectError: after an interrupt, and a node gave no proof.
    """
    try:
        outcome = up.undo(by=session.author())
        if outcome is not None:
            session.require_proof(outcome)
    except DdpctlError as error:
        if interrupted:
            raise
        session.warn(f"warning: {error}")  # the caller raises the first error, which is the reason
    if interrupted:
        raise Interrupted("interrupted before every node had started; nothing is left running") from None


def _tell_warnings(report: PreflightReport) -> None:
    for finding in report.findings:
        if finding.severity is Severity.WARNING:
            where = f"{finding.host}: " if finding.host else ""
            step = f"; {finding.fix}" if finding.fix else ""
            session.warn(f"warning: {where}{finding.message}{step}")


def show_detached(run: RunStatus, *, as_json: bool) -> int:
    """Print the page of `status`, and on stderr the next commands."""
    session.show(run, status_view, as_json=as_json)
    commands = {"follow it:": "attach {}", "its output:": "tail {} -n 20", "end it:": "kill {}"}
    for what, command in commands.items():
        session.stderr_console().print(f"{what:<12}ddpctl {command.format(run.run)}")
    return 0


def follow_up(run: RunStatus, fleet: Fleet, interrupts: Interrupts, on_interrupt: OnInterrupt, *, as_json: bool) -> int:
    """Follow the run to its end, or until a person or a signal detaches or kills it."""
    asked = False
    while True:
        with interrupts.noted():
            if asked:
                session.stderr_console().print("continuing; Ctrl-C asks again")
            try:
                with wait_for_ranks(run, fleet, tell_beside):
                    end = follow_run(run, fleet, to_stderr=as_json, interrupted=lambda: interrupts.pressed)
            except Interrupted:
                pass
            except OSError as error:
                if not interrupts.pressed:
                    if isinstance(error, BrokenPipeError):  # `| head` has ended
                        what = f"nobody reads the output any more; {run.job} was not changed"
                        session.stderr_console().print(f"{what}; {how_to_go_on(run.run)}")
                    raise
            else:
                return conclude(end, as_json=as_json)
        queued = is_in_line(fleet, run)
        state = "still waits in line" if queued else "is still running"
        next_steps = how_to_go_on(run.run, queued=queued)
        choice = OnInterrupt.DETACH if interrupts.must_end else on_interrupt
        if choice is OnInterrupt.ASK and can_ask():
            with interrupts.raised():
                answer = _ask(state)
            _replace_broken_streams()
            if answer == "continue":
                asked = True
                continue
            if answer == "detach":
                session.stderr_console().print(f"{run.job} {state}; {next_steps}")
                return 0
            choice = OnInterrupt.KILL
        if choice is OnInterrupt.KILL:
            with interrupts.raised():
                return _kill(run, fleet, as_json=as_json)
        raise Interrupted(f"detached: {run.job} {state}", hint=next_steps)


def _ask(state: str) -> str:
    try:
        return choose(f"\nthe job {state}:", "detach", "kill", "continue") or "detach"
    except KeyboardInterrupt:
        return "detach"  # a second Ctrl-C never kills


def _replace_broken_streams() -> None:
    """Send output to the terminal if Ctrl-C has also ended its reader, such as `| tee`."""
    for stream in (sys.stdout, sys.stderr):
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        if poll.poll(0):  # POLLERR or POLLHUP, which poll always reports
            os.dup2(os.open(TERMINAL, os.O_WRONLY | os.O_NOCTTY), stream.fileno())


def _kill(run: RunStatus, fleet: Fleet, *, as_json: bool) -> int:
    try:
        outcome = stop_run(run.job, run.run, run.hosts, fleet, grace=run.grace, by=session.author())
    except KeyboardInterrupt:
        raise Interrupted("interrupted while killing the job", hint=f"run it again: ddpctl kill {run.run}") from None
    if as_json:
        session.print_json(read_run(fleet, run).to_json())
    session.require_proof(outcome)
    raise Interrupted(
        f"interrupted: {run.job} was killed on {plural(len(run.hosts), 'host')}, nothing is left (run {run.run})"
    )
