"""End a run on every node at once, with proof that nothing is left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, RemoteError
from ddpctl.spec.outcome import KillOutcome, NodeStatus, StoppedNode, run_state
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker import contract

# What the worker may need beyond the grace: rounds of SIGKILL until two scans come back empty.
PROOF_S = 30.0
GRACES = 2  # a supervisor that hangs is waited for; the ranks then get the same time from the worker itself


def stop_run(job: str, run: str, hosts: Sequence[str], fleet: Fleet, *, grace: float, by: str) -> KillOutcome:
    """Stop ``run`` on all its hosts: SIGTERM, ``grace`` seconds, then SIGKILL until nothing is found twice.

    A host that cannot be reached is in the outcome as such; every other host is stopped all the same.

    Raises:
        HostsFailed: a worker answered with an error of its own (not: a host was unreachable).
    """
    begun = time.monotonic()

    def stop(transport: Transport) -> dict[str, Any]:
        return transport.call("stop", {"run": run, "grace": grace, "by": by}, timeout=GRACES * grace + PROOF_S)

    known = [host for host in hosts if host in fleet.hosts]
    outcome = fleet.together(stop, known)
    faults = {host: error for host, error in outcome.errors.items() if not _harmless(error)}
    if faults:
        raise HostsFailed(f"{len(faults)} of {len(hosts)} hosts could not stop {run}", faults)
    nodes = tuple(_node(host, outcome.results.get(host), outcome.errors.get(host)) for host in hosts)
    return KillOutcome(job, run, _state(outcome.results, nodes), time.monotonic() - begun, nodes)


def _harmless(error: DdpctlError) -> bool:
    """Unreachable is reported as such; a node that never had the run has nothing to stop."""
    return isinstance(error, ConnectError) or (isinstance(error, RemoteError) and error.kind == contract.NO_SUCH_RUN)


def _node(host: str, answer: dict[str, Any] | None, error: DdpctlError | None) -> StoppedNode:
    if answer is None:
        return StoppedNode(host, reachable=isinstance(error, RemoteError))
    survivors = tuple((int(one["pid"]), str(one["cmd"])) for one in answer["survivors"])
    return StoppedNode(host, int(answer["signalled"]), int(answer["forced"]), survivors)


def _state(answers: dict[str, Any] | Any, nodes: Sequence[StoppedNode]) -> str:
    states = [NodeStatus.from_json(answer["status"]).state for answer in answers.values()]
    states += [contract.UNREACHABLE for node in nodes if not node.reachable]
    return run_state(states)
