"""The deep part of preflight: every rank starts once with the job's interpreter, backend and interfaces."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.files.program import shipped_jobs
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import Facts, NodePlan, Plan, RunIdentity
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import REHEARSAL_OTHERS_S, REHEARSAL_PHASE_S, REHEARSAL_S, REHEARSAL_SLACK_S
from ddpctl.transport.base import Fleet, Transport

STAGE = "rehearsal"
SCRIPT = "init_proc.py"
TALKATIVE = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}  # only its log names the network


def run_rehearsal(launch: Launch, facts: Facts, fleet: Fleet, tell: Tell) -> dict[str, dict[str, Any]]:
    """Return for each host its ranks (``expected``), with the worker's answer, or with ``error`` if the call failed.

    Raises:
        UsageError: the job cannot be planned on these hosts.
    """
    plan = _rehearsal_of(launch).plan(facts)
    script = (shipped_jobs() / SCRIPT).read_text(encoding="utf-8")
    tell(StageStarted(STAGE, len(plan.nodes)))
    done = counting(STAGE, len(plan.nodes), tell)
    enough = threading.Event()
    last_call = threading.Timer(REHEARSAL_OTHERS_S, enough.set)
    last_call.daemon = True
    first = threading.Semaphore()

    def rehearse(transport: Transport) -> Any:
        request = _request(plan, plan.node(transport.host), script)
        try:
            answer = transport.call("rehearse", request, timeout=REHEARSAL_S + REHEARSAL_SLACK_S, until=enough)
        finally:
            if first.acquire(blocking=False):
                last_call.start()
        done(transport.host, answer)
        return answer

    try:
        outcome = fleet.together(rehearse, plan.hosts)
    finally:
        last_call.cancel()
    tell(StageEnded(STAGE, outcome.ok))
    return {node.host: _answer_of(node, outcome.results, outcome.errors) for node in plan.nodes}


def _answer_of(
    node: NodePlan, results: Mapping[str, dict[str, Any]], errors: Mapping[str, DdpctlError]
) -> dict[str, Any]:
    answer: dict[str, Any] = {"expected": list(node.ranks)}
    if node.host in results:
        return answer | results[node.host]
    return answer | {"error": str(errors[node.host].message), "hint": errors[node.host].hint}


def _rehearsal_of(launch: Launch) -> Launch:
    """Return a launch with the settings of the job and the rehearsal's own program."""
    job = launch.job
    keys: dict[str, Any] = {
        "name": "rehearsal",
        "script": SCRIPT,
        "args": ("--timeout", str(REHEARSAL_PHASE_S)),
        "code": None,
    }
    keys["env"] = {**(job.env if job is not None else {}), **TALKATIVE}
    if job is not None:
        keys |= {"nproc_per_node": job.nproc_per_node, "launcher": job.launcher}
    identity = RunIdentity("rehearsal", Origin("", "", "", 0), "")
    return Launch(launch.inventory, JobSpec(**keys), launch.hosts, nproc=launch.nproc, identity=identity)


def _request(plan: Plan, node: NodePlan, script: str) -> dict[str, Any]:
    return {
        "argv": list(node.command.argv),
        "env": dict(node.command.env),
        "token_env": list(node.token_env),
        "port": plan.master_port,
        "name": SCRIPT,
        "script": script,
        "deadline": REHEARSAL_S,
    }
