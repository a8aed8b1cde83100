"""Collects the records of a run from its nodes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from ddpctl.spec.checkpoints import job_checkpoints
from ddpctl.spec.curves import curves
from ddpctl.spec.gpuuse import gpu_use
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.report import RunReport
from ddpctl.spec.status import RunStatus
from ddpctl.spec.times import elapsed
from ddpctl.stages.limits import CLOCK_SKEW_S, REPORT_S
from ddpctl.stages.status import find_run
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.rules.unite import Saved
from ddpctl_worker.wire import contract


def make_report(fleet: Fleet, job: str | None, of: Inventory | None = None) -> RunReport:
    """Report on the run that ``job`` means in the project ``of`` an inventory. Silent hosts are in its ``missing``.

    Raises:
        UsageError, NoSuchJob, HostsFailed: as ``find_run``.
    """
    run = find_run(fleet, job, of)

    def ask(transport: Transport) -> dict[str, Any]:
        held = transport.call("checkpoints", {"job_id": str(run.job_id)}, timeout=REPORT_S)
        return {"held": held, **transport.call("history", {"run": run.run}, timeout=REPORT_S)}

    nodes = [node for node in run.nodes if node.state == contract.UNREACHABLE]
    silent = {node.host: node.note or "it is not in the inventory" for node in nodes}
    outcome = fleet.map(ask, [host for host in run.hosts if host not in silent])
    answers = {host: outcome.results[host] for host in run.hosts if host in outcome.results}
    errors = {host: " ".join(error.message.split()) for host, error in outcome.errors.items()}
    held = job_checkpoints(run.job_id, {host: answer["held"] for host, answer in answers.items()}, {})
    return RunReport(
        run,
        datetime.now(timezone.utc),
        launches={host: answer["launch"] for host, answer in answers.items()},
        curves=curves([answer["attempts"] for answer in answers.values()]),
        gpus=gpu_use({host: answer["gpus"] for host, answer in answers.items()}),
        network=next((answer["network"] for answer in answers.values() if answer["network"] is not None), None),
        checkpoints=_of_run(run, held.saved),
        missing={**silent, **errors},
    )


def _of_run(run: RunStatus, saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Return the checkpoints that this run saved: a job keeps its checkpoints from run to run."""

    def inside(checkpoint: Saved) -> bool:
        before, after = elapsed(checkpoint.time, run.verdict.started), elapsed(run.verdict.ended, checkpoint.time)
        return before is not None and before <= CLOCK_SKEW_S and (after is None or after <= CLOCK_SKEW_S)

    return tuple(checkpoint for checkpoint in saved if inside(checkpoint))
