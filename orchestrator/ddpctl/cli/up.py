"""``ddpctl up``: from a list of hosts and a script to a running, supervised, followed job."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType, TracebackType

import typer

from ddpctl import files
from ddpctl.cli import session
from ddpctl.cli.end import conclude
from ddpctl.cli.follow import follow_run
from ddpctl.cli.kill import DEFAULT_GRACE_S, require_proof
from ddpctl.cli.order import Order, make_order, remember
from ddpctl.cli.prompt import choose
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import Interrupted, PreflightFailed, UsageError
from ddpctl.render.console import stderr_console
from ddpctl.render.plan import plan_view
from ddpctl.render.preflight import report_view
from ddpctl.render.progress import ProgressView
from ddpctl.render.status import status_view
from ddpctl.spec.finding import Severity
from ddpctl.spec.outcome import RunStatus
from ddpctl.spec.preflight import PreflightReport
from ddpctl.stages.preflight import Options
from ddpctl.stages.status import read_run
from ddpctl.stages.stop import stop_run
from ddpctl.stages.up import FACTS_ONLY, Way, go_up
from ddpctl.transport.base import Fleet


def up(
    inventory: Path | None = session.InventoryArgument,
    job: str = typer.Option(None, "--job", help="Which job of the inventory; needed when there are several."),
    nodes: int = typer.Option(None, "--nodes", min=1, help="Run on this many nodes."),
    nproc: int = typer.Option(None, "--nproc", min=1, help="Processes per node."),
    sets: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override a key of the job or the file."),
    detach: bool = typer.Option(False, "-d", "--detach", help="Return once every node has confirmed its start."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would run; contact nothing."),
    skip_preflight: bool = typer.Option(False, "--skip-preflight", help="Start without the checks."),
    deep: bool = typer.Option(False, "--deep", help="Check with a rehearsal of all ranks too, as in preflight."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Check, push, start every node, follow the output.

    A script given after -- runs on the inventory's hosts: ddpctl up lab.yaml -- train.py --epochs 3
    """
    if deep and skip_preflight:
        raise UsageError("--deep is a part of the preflight that --skip-preflight leaves out", hint="give one of them")
    order = _order(session.inventory_file(inventory, option, job=job), job, nodes, nproc, sets)
    for note in order.notes:
        session.warn(f"warning: {note}")
    if dry_run:
        plan = order.plan()
        if as_json:
            session.print_json(plan.to_json())
        else:
            session.print_view(plan_view(plan))
        return 0
    with session.fleet_of(order.inventory, [host.name for host in order.hosts]) as fleet:
        options = FACTS_ONLY if skip_preflight else Options(reuse=True, deep=deep)
        run = _start(order, fleet, options, as_json=as_json)
        if detach:
            if as_json:
                session.print_json(run.to_json())
            else:
                session.print_view(status_view(run))
            return 0
        return _follow(run, fleet, as_json=as_json)


def _order(file: Path, job: str | None, nodes: int | None, nproc: int | None, sets: list[str]) -> Order:
    """The job meant by the command line."""
    words = GLOBAL.script
    if words is None:
        inventory = files.load_inventory(file, sets=sets, job=job)
    else:
        inventory, spec = files.load_script(file, words, sets=sets, job=job)
        job = spec.name
    return make_order(inventory, job, nodes=nodes, nproc=nproc)


def _start(order: Order, fleet: Fleet, options: Options, *, as_json: bool) -> RunStatus:
    """Everything up to the last confirmed start. Ctrl-C on the way leaves nothing running.

    Where preflight refuses, its report is the one document that ``as_json`` promises.
    """
    way = Way()
    wanted = order.wanted(options)
    with ProgressView(stderr_console()) as view:
        try:
            go_up(wanted, fleet, view.tell, way=way)
        except PreflightFailed:
            if way.report is not None:
                stderr_console().print(report_view(way.report))
                if as_json:
                    session.print_json(way.report.to_json())
            raise
        except (KeyboardInterrupt, Interrupted):
            _take_back(order, way, fleet)
            raise Interrupted("interrupted before every node had started; nothing is left running") from None
    if way.report is not None and options is not FACTS_ONLY:
        _tell_warnings(way.report)
    assert way.plan is not None
    assert way.status is not None
    remember(order, way.plan, way.environment.lock if way.environment else None)
    return way.status


def _take_back(order: Order, way: Way, fleet: Fleet) -> None:
    """Stop what may have been started: from the plan on, a start may be under way."""
    if way.plan is not None:
        outcome = stop_run(way.plan.job, way.plan.run, way.plan.hosts, fleet, grace=2.0, by=session.me())
        require_proof(outcome)


def _tell_warnings(report: PreflightReport) -> None:
    for finding in report.findings:
        if finding.severity is Severity.WARNING:
            where = f"{finding.host}: " if finding.host else ""
            step = f"; {finding.fix}" if finding.fix else ""
            session.warn(f"warning: {where}{finding.message}{step}")


class _CtrlC:
    """While it is in force Ctrl-C sets a flag instead of tearing the program down."""

    def __init__(self) -> None:
        self.pressed = False

    def __enter__(self) -> _CtrlC:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True


def _follow(run: RunStatus, fleet: Fleet, *, as_json: bool) -> int:
    """Follow to the end; Ctrl-C asks once on a terminal (detach / kill / go on), and kills without one."""
    while True:
        offsets = files.load_positions(run.run)
        with _CtrlC() as ctrl_c:
            try:
                end = follow_run(run, fleet, offsets=offsets, to_stderr=as_json, interrupted=lambda: ctrl_c.pressed)
                return conclude(end, as_json=as_json)
            except Interrupted:
                pass
        answer = _ask() if session.interactive() else "kill"
        if answer == "detach":
            stderr_console().print(f"{run.job} goes on; follow it again with: ddpctl attach {run.job}")
            return 0
        if answer == "kill":
            return _kill(run, fleet, as_json=as_json)


def _ask() -> str:
    sys.stderr.write("\n")
    try:
        return choose("the job runs on:", {"detach": "detach", "kill": "kill", "go": "go on"})
    except (KeyboardInterrupt, typer.Abort):
        return "detach"  # a second Ctrl-C never kills


def _kill(run: RunStatus, fleet: Fleet, *, as_json: bool) -> int:
    grace = float((run.record.get("timeouts") or {}).get("stop") or DEFAULT_GRACE_S)
    outcome = stop_run(run.job, run.run, run.hosts, fleet, grace=grace, by=session.me())
    if as_json:
        session.print_json(read_run(fleet, run).to_json())
    require_proof(outcome)
    raise Interrupted(f"interrupted: {run.job} was killed on {len(run.hosts)} hosts, nothing is left (run {run.run})")
