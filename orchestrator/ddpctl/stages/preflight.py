"""Looks for every known cause of a failing launch before the launch starts.

1. The probe: each host answers the questions of all checks in a single call.
2. The mesh: the nodes dial each other.
3. The firewalls: hosts at which a connection failed list their packet filter rules.
4. The verdicts: pure functions, which see all answers together.
"""

from __future__ import annotations

import posixpath
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpctl.checks import deep, host_slots, judge
from ddpctl.checks.base import Check, Requirements, Target, View
from ddpctl.checks.catalogue import CATALOGUE, MESH_IDS
from ddpctl.checks.fabric import networks_of
from ddpctl.checks.gpu.in_use import devices
from ddpctl.checks.job import script_question
from ddpctl.checks.mesh import network_question
from ddpctl.checks.mesh.faults import hosts_to_read
from ddpctl.checks.python import live_question, torch_of, versions_question
from ddpctl.errors import ConnectError, RemoteError
from ddpctl.spec.autofix import Applied
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.fabric import HostNetwork, choose_fabric
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.job import JobSpec
from ddpctl.spec.mesh import OK, Fabric, Mesh
from ddpctl.spec.network import Network
from ddpctl.spec.plan import Facts, NodeFacts
from ddpctl.spec.preflight import PreflightReport, sorted_findings
from ddpctl.spec.question import Question
from ddpctl.spec.script import read_script
from ddpctl.spec.slots import HostSlots
from ddpctl.spec.values import plural
from ddpctl.stages.execute import Sudo
from ddpctl.stages.fix import read_closed
from ddpctl.stages.imports import with_script_on_nodes
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import FIREWALL_S, FREE_PORT_S, PORT_PAIRS
from ddpctl.stages.mesh import STAGE as MESH_STAGE
from ddpctl.stages.mesh import MeshPlan, run_mesh
from ddpctl.stages.probe import Probed, probe
from ddpctl.stages.recall import find_remembered, key_of, remember, still_holds
from ddpctl.stages.rehearse import run_rehearsal
from ddpctl.stages.slots import ask_slots
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl.transport.pipe import is_garbled
from ddpctl_worker.wire.contract import USUAL_PORTS

STAGE = "preflight"


@dataclass(frozen=True)
class Options:
    """``only`` and ``skip`` are ids of checks or their first parts. Without ``mesh`` no node dials another."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    deep: bool = False
    mesh: bool = True
    reuse: bool = False  # a clean result of the last minute for the same launch will do
    slots: bool = False  # ask which slots are in use; `up` does that itself
    sudo: Sudo | None = None  # reads files as root, with a person's consent

    @property
    def full(self) -> bool:
        """Whether the result has all facts that a launch needs."""
        return self.mesh and not (self.only or self.skip)

    @property
    def may_reuse(self) -> bool:
        return self.reuse and self.full and not self.deep


def run_preflight(
    launch: Launch,
    fleet: Fleet,
    tell: Tell,
    *,
    options: Options | None = None,
    meanwhile: Callable[[PreflightReport], None] = lambda remembered: None,
) -> PreflightReport:
    """Check the hosts of ``launch`` for its job, or without a job for any job.

    A remembered result is confirmed first. ``meanwhile`` is called with it before that, and may begin work that does no
    harm if the result turns out to be wrong. A host that cannot be reached is a finding, not an exception.

    Raises:
        UsageError: ``only`` or ``skip`` names an unknown check; no host was contacted.
    """
    options = options or Options()
    key = key_of(launch)
    earlier = find_remembered(key) if options.may_reuse else None
    if earlier is not None:
        meanwhile(earlier)
        if still_holds(earlier, launch.names[0], fleet):
            tell(StageEnded(STAGE, ok=True, result=f"ok, {earlier.age_s:.0f} s ago"))
            return earlier
    report = _measure(launch, fleet, tell, options)
    if options.full:
        remember(key, report)
    return report


def _measure(launch: Launch, fleet: Fleet, tell: Tell, options: Options) -> PreflightReport:
    begin = time.monotonic()
    cluster = launch.inventory.cluster
    checks, left_out = judge.choose_checks(CATALOGUE, options.only, options.skip)
    targets = Target.all(launch.hosts, launch.job, launch.nproc)
    names = tuple(target.name for target in targets)
    want = Requirements.of(launch.inventory, launch.job, launch.hosts, launch.imports, launch.script)
    tell(StageStarted(STAGE, len(targets)))
    slots: dict[str, HostSlots | RemoteError] = {}

    def ask_for_slots(transport: Transport) -> None:
        if options.slots and host_slots.CHECKS[0] in checks:
            try:
                slots[transport.host] = ask_slots(transport, launch)
            except RemoteError as error:
                slots[transport.host] = error

    probed, ports = _probe(checks, targets, want, cluster, fleet, tell, ask_for_slots)
    view = View(targets, want, probed.answers, probed.errors, probed.timings, slots=slots)
    view = with_script_on_nodes(_with_facts_on_nodes(view, launch.job), checks, fleet, tell)
    networks = tuple(networks_of(view).values())
    wants_mesh = options.mesh and any(check.id in MESH_IDS for check in checks)
    if wants_mesh and len(networks) > 1 and ports:
        view = _with_mesh(view, networks, ports, cluster, fleet, tell, options.sudo)
    fabric = view.mesh.fabric if view.mesh else choose_fabric(networks, ())
    facts = _facts(view, fabric, want, ports)
    findings = judge.judge_checks(checks, view, left_out)
    if view.mesh is not None:
        tell(
            _ended(
                MESH_STAGE, [finding for finding in findings if finding.check in MESH_IDS], whole=not view.mesh.absent
            )
        )
    if options.deep and deep.REHEARSAL in checks:
        reason = _no_rehearsal(findings, want)
        if reason:
            findings += (Finding(deep.REHEARSAL.id, Severity.SKIPPED, f"no rehearsal: {reason}"),)
        else:
            answers = run_rehearsal(launch, facts, fleet, tell)
            findings += judge.judge_checks(deep.CHECKS, replace(view, rehearsal=answers))
    report = PreflightReport(
        cluster=cluster,
        hosts=names,
        findings=sorted_findings(findings, names),
        duration_s=time.monotonic() - begin,
        mesh=view.mesh,
        network=Network.of(view.mesh) if view.mesh is not None else None,
        facts=facts,
        fabric=fabric,
        open_ports=_open_ports(view.mesh),
        unreachable=tuple(host for host, error in probed.errors.items() if isinstance(error, ConnectError)),
    )
    tell(_ended(STAGE, report.findings))
    return report


def _ended(stage: str, findings: Sequence[Finding], *, whole: bool = True) -> StageEnded:
    """``whole``: every host took part."""
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    return StageEnded(stage, whole and not errors, result=plural(errors, "error") if errors else "")


def with_rehearsal(report: PreflightReport, answers: Mapping[str, Mapping[str, Any]]) -> PreflightReport:
    """Return ``report`` with the verdict on the ``answers`` of ``run_rehearsal``, which came after the report."""
    findings = judge.judge_checks(deep.CHECKS, View((), Requirements(), {}, rehearsal=answers))
    return with_findings(report, {check.id for check in deep.CHECKS}, findings)


def with_findings(report: PreflightReport, checks: Collection[str], findings: Sequence[Finding]) -> PreflightReport:
    """Return ``report`` with these ``findings`` in place of its own findings of ``checks``."""
    others = tuple(finding for finding in report.findings if finding.check not in checks)
    return replace(report, findings=sorted_findings((*others, *findings), report.hosts))


def second_look(
    report: PreflightReport, done: Sequence[Applied], launch: Launch, fleet: Fleet, tell: Tell, options: Options
) -> PreflightReport:
    """Run the checks of the applied fixes again, and return ``report`` with the new findings.

    A fix for a mesh check repeats all mesh checks: the fix may have opened links that could not be measured before.
    """
    fixed = {applied.fix.check for applied in done}
    again = MESH_IDS if fixed & MESH_IDS else frozenset()
    made = [finding.check for finding in report.findings if not finding.on_request]
    checks = tuple(dict.fromkeys(check for check in made if check in fixed | again))
    second = run_preflight(launch, fleet, tell, options=replace(options, only=checks, skip=()))
    now = replace(
        report,
        duration_s=report.duration_s + second.duration_s,
        mesh=second.mesh or report.mesh,
        unreachable=second.unreachable,
    )
    return with_findings(now, checks, [finding for finding in second.findings if finding.check in checks])


def _no_rehearsal(findings: Sequence[Finding], want: Requirements) -> str | None:
    """The reason against a rehearsal, or ``None``."""
    if want.managed:
        return "the environment may not be on the nodes yet; `ddpctl up --deep` rehearses once it is there"
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return f"it would hang because of the errors found before it ({errors[0].check})" if errors else None


def _with_facts_on_nodes(view: View, job: JobSpec | None) -> View:
    """Return ``view`` with the facts of a script that lies only on the nodes."""
    texts = [value["text"] for value in view.values(script_question).values() if value["sha256"]]
    if job is None or not texts:
        return view
    facts = read_script(texts[0]).named(posixpath.basename(job.script or ""))
    return replace(
        view, requirements=replace(view.requirements, **Requirements.of_script(job, facts, len(view.targets)))
    )


# --- the probe -------------------------------------------------------------------------------------------------------


def _probe(
    checks: Sequence[Check],
    targets: Sequence[Target],
    want: Requirements,
    cluster: str,
    fleet: Fleet,
    tell: Tell,
    also: Callable[[Transport], None],
) -> tuple[Probed, tuple[int, ...]]:
    """Return the answers to all checks' questions, and the ports that the master picked (empty after a failure).

    ``also`` is called for each host that answered.
    """
    questions = {target.name: _questions(checks, target, want) for target in targets}
    ports: list[int] = []

    def pick(transport: Transport) -> None:
        if transport.host == want.master:
            ports.extend(_pick_ports(transport, want, cluster))
        also(transport)

    probed = probe(questions, fleet, on_done=counting(STAGE, len(targets), tell), also=pick)
    return probed, tuple(ports)


def _questions(checks: Sequence[Check], target: Target, want: Requirements) -> list[Question]:
    asked = judge.collect_questions(checks, target, want)
    keys = {question.key for question in asked}
    return [*asked, *(question for question in _facts_questions(target, want) if question.key not in keys)]


def _facts_questions(target: Target, want: Requirements) -> tuple[Question, ...]:
    """The questions of the plan, which are asked even if no selected check asks them."""
    script = script_question(target, want)
    counted = want.job is not None and target.nproc is None  # as many processes as torch sees GPUs
    live = (live_question(target, want),) if counted else ()
    return (network_question(target, want), versions_question(target, want), *live, *((script,) if script else ()))


def _pick_ports(transport: Transport, want: Requirements, cluster: str) -> tuple[int, ...]:
    """Return the master port (from the job, or a free port) and a free port for the gang.

    Each job starts looking at its own pair of ports, computed from its name: a job gets the same ports every time while
    they are free, and two jobs rarely meet.
    """
    fixed = [want.master_port] if want.master_port is not None else []
    number = zlib.crc32(str(want.job or cluster).encode())
    prefer = fixed[0] + 1 if fixed else USUAL_PORTS[0] + 2 * (number % PORT_PAIRS)
    request = {"count": 2 - len(fixed), "avoid": fixed, "prefer": prefer}
    reply = transport.call("free_port", request, timeout=FREE_PORT_S)
    return (*fixed, *reply["ports"])


# --- the mesh --------------------------------------------------------------------------------------------------------


def _with_mesh(
    view: View,
    networks: tuple[HostNetwork, ...],
    ports: tuple[int, ...],
    cluster: str,
    fleet: Fleet,
    tell: Tell,
    sudo: Sudo | None,
) -> View:
    """Return the view with the mesh, and with the firewall rules of each host at which a connection failed."""
    hosts = {network.host for network in networks}
    master = view.requirements.master if view.requirements.master in hosts else networks[0].host
    plan = MeshPlan(networks, str(master), ports[0], ports[1], cluster, agents=view.requirements.agents)
    mesh, errors = run_mesh(plan, fleet, tell)
    suspected = hosts_to_read(mesh)
    firewalls: dict[str, Mapping[str, Any]] = {}
    if suspected:
        outcome = fleet.map(_read_firewall, suspected)
        firewalls = read_closed(outcome.results, fleet, sudo)
        # Unreadable rules only explain less. A garbled answer is an error of the host.
        errors |= {host: error for host, error in outcome.errors.items() if is_garbled(error)}
    return replace(view, mesh=mesh, firewalls=firewalls, errors={**view.errors, **errors})


def _read_firewall(transport: Transport) -> Mapping[str, Any]:
    texts: dict[str, str] = {}

    def take(frame: Frame) -> None:
        texts[frame.data["tool"]] = frame.raw.decode("utf-8", "replace")

    return {**transport.call("firewall", {}, on_frame=take, timeout=FIREWALL_S), **texts}


def _open_ports(mesh: Mesh | None) -> dict[str, tuple[int, ...]]:
    """Return for each host the ports that no dialer failed to reach."""
    if mesh is None:
        return {}
    seen: dict[tuple[str, int], bool] = {}
    for dial in mesh.dials:
        key = (dial.peer, dial.port)
        seen[key] = seen.get(key, True) and dial.status == OK
    found: dict[str, tuple[int, ...]] = dict.fromkeys(mesh.hosts, ())
    for (host, port), is_open in seen.items():
        if is_open:
            found[host] += (port,)
    return found


# --- the facts of a plan ---------------------------------------------------------------------------------------------


def _facts(view: View, fabric: Mapping[str, Fabric], want: Requirements, ports: tuple[int, ...]) -> Facts:
    nodes = {target.name: _node_facts(view, target, fabric.get(target.name)) for target in view.targets}
    return Facts(
        nodes=nodes,
        master_port=ports[0] if ports else want.master_port,
        gang_port=ports[1] if len(ports) > 1 else None,
    )


def _node_facts(view: View, target: Target, fabric: Fabric | None) -> NodeFacts:
    answers = view.answers.get(target.name, {})

    def value(name: str) -> Any:
        return next((a.value for key, a in answers.items() if key.partition(":")[0] == name and a.ok), None) or {}

    torch = torch_of(view, target.name) or value("versions").get("torch") or {}
    script = read_script(value("script").get("text") or "")
    return NodeFacts(
        gpus=devices(view, target),
        cores=value("network").get("cores"),
        machine=value("network").get("machine"),
        fabric_address=fabric.address if fabric else None,
        interface=fabric.interface if fabric else None,
        torch=torch.get("version"),
        has_launch=value("versions").get("has_launch") if value("versions").get("torch") else None,
        local_rank_arg=script.local_rank_arg,
        start=script.start if value("script").get("text") else None,
    )
