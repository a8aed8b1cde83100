"""Starts every node of a plan; all nodes or no node."""

from __future__ import annotations

import secrets as random_source
from collections.abc import Mapping, Sequence
from typing import Any

from ddpctl.environment.spread import new_credentials
from ddpctl.errors import DdpctlError, HostsFailed, RemoteError
from ddpctl.spec.event import Note, StageEnded, StageStarted, Tell, counting
from ddpctl.spec.merge import merge_runs
from ddpctl.spec.names import name_taken
from ddpctl.spec.network import Network
from ddpctl.spec.plan import NodePlan, Plan
from ddpctl.spec.status import RunStatus
from ddpctl.stages.limits import BEGIN_S, START_S
from ddpctl.stages.slots import start_refused, warn_unclaimed
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl_worker.wire import contract


def start(
    plan: Plan,
    fleet: Fleet,
    tell: Tell,
    secrets: Mapping[str, str] | None = None,
    py_spy: Mapping[str, Mapping[str, str]] | None = None,
    notify: Sequence[Mapping[str, Any]] = (),
    *,
    serial: int,
    network: Network | None = None,
    alone: bool = False,
    wait: bool = False,
    outlive: bool = True,
) -> RunStatus:
    """Start the launcher on every node and return once each has confirmed a durable start.

    After an exception some nodes may have started: the caller must undo that.

    Args:
        secrets: the variables of the job's ``env_file``. They travel on stdin and are never written to a disk.
        py_spy: for each host with py-spy, its file (``as_tool``).
        notify: the job's notifiers with their addresses, which are secrets, too.
        network: the measurements of preflight, for the record.
        alone: refuse to start while another run of the name is live on a node. The first node is then asked before the
            other nodes, so that of two simultaneous launches only the first starts.
        serial: the number of this start of the job.
        wait: put the run in line on every node, where it waits for its slots; the nodes start it by themselves.
        outlive: refuse to start on a node where the run would end with its login.

    Raises:
        UsageError: ``alone``, and another run of the name is live.
        HostsInUse: slots of a node are not free.
        HostsFailed: a node could not be started.
    """
    gang_key = random_source.token_hex(32)
    copying = _credentials(plan)
    tell(StageStarted("launch", len(plan.hosts)))

    def start_node(transport: Transport) -> Any:
        own = (py_spy or {}).get(transport.host)
        request = start_request(plan, plan.node(transport.host), secrets or {}, gang_key, own, notify)
        more = {
            "run": {**request["run"], "serial": serial},
            "alone": alone,
            "outlive": outlive,
            "copying": copying,
            "network": network.to_json() if network is not None else None,
            "line": {"address": plan.node(transport.host).address} if wait else None,
        }
        return transport.call("start", {**request, **more}, timeout=START_S)

    on_done = counting("launch", len(plan.hosts), tell)
    answers: dict[str, dict[str, Any]] = {}
    errors: dict[str, DdpctlError] = {}
    for hosts in (plan.hosts[:1], plan.hosts[1:]) if alone else (plan.hosts,):
        outcome = fleet.map(start_node, hosts, on_done=on_done)
        answers.update(outcome.results)
        errors.update(outcome.errors)
        if errors:
            break
    if (plan.restarts or wait) and not errors:
        begun = _line_up(plan, fleet, answers) if wait else _begin(plan, fleet, answers)
        answers = {host: {**answers[host], **answer} for host, answer in begun.results.items()}
        errors.update(begun.errors)
    tell(StageEnded("launch", not errors))
    if errors:
        if alone:
            _raise_taken(plan, errors)
        if all(_is_kind(error, contract.IN_USE) for error in errors.values()):
            raise start_refused(plan, fleet, list(errors))
        tell(Note("some nodes did not start; stopping the others", level="warning"))
        message = f"{len(errors)} of {len(plan.hosts)} hosts did not start; the run was ended on the others"
        raise HostsFailed(message, errors)
    _warn_beside(plan, answers, tell)
    warn_unclaimed(answers, plan.hosts, tell)
    return merge_runs({host: [answer["status"]] for host, answer in answers.items()})[0]


def _raise_taken(plan: Plan, errors: Mapping[str, DdpctlError]) -> None:
    for error in errors.values():
        if _is_kind(error, contract.LIVE):
            raise name_taken(plan.job, error.summary) from error


def _is_kind(error: DdpctlError, kind: str) -> bool:
    return isinstance(error, RemoteError) and error.kind == kind


def _warn_beside(plan: Plan, answers: Mapping[str, Mapping[str, Any]], tell: Tell) -> None:
    """Warn of another live run of the name: both share the job's checkpoints, which is allowed but rarely intended."""
    others = sorted({run for answer in answers.values() for run in answer.get("beside", ())})
    if others:
        what = f"{plan.job} is also live as {', '.join(others)}, with the same folder for checkpoints"
        tell(Note(f"{what}; `ddpctl up --name NAME` keeps runs apart", level="warning"))


def _begin(plan: Plan, fleet: Fleet, answers: Mapping[str, Mapping[str, Any]]) -> FleetOutcome[dict[str, Any]]:
    """Send all agents' addresses to all hosts of a run with restarts. Each waits for its peers and starts its part."""
    peers = _peers(plan, answers)

    def begin(transport: Transport) -> Any:
        return transport.call("begin", {"run": plan.run, "peers": peers}, timeout=BEGIN_S)

    return fleet.together(begin, list(peers))


def _line_up(plan: Plan, fleet: Fleet, answers: Mapping[str, Mapping[str, Any]]) -> FleetOutcome[dict[str, Any]]:
    """Send the addresses of all waiters to all hosts of a run that waits for slots, and the order of their claims.

    The order is by the machines' own names, which do not depend on an inventory: so it is the same for all runs.
    """
    order = sorted(plan.hosts, key=lambda host: (answers[host]["machine"], host))
    more = {"run": plan.run, "peers": _peers(plan, answers), "order": order}
    return fleet.together(lambda transport: transport.call("line_up", more, timeout=BEGIN_S), list(plan.hosts))


def _peers(plan: Plan, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {node.host: [node.address, answers[node.host]["port"]] for node in plan.nodes}


def _credentials(plan: Plan) -> dict[str, str] | None:
    """Return a certificate and key for copying checkpoints between the nodes; ``None`` where the run copies no files.

    Nodes copy checkpoints during the run with ``replicas``, and before another attempt with ``restarts``. Like the
    gang's key, the credentials are never written to a disk.
    """
    if plan.gang_port is None or len(plan.nodes) < 2 or not (plan.checkpoint["replicas"] or plan.restarts):
        return None
    made = new_credentials()
    return {"certificate": made.certificate, "key": made.key}


def start_request(
    plan: Plan,
    node: NodePlan,
    secrets: Mapping[str, str],
    gang_key: str,
    py_spy: Mapping[str, str] | None = None,
    notify: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the request of the worker's ``start`` verb for a node."""
    return {
        "run": plan.record(node),
        "argv": list(node.command.argv),
        "cwd": node.command.cwd,
        "env": dict(node.command.env),
        "token_env": list(node.token_env),
        "secrets": {name: secrets[name] for name in node.secret_names},
        "gang_key": gang_key,
        "py_spy": dict(py_spy) if py_spy is not None else None,
        "notify": list(notify),
    }
