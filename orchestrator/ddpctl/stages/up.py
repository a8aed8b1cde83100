"""The way up, in one place: check, provide the environment, try it out, rehearse if asked, send the code, start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar

from ddpctl.checks import judge
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.job_imports import IMPORTS
from ddpctl.environment.direct import Holdings
from ddpctl.environment.spread import Addresses
from ddpctl.errors import DdpctlError, HostsFailed, PreflightFailed
from ddpctl.spec.done import KillOutcome
from ddpctl.spec.event import Event, Note, Tell
from ddpctl.spec.finding import Severity
from ddpctl.spec.names import name_taken
from ddpctl.spec.outcome import RunStatus
from ddpctl.spec.plan import Facts, NodeFacts, Plan
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.push import EnvironmentOutcome
from ddpctl.spec.ranges import fold
from ddpctl.stages.checkpoints import set_aside
from ddpctl.stages.imports import try_imports
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import UNDO_GRACE_S
from ddpctl.stages.preflight import Options, run_preflight, with_findings, with_rehearsal
from ddpctl.stages.push import provision
from ddpctl.stages.rehearse import run_rehearsal
from ddpctl.stages.restore import ask_held, next_serial, refuse_others, restore
from ddpctl.stages.send import Sent, send
from ddpctl.stages.start import start
from ddpctl.stages.status import live_runs_of
from ddpctl.stages.stop import stop_run
from ddpctl.transport.base import Fleet, FleetOutcome

T = TypeVar("T")

# What is asked even with --skip-preflight: addresses, interfaces, GPUs and free ports are no opinion but facts.
FACTS_ONLY = Options(only=("ssh",), mesh=False)


class Up:
    """One launch on its way up.

    Each step keeps what it found, for the steps after it and for the caller: who sees how far an interrupted one came,
    and must call ``undo`` whatever ``run`` raises.
    """

    def __init__(
        self,
        launch: Launch,
        fleet: Fleet,
        tell: Tell,
        options: Options | None = None,
        *,
        fresh: bool = False,
        any_project: bool = False,
    ) -> None:
        self._launch, self._fleet, self._tell = launch, fleet, tell
        self._fresh = fresh  # checkpoints of earlier runs are set aside
        self._any_project = any_project  # a checkpoint of another folder is taken, too
        self._options = options or Options()
        self._sending: Background[Sent] | None = None  # the code, where it did not wait for its turn
        self._others: Background[FleetOutcome[Holdings]] | None = None  # who takes no part: a silent one takes its time
        self._py_spy: Mapping[str, Mapping[str, str]] = {}
        self._checkpoints: Mapping[str, Sequence[Mapping[str, Any]]] = {}
        self._serials: Mapping[str, int] = {}
        self.facts = Facts()
        self.report: PreflightReport | None = None
        self.environment: EnvironmentOutcome | None = None
        self.plan: Plan | None = None

    def run(self) -> RunStatus:
        """All steps in order; the run as every node has confirmed its start.

        Raises:
            UsageError: a run of the name that was given is live, or the checkpoint is that of another folder.
            PreflightFailed, HostsFailed: a step failed.
        """
        if self._launch.alone:
            self._refuse_taken()
        others = [host for host in self._fleet.hosts if host not in self._launch.names]
        self._others = Background(lambda tell: ask_held(self._launch, self._fleet, others))
        report = self._check()
        own = FleetOutcome[Holdings]() if self._fresh else ask_held(self._launch, self._fleet, self._launch.names)
        self._refuse_others(own)
        environment = self._provide_environment(report)
        if self._launch.managed:  # what had to wait for the environment
            report = self._try_imports(report, environment)
            self._rehearse(report)
        self._provide_code()
        if not self._fresh:
            others_held = self._others.result(self._tell)
            held = FleetOutcome({**own.results, **others_held.results}, {**own.errors, **others_held.errors})
            self._refuse_others(held)
            self._restore(report, held)
        return self.start()

    def undo(self, *, by: str, grace: float = UNDO_GRACE_S) -> KillOutcome | None:
        """End what may have been started: from the plan on, a start may be under way. None: nothing was."""
        if self.plan is None:
            return None
        return stop_run(self.plan.job, self.plan.run, self.plan.hosts, self._fleet, grace=grace, by=by)

    def _refuse_taken(self) -> None:
        """Raises UsageError: a run of this name is live on some host of the fleet."""
        assert self._launch.job is not None
        name = self._launch.job.name
        live, errors = live_runs_of(self._fleet, self._launch.job_id)
        if live:
            raise name_taken(name, "; ".join(f"run {run.run} on {fold(run.hosts)}" for run in live))
        for host in (host for host in errors if host not in self._launch.names):  # of its own preflight says more
            self._tell(Note(f"it could not be asked whether a run of the name {name} is live there", "warning", host))

    def _refuse_others(self, held: FleetOutcome[Holdings]) -> None:
        """Raises UsageError: the checkpoint is that of another folder, and this one may not take it."""
        if not self._any_project:
            refuse_others(self._launch, held)

    def _check(self) -> PreflightReport:
        """Raises PreflightFailed: with the exit code of the report (4 where a host could not be reached)."""
        report = run_preflight(
            self._launch, self._fleet, self._tell, options=self._options, meanwhile=self._begin_sending
        )
        self.facts = report.facts
        return self._passed(report)

    def _passed(self, report: PreflightReport) -> PreflightReport:
        """Keeps the report; raises PreflightFailed where it has errors."""
        self.report = report
        if report.exit_code:
            raise refusal(report)
        return report

    def _begin_sending(self, remembered: PreflightReport) -> None:
        """These hosts were fine a moment ago, so they are asked for the code while that is confirmed. Code is stored by
        its hash: a copy that is not used in the end does no harm."""
        facts = remembered.facts
        self._sending = Background(lambda tell: send(self._launch, facts, self._fleet, tell))

    def _provide_environment(self, report: PreflightReport) -> EnvironmentOutcome:
        environment = provision(self._launch, self.facts, self._fleet, self._tell, open_ports=report.open_ports)
        self._raise_for(environment.errors, "could not get the environment")
        self.environment = environment
        self.facts = with_environment(self.facts, environment)
        return environment

    def _try_imports(self, report: PreflightReport, environment: EnvironmentOutcome) -> PreflightReport:
        """Raises PreflightFailed: an import of the script fails on some host."""
        checks, _ = judge.chosen(CATALOGUE, self._options.only, self._options.skip)
        if IMPORTS not in checks:
            return report
        found = try_imports(self._launch, environment, self._fleet, self._tell)
        return self._passed(with_findings(report, {IMPORTS.id}, found))

    def _rehearse(self, report: PreflightReport) -> None:
        """Raises PreflightFailed: some rank did not get through."""
        if self._options.deep:
            told = run_rehearsal(self._launch, self.facts, self._fleet, self._tell)
            self._passed(with_rehearsal(report, told))

    def _provide_code(self) -> None:
        if self._sending is not None:
            sent = self._sending.result(self._tell)
        else:
            sent = send(self._launch, self.facts, self._fleet, self._tell)
        self._raise_for(sent.errors, "could not get the code")
        self._py_spy = sent.py_spy
        self._checkpoints = sent.checkpoints
        self._serials = sent.serials

    def _restore(self, report: PreflightReport, held: FleetOutcome[Holdings]) -> None:
        """What earlier runs of the job have saved, on every host alike."""
        preferred = {host: (node.fabric_address,) for host, node in self.facts.nodes.items() if node.fabric_address}
        addresses = Addresses(preferred, report.open_ports)
        errors = restore(self._launch, self._checkpoints, self._fleet, self._tell, addresses, held)
        self._raise_for(errors, "could not get the checkpoints of earlier runs")

    def start(self) -> RunStatus:
        """The plan, now without open questions, and every launcher.

        Raises:
            PreflightFailed: what the plan needs could not be found out. UsageError, HostsFailed: see ``start``.
        """
        plan = self._launch.plan(self.facts)
        if plan.unknown:
            raise PreflightFailed(
                f"nothing was started, because this is unknown: {', '.join(plan.unknown)}",
                hint="run `ddpctl preflight`, or set it in the inventory: fabric_address, slots, master_port",
            )
        others = self._others.result(self._tell) if self._others is not None else FleetOutcome[Holdings]()
        serial = next_serial(self._launch, self._serials, self._fleet, others)
        if self._fresh:
            created = datetime.fromisoformat(plan.created).astimezone(timezone.utc)
            set_aside(plan.job_id, plan.hosts, f"{created:%Y%m%dT%H%M%SZ}", self._fleet, self._tell)
        self.plan = plan
        launch = self._launch
        return start(
            plan,
            self._fleet,
            self._tell,
            launch.secrets,
            self._py_spy,
            launch.notify,
            network=self.report.network if self.report is not None else None,
            alone=launch.alone,
            serial=serial,
        )

    def _raise_for(self, errors: Mapping[str, DdpctlError], what: str) -> None:
        if errors:
            total = len(self._launch.hosts)
            raise HostsFailed(f"{len(errors)} of {total} hosts {what}; nothing was started", errors)


def refusal(report: PreflightReport, what: str = "nothing was started") -> PreflightFailed:
    """One line for a report with errors: ``what`` follows, the first of them, and how many more."""
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    link = f" -> {first.peer}" if first.peer else ""
    where = f"{first.host}{link}: " if first.host else ""
    error = PreflightFailed(f"{what}: {where}{first.message}{more}", hint=first.fix)
    error.exit_code = report.exit_code
    return error


def with_environment(facts: Facts, environment: EnvironmentOutcome) -> Facts:
    """The facts once the environment stands: its interpreter, and its torch instead of the one found before."""
    nodes: dict[str, NodeFacts] = dict(facts.nodes)
    for host in environment.nodes:
        python = environment.python(host)
        if python is not None:
            torch = environment.nodes[host].versions.get("torch")
            env_hash = environment.nodes[host].env_hash
            nodes[host] = replace(facts.node(host), python=python, torch=torch, has_launch=None, environment=env_hash)
    return replace(facts, nodes=nodes)


class Background(Generic[T]):
    """``work`` in a thread of its own, begun before its turn has come.

    What it tells is kept until its result is wanted: a person reads one step after the other. A caller that never asks
    for the result leaves the thread to end with the fleet's connections.
    """

    def __init__(self, work: Callable[[Tell], T]) -> None:
        self._work = work
        self._told: list[Event] = []
        self._outcome: Future[T] = Future()
        threading.Thread(target=self._run, name="ddpctl-background", daemon=True).start()

    def result(self, tell: Tell) -> T:
        """Wait for it, and tell what it told; raises what it raised."""
        self._outcome.exception()
        for event in self._told:
            tell(event)
        return self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._work(self._told.append))
        except BaseException as error:  # raised where the result is wanted
            self._outcome.set_exception(error)
