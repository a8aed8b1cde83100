"""The way up, in one place: check, provide the environment, try it out, rehearse if asked, send the code, start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddpctl.checks import judge
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.job_imports import IMPORTS
from ddpctl.code import CodeArchive
from ddpctl.errors import DdpctlError, HostsFailed, PreflightFailed
from ddpctl.spec.event import Tell
from ddpctl.spec.finding import Severity
from ddpctl.spec.imports import Imports
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.outcome import KillOutcome, RunStatus
from ddpctl.spec.plan import Facts, NodeFacts, Plan
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.push import Delivery, EnvironmentOutcome
from ddpctl.stages.ahead import Ahead
from ddpctl.stages.imports import try_imports
from ddpctl.stages.launch import launch
from ddpctl.stages.preflight import Options, run_preflight, with_findings, with_rehearsal
from ddpctl.stages.provision import provision
from ddpctl.stages.push import push_code
from ddpctl.stages.rehearse import run_rehearsal
from ddpctl.stages.stop import stop_run
from ddpctl.transport.base import Fleet

# What is asked even with --skip-preflight: addresses, interfaces, GPUs and free ports are no opinion but facts.
FACTS_ONLY = Options(only=("ssh",), mesh=False)
UNDO_GRACE_S = 2.0  # of a run that has only just begun


@dataclass(frozen=True)
class Wanted:
    """What is to run: everything that is known before a host is contacted.

    ``plan`` makes the launch from what the nodes tell; ``imports`` is what the job's script imports.
    """

    inventory: Inventory
    job: JobSpec
    hosts: tuple[Host, ...]
    archive: CodeArchive | None
    plan: Callable[[Facts], Plan]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Options = field(default_factory=Options)
    imports: Imports | None = None
    nproc: int | None = None
    locked: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)


@dataclass
class Way:
    """How far it has come."""

    report: PreflightReport | None = None
    environment: EnvironmentOutcome | None = None
    facts: Facts = field(default_factory=Facts)
    sending: Ahead[Delivery] | None = None  # the code, where it did not wait for its turn
    plan: Plan | None = None
    status: RunStatus | None = None


Step = Callable[[Wanted, Way, Fleet, Tell], None]


def check(wanted: Wanted, way: Way, fleet: Fleet, tell: Tell) -> None:
    """Preflight; an error ends the way.

    Raises:
        PreflightFailed: with the exit code of the report (4 where a host could not be reached).
    """

    def send_code() -> None:
        # These hosts were fine a moment ago, so they are asked for the code while that is confirmed. Code is stored by
        # its hash: a copy that is not used in the end does no harm.
        archive = wanted.archive
        if archive is not None:
            way.sending = Ahead(lambda tell: push_code(archive, fleet, tell, wanted.names))

    way.report = run_preflight(
        wanted.inventory,
        wanted.hosts,
        wanted.job,
        fleet,
        tell,
        options=wanted.options,
        imports=wanted.imports,
        nproc=wanted.nproc,
        meanwhile=send_code,
    )
    way.facts = way.report.facts
    if way.report.exit_code:
        raise refusal(way.report)


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


def provide_environment(wanted: Wanted, way: Way, fleet: Fleet, tell: Tell) -> None:
    """A managed environment on every node; in existing mode nothing."""
    way.environment = provision(
        wanted.inventory, wanted.hosts, way.facts, fleet, tell, locked=wanted.locked, open_ports=_open_ports(way)
    )
    _raise_for(way.environment.errors, len(wanted.hosts), "could not get the environment")
    way.facts = with_environment(way.facts, way.environment)


def rehearse(wanted: Wanted, way: Way, fleet: Fleet, tell: Tell) -> None:
    """The deep part of the preflight in a managed environment, which only now stands; an error ends the way.

    Raises:
        PreflightFailed: some rank did not get through.
    """
    if not (wanted.options.deep and wanted.inventory.environment.mode == "managed"):
        return
    assert way.report is not None
    told = run_rehearsal(wanted.inventory, wanted.hosts, wanted.job, way.facts, fleet, tell, nproc=wanted.nproc)
    way.report = with_rehearsal(way.report, told)
    if way.report.exit_code:
        raise refusal(way.report)


def try_out(wanted: Wanted, way: Way, fleet: Fleet, tell: Tell) -> None:
    """What the script imports, in a managed environment, which only now stands; an error ends the way.

    Raises:
        PreflightFailed: an import fails on some host.
    """
    checks, _ = judge.chosen(CATALOGUE, wanted.options.only, wanted.options.skip)
    if wanted.inventory.environment.mode != "managed" or IMPORTS not in checks:
        return
    assert way.report is not None
    assert way.environment is not None
    found = try_imports(wanted.inventory, wanted.hosts, wanted.job, wanted.imports, way.environment, fleet, tell)
    way.report = with_findings(way.report, {IMPORTS.id}, found)
    if way.report.exit_code:
        raise refusal(way.report)


def _open_ports(way: Way) -> Mapping[str, Sequence[int]]:
    return way.report.open_ports if way.report else {}


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


def provide_code(wanted: Wanted, way: Way, fleet: Fleet, tell: Tell) -> None:
    """The job's code, where it is sent at all."""
    if wanted.archive is None:
        return
    delivery = way.sending.result(tell) if way.sending else push_code(wanted.archive, fleet, tell, wanted.names)
    _raise_for(delivery.errors, len(wanted.hosts), "could not get the code")


def start(wanted: Wanted, way: Way, fleet: Fleet, tell: Tell) -> None:
    """The plan, now without open questions, and every launcher.

    Raises:
        PreflightFailed: what the plan needs could not be found out.
    """
    plan = wanted.plan(way.facts)
    if plan.unknown:
        raise PreflightFailed(
            f"nothing was started: not known: {', '.join(plan.unknown)}",
            hint="run `ddpctl preflight`, or write it into the inventory: fabric_address, slots, master_port",
        )
    way.plan = plan
    way.status = launch(plan, fleet, tell, wanted.secrets)


STEPS: tuple[Step, ...] = (check, provide_environment, try_out, rehearse, provide_code, start)


def go_up(wanted: Wanted, fleet: Fleet, tell: Tell, *, way: Way | None = None) -> Way:
    """All steps in order. ``way`` is filled as they go, so that the caller sees how far an interrupted one came.

    Whatever it raises, the caller calls ``undo``.

    Raises:
        PreflightFailed, HostsFailed: a step failed.
    """
    way = way or Way()
    for step in STEPS:
        step(wanted, way, fleet, tell)
    return way


def undo(way: Way, fleet: Fleet, *, by: str, grace: float = UNDO_GRACE_S) -> KillOutcome | None:
    """End what may have been started: from the plan on, a start may be under way. None: nothing was."""
    if way.plan is None:
        return None
    return stop_run(way.plan.job, way.plan.run, way.plan.hosts, fleet, grace=grace, by=by)


def _raise_for(errors: Mapping[str, DdpctlError], total: int, what: str) -> None:
    if errors:
        raise HostsFailed(f"{len(errors)} of {total} hosts {what}; nothing was started", errors)
