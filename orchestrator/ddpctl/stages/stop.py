"""Ends a run on every node at the same time, with proof that no process is left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ddpctl.checks.report import size
from ddpctl.errors import DdpctlError
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.kill import KillOutcome, StoppedNode
from ddpctl.spec.verdict import run_state
from ddpctl.stages.limits import KILL_GRACES, KILL_PROOF_S
from ddpctl.stages.status import is_no_such_run
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl_worker.wire import contract


def stop_run(
    job: str,
    run: str,
    hosts: Sequence[str],
    fleet: Fleet,
    *,
    grace: float,
    by: str,
    longer: bool = False,
    tell: Tell = lambda event: None,
) -> KillOutcome:
    """Stop ``run`` on all its hosts: SIGTERM, ``grace`` seconds, then SIGKILL until two scans find no process.

    With ``longer`` a stop that is already under way gets this grace, too. A failure on a host does not affect the other
    hosts. The outcome has the proof or the error of every host.
    """
    begun = time.monotonic()

    def stop(transport: Transport) -> Any:
        request = {"run": run, "grace": grace, "by": by, "longer": longer}
        on_frame = partial(_tell_growing, job, transport.host, tell)
        return transport.call("stop", request, on_frame=on_frame, timeout=KILL_GRACES * grace + KILL_PROOF_S)

    outcome = fleet.together(stop, [host for host in hosts if host in fleet.hosts])
    nodes = tuple(_node(host, outcome.results.get(host), outcome.errors.get(host)) for host in hosts)
    duration = time.monotonic() - begun
    return KillOutcome(job, run, _state(outcome.results, nodes), duration, nodes)


def _tell_growing(job: str, host: str, tell: Tell, frame: Frame) -> None:
    found = frame.data["growing"]
    text = (
        f"{found['path']} grows ({size(found['size'])}): a rank may be saving; SIGKILL comes in {found['left']:.0f} s"
    )
    tell(Note(f"{text}; to wait longer, in another terminal: ddpctl kill {job} --grace 300", "warning", host))


def _node(host: str, answer: dict[str, Any] | None, error: DdpctlError | None) -> StoppedNode:
    if answer is None:
        never_started = error is not None and is_no_such_run(error)
        return StoppedNode(host, reachable=never_started, error=None if never_started else error)
    return StoppedNode(host, answer["signalled"], answer["forced"], answer["survivors"])


def _state(answers: Mapping[str, dict[str, Any]], nodes: Sequence[StoppedNode]) -> str:
    states = [answer["status"].state for answer in answers.values()]
    states += [contract.UNREACHABLE for node in nodes if not node.reachable]
    return run_state(states)
