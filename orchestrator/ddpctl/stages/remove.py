"""Removes an ended run from its nodes, and from the records of this machine."""

from __future__ import annotations

import logging
from typing import Any

from ddpctl.errors import DdpctlError, UsageError
from ddpctl.files.records import forget_run
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.removal import RemovedPart, RemovedRun
from ddpctl.spec.status import RunStatus
from ddpctl.stages.limits import REMOVE_S
from ddpctl.stages.status import not_listed
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.wire import contract

_NOT_LIVE = contract.TERMINAL | {contract.UNREACHABLE}
_log = logging.getLogger(__name__)


def remove_run(run: RunStatus, fleet: Fleet) -> RemovedRun:
    """Remove the folder of ``run`` on each of its hosts: record, logs, outputs, never checkpoints. Safe to repeat.

    Raises:
        UsageError: the run is live on a host that answered; nothing was removed.
    """
    live = [node.host for node in run.nodes if node.state not in _NOT_LIVE]
    if live:
        raise UsageError(
            f"run {run.run} of {run.job} is live on {fold_names(live)}", hint=f"end it: ddpctl kill {run.run}"
        )

    def remove(transport: Transport) -> Any:
        return transport.call("remove", {"run": run.run}, timeout=REMOVE_S)

    outcome = fleet.map(remove, [host for host in run.hosts if host in fleet.hosts])
    parts = tuple(_part(host, outcome.results.get(host), outcome.errors.get(host)) for host in run.hosts)
    removed = RemovedRun(run.job, run.run, parts)
    if not any(part.error for part in parts):
        _forget(run.run)
    return removed


def _part(host: str, answer: dict[str, Any] | None, error: DdpctlError | None) -> RemovedPart:
    if answer is None:
        return RemovedPart(host, error=error or not_listed(host))
    return RemovedPart(host, removed=answer["removed"])


def _forget(run: str) -> None:
    try:
        forget_run(run)
    except OSError as error:
        _log.warning("run %s stays in the records of this machine: %s", run, error)
