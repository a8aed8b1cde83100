"""Start every node of a plan; all or nothing."""

from __future__ import annotations

import secrets as random_source
from collections.abc import Mapping
from typing import Any

from ddpctl.errors import HostsFailed
from ddpctl.spec.event import Note, StageEnded, StageStarted, Tell, counting
from ddpctl.spec.outcome import RunStatus, merge_runs
from ddpctl.spec.plan import NodePlan, Plan
from ddpctl.transport.base import Fleet, Transport

START_TIMEOUT_S = 60.0


def start(
    plan: Plan,
    fleet: Fleet,
    tell: Tell,
    secrets: Mapping[str, str] | None = None,
    py_spy: Mapping[str, Mapping[str, str]] | None = None,
) -> RunStatus:
    """Start the launcher on every node and return once each has confirmed a durable start.

    Whatever it raises, some nodes may have started: that is for the caller to undo.

    ``secrets`` are the variables of the job's ``env_file``; they travel on stdin and are never written down. ``py_spy``
    says for each host that has py-spy which file it is (``as_tool``).

    Raises:
        HostsFailed: some node could not be started.
    """
    gang_key = random_source.token_hex(32)
    tell(StageStarted("launch", len(plan.nodes)))

    def start_node(transport: Transport) -> dict[str, Any]:
        own = (py_spy or {}).get(transport.host)
        request = start_request(plan, plan.node(transport.host), secrets or {}, gang_key, own)
        return transport.call("start", request, timeout=START_TIMEOUT_S)

    outcome = fleet.map(start_node, plan.hosts, on_done=counting("launch", len(plan.nodes), tell))
    tell(StageEnded("launch", outcome.ok))
    if not outcome.ok:
        tell(Note("some nodes did not start; stopping the others", level="warning"))
        message = f"{len(outcome.errors)} of {len(plan.nodes)} hosts did not start; the run was ended on the others"
        raise HostsFailed(message, outcome.errors)
    return merge_runs({host: [answer["status"]] for host, answer in outcome.results.items()})[0]


def start_request(
    plan: Plan, node: NodePlan, secrets: Mapping[str, str], gang_key: str, py_spy: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the worker's ``start`` verb is given."""
    return {
        "run": plan.record(node),
        "argv": list(node.command.argv),
        "cwd": node.command.cwd,
        "env": dict(node.command.env),
        "token_env": list(node.token_env),
        "secrets": {name: secrets[name] for name in node.secret_names},
        "gang_key": gang_key,
        "python_exec": True,
        "py_spy": dict(py_spy) if py_spy is not None else None,
    }
