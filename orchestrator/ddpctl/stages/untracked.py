"""Asks the hosts of a run for files that no declared output covers: ``fetch`` leaves these files on the nodes."""

from __future__ import annotations

from dataclasses import replace

from ddpctl.spec.outcome import Untracked, find_missing_path
from ddpctl.spec.status import RunStatus
from ddpctl.stages.limits import UNTRACKED_S
from ddpctl.stages.status import is_no_such_run
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.wire import contract


def with_untracked(fleet: Fleet, run: RunStatus) -> RunStatus:
    """Return the run with its untracked files, and with the earlier run that wrote the path that this run missed.

    Hosts that were unreachable a moment ago are not asked.
    """
    request = {"run": run.run, "missing": find_missing_path(run.verdict.cause)}

    def ask(transport: Transport) -> Untracked:
        found: Untracked = transport.call("untracked", request, timeout=UNTRACKED_S)
        return found

    absent = (contract.UNREACHABLE, contract.LOST)
    asked = [node.host for node in run.nodes if node.state not in absent and node.host in fleet.hosts]
    outcome = fleet.map(ask, asked)
    found = [outcome.results[host] for host in asked if host in outcome.results and outcome.results[host].files]
    found += [
        Untracked(host, error=" ".join(error.message.split()))
        for host, error in outcome.errors.items()
        if not is_no_such_run(error)
    ]
    writer = max((each.writer for each in outcome.results.values() if each.writer), default=None)
    return replace(run, untracked=tuple(found), writer=writer)
