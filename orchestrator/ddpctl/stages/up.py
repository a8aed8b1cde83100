"""A launch from preflight to the confirmed start: check, environment, imports, rehearsal, code, checkpoints, start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timezone
from typing import Generic, TypeVar

from ddpctl.checks import judge
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.job_imports import IMPORTS
from ddpctl.environment.spread import Addresses
from ddpctl.errors import DdpctlError, HostsFailed, PreflightFailed
from ddpctl.spec.event import Event, Note, Tell
from ddpctl.spec.finding import Severity
from ddpctl.spec.kill import KillOutcome
from ddpctl.spec.names import name_taken
from ddpctl.spec.plan import Facts, NodeFacts, Plan
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.push import EnvironmentOutcome
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.resuming import Holdings
from ddpctl.spec.status import RunStatus
from ddpctl.stages.checkpoints import set_aside
from ddpctl.stages.imports import try_imports
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import UNDO_GRACE_S
from ddpctl.stages.preflight import Options, run_preflight, with_findings, with_rehearsal
from ddpctl.stages.push import provision
from ddpctl.stages.rehearse import run_rehearsal
from ddpctl.stages.restore import ask_held, next_serial, refuse_others, restore
from ddpctl.stages.send import Sent, send
from ddpctl.stages.slots import refuse_in_use
from ddpctl.stages.start import start
from ddpctl.stages.status import live_runs_of
from ddpctl.stages.stop import stop_run
from ddpctl.transport.base import Fleet, FleetOutcome

T = TypeVar("T")

# --skip-preflight skips the checks. The plan still needs the facts: addresses, interfaces, GPUs and free ports.
FACTS_ONLY = Options(only=("ssh",), mesh=False)
LOGIN_KILL = "login.kill"  # a start without this check accepts that the run may end with its login


class Up:
    """Check, provide and start a launch. Each step keeps its result in a field, which a caller reads after a failure.

    After any exception of ``run`` or ``start`` the caller must call ``undo``.
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
        wait: bool = False,
    ) -> None:
        self._launch, self._fleet, self._tell = launch, fleet, tell
        self._fresh = fresh  # set the checkpoints of earlier runs aside
        self._any_project = any_project  # also resume from a checkpoint that another folder's run saved
        self._wait = wait  # for slots that are in use
        self._options = options or Options()
        self._remembered: PreflightReport | None = None  # the result that preflight confirms
        self._sending: Background[Sent] | None = None  # the code, sent while preflight confirms that result
        # Hosts outside the launch are asked in the background: a silent host takes long to fail.
        self._others: Background[FleetOutcome[Holdings]] | None = None
        self._py_spy: Mapping[str, Mapping[str, str]] = {}
        self._held: FleetOutcome[Holdings] = FleetOutcome()  # the checkpoints and starts of the job, on every host
        self.facts = Facts()
        self.report: PreflightReport | None = None
        self.environment: EnvironmentOutcome | None = None
        self.plan: Plan | None = None

    def run(self) -> RunStatus:
        """Take all steps in order; return the run once every node has confirmed its start, or its place in line.

        Raises:
            UsageError: a run of the given name is live, or another folder's run saved the checkpoint to resume from.
            HostsInUse: the slots of a host are not free.
            PreflightFailed, HostsFailed: a step failed.
        """
        if self._launch.alone:
            self._refuse_taken()
        others = [host for host in self._fleet.hosts if host not in self._launch.names]
        self._others = Background(lambda tell: ask_held(self._launch, self._fleet, others))
        report = self._check()
        if report is not self._remembered:
            self._sending = None  # it asked with other facts
        if self._sending is None or self._launch.managed:
            self._refuse_in_use(self.facts)
        if self._launch.managed:
            self._refuse_others(ask_held(self._launch, self._fleet, self._launch.names))  # before the large files
            report = self._try_imports(report, self._provide_environment(report))
            self._rehearse(report)
        else:
            self._provide_environment(report)
        self._provide_code()
        others_held = self._others.result(self._tell)
        self._held = FleetOutcome(
            {**self._held.results, **others_held.results}, {**self._held.errors, **others_held.errors}
        )
        self._refuse_others(self._held)
        if not self._fresh:
            self._restore(report)
        return self.start()

    def undo(self, *, by: str, grace: float = UNDO_GRACE_S) -> KillOutcome | None:
        """End the run on every host of the plan. Without a plan nothing has started, and the result is ``None``."""
        if self.plan is None:
            return None
        return stop_run(self.plan.job, self.plan.run, self.plan.hosts, self._fleet, grace=grace, by=by)

    def _refuse_taken(self) -> None:
        """Raises UsageError: a run of this name is live on a host of the fleet."""
        assert self._launch.job is not None
        name = self._launch.job.name
        live, errors = live_runs_of(self._fleet, self._launch.job_id)
        if live:
            raise name_taken(name, "; ".join(f"run {run.run} on {fold_names(run.hosts)}" for run in live))
        for host in (host for host in errors if host not in self._launch.names):  # preflight reports the launch's own
            self._tell(Note(f"it could not be asked whether a run of the name {name} is live there", "warning", host))

    def _refuse_in_use(self, facts: Facts) -> None:
        """Raises HostsInUse: before environment and code are sent. The start asks again, and its answer counts."""
        if not self._wait:
            refuse_in_use(self._launch.plan(facts), self._fleet)

    def _refuse_others(self, held: FleetOutcome[Holdings]) -> None:
        """Raises UsageError: another folder's run saved the checkpoint to resume from, and no option allows that."""
        if not (self._any_project or self._fresh):
            refuse_others(self._launch, held)

    def _check(self) -> PreflightReport:
        """Raises PreflightFailed: with the exit code of the report, which is 4 where a host could not be reached."""
        report = run_preflight(
            self._launch, self._fleet, self._tell, options=self._options, meanwhile=self._begin_sending
        )
        self.facts = report.facts
        return self._passed(report)

    def _passed(self, report: PreflightReport) -> PreflightReport:
        """Keep the report. Raises PreflightFailed: it has errors."""
        self.report = report
        if report.exit_code:
            raise refusal(report)
        return report

    def _begin_sending(self, remembered: PreflightReport) -> None:
        """Ask for free slots and send the code while preflight confirms its remembered result.

        Code is stored by its hash, so an unused copy does no harm.
        """
        facts = remembered.facts

        def ask_and_send(tell: Tell) -> Sent:
            self._refuse_in_use(facts)
            return send(self._launch, facts, self._fleet, tell)

        self._remembered, self._sending = remembered, Background(ask_and_send)

    def _provide_environment(self, report: PreflightReport) -> EnvironmentOutcome:
        environment = provision(self._launch, self.facts, self._fleet, self._tell, open_ports=report.open_ports)
        self._raise_for(environment.errors, "could not get the environment")
        self.environment = environment
        self.facts = with_environment(self.facts, environment)
        return environment

    def _try_imports(self, report: PreflightReport, environment: EnvironmentOutcome) -> PreflightReport:
        """Raises PreflightFailed: an import of the script fails on some host."""
        if not self._has_check(IMPORTS.id):
            return report
        found = try_imports(self._launch, environment, self._fleet, self._tell)
        return self._passed(with_findings(report, {IMPORTS.id}, found))

    def _rehearse(self, report: PreflightReport) -> None:
        """Raises PreflightFailed: a rank failed the rehearsal."""
        if self._options.deep:
            answers = run_rehearsal(self._launch, self.facts, self._fleet, self._tell)
            self._passed(with_rehearsal(report, answers))

    def _provide_code(self) -> None:
        if self._sending is not None:
            sent = self._sending.result(self._tell)
        else:
            sent = send(self._launch, self.facts, self._fleet, self._tell)
        self._raise_for(sent.errors, "could not get the code")
        self._py_spy = sent.py_spy
        self._held = sent.held

    def _restore(self, report: PreflightReport) -> None:
        """Put the newest checkpoints of earlier runs on every host."""
        preferred = {host: (node.fabric_address,) for host, node in self.facts.nodes.items() if node.fabric_address}
        addresses = Addresses(preferred, report.open_ports)
        errors = restore(self._launch, self._fleet, self._tell, addresses, self._held, wait=self._wait)
        self._raise_for(errors, "could not get the checkpoints of earlier runs")

    def start(self) -> RunStatus:
        """Complete the plan, then start every launcher.

        Raises:
            PreflightFailed: the plan needs facts that preflight did not find.
            UsageError, HostsFailed: see ``start``.
        """
        plan = self._launch.plan(self.facts)
        if plan.unknown:
            raise PreflightFailed(
                f"nothing was started, because this is unknown: {', '.join(plan.unknown)}",
                hint="run `ddpctl preflight`, or set it in the inventory: fabric_address, slots, master_port",
            )
        serial = next_serial(self._launch, self._held, self._fleet)
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
            wait=self._wait,
            outlive=self._has_check(LOGIN_KILL),
        )

    def _has_check(self, name: str) -> bool:
        """Return whether the preflight of this start has the check."""
        checks, _ = judge.choose_checks(CATALOGUE, self._options.only, self._options.skip)
        return any(check.id == name for check in checks)

    def _raise_for(self, errors: Mapping[str, DdpctlError], what: str) -> None:
        if errors:
            total = len(self._launch.hosts)
            raise HostsFailed(f"{len(errors)} of {total} hosts {what}; nothing was started", errors)


def refusal(report: PreflightReport, what: str = "nothing was started") -> PreflightFailed:
    """Return the error of a report in one line: ``what``, the first error, and the count of further errors."""
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    link = f" -> {first.peer}" if first.peer else ""
    where = f"{first.host}{link}: " if first.host else ""
    error = PreflightFailed(f"{what}: {where}{first.message}{more}", hint=first.fix)
    error.exit_code = report.exit_code
    return error


def with_environment(facts: Facts, environment: EnvironmentOutcome) -> Facts:
    """Return ``facts`` with the interpreter and the torch of the installed environment."""
    nodes: dict[str, NodeFacts] = dict(facts.nodes)
    for host in environment.nodes:
        python = environment.python(host)
        if python is not None:
            torch = environment.nodes[host].versions.get("torch")
            env_hash = environment.nodes[host].env_hash
            nodes[host] = replace(facts.node(host), python=python, torch=torch, has_launch=None, environment=env_hash)
    return replace(facts, nodes=nodes)


class Background(Generic[T]):
    """Run ``work`` in a thread, ahead of its turn.

    Its events are kept until the caller asks for the result, so that a person reads the steps in order. Where no caller
    asks, the thread ends with the fleet's connections.
    """

    def __init__(self, work: Callable[[Tell], T]) -> None:
        self._work = work
        self._events: list[Event] = []
        self._outcome: Future[T] = Future()
        threading.Thread(target=self._run, name="ddpctl-background", daemon=True).start()

    def result(self, tell: Tell) -> T:
        """Wait for the work, pass its events on to ``tell``, and return its result or raise its error."""
        self._outcome.exception()
        for event in self._events:
            tell(event)
        return self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._work(self._events.append))
        except BaseException as error:  # raised where the result is wanted
            self._outcome.set_exception(error)
