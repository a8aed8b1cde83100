"""Reports a slow start: the nodes of a new run that already run their launcher or their ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ddpctl.errors import DdpctlError
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.status import RunStatus
from ddpctl.stages.limits import JOINING_POLL_S, JOINING_QUIET_S, NAMED_QUEUED
from ddpctl.stages.status import read_run
from ddpctl.transport.base import Fleet
from ddpctl_worker.wire import contract


@contextlib.contextmanager
def wait_for_ranks(run: RunStatus, fleet: Fleet, tell: Tell, *, patience: float = JOINING_QUIET_S) -> Iterator[None]:
    """While the body runs, report from a thread how far the start is, until every node runs its ranks."""
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(run, fleet, tell, over, patience), name="joining", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()  # not joined: the thread may wait for a host that does not answer


def _watch(run: RunStatus, fleet: Fleet, tell: Tell, over: threading.Event, patience: float) -> None:
    reported = None
    while not over.wait(patience):
        patience = JOINING_POLL_S
        try:
            now = read_run(fleet, run)
        except DdpctlError:
            continue  # the follower of the run reports it
        text = _waiting(now)
        if over.is_set():
            return
        if text is None:
            if reported is not None and all(node.state == contract.RUNNING for node in now.verdict.active_nodes):
                tell(Note("ranks run on every node"))
            return
        if text != reported:
            tell(Note(text))
        reported = text


def _waiting(run: RunStatus) -> str | None:
    """Return a line such as ``ranks run on 3 of 4 nodes; waiting for node3``, or ``None`` once no node is awaited.

    Nodes without a launcher come first: with static rendezvous no launcher starts ranks before all launchers have met.
    """
    nodes = run.verdict.active_nodes
    coming = [node for node in nodes if node.state in contract.COMING]
    if run.verdict.terminal or not coming or any(node.state in contract.TERMINAL for node in nodes):
        return None
    queued = [f"{node.host}: {node.note}" for node in nodes if node.state == contract.QUEUED and node.note]
    if run.verdict.state == contract.QUEUED:
        return "; ".join(["queued", *queued[:NAMED_QUEUED]])
    without = [node.host for node in coming if node.pid is None]
    if without:
        launched = sum(node.pid is not None for node in nodes)
        return f"launchers run on {launched} of {len(nodes)} nodes; waiting for {fold_names(without)}"
    if len(coming) == len(nodes):
        if len(nodes) == 1:
            return "the launcher runs: no rank has started yet"
        return "launchers run on every node and wait for each other: no rank has started yet"
    running = sum(node.state == contract.RUNNING for node in nodes)
    return f"ranks run on {running} of {len(nodes)} nodes; waiting for {fold_names(node.host for node in coming)}"
