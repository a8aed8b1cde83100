"""The document of ``ps --json``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ddpctl.spec.slots import Claim, OtherRun, place_of_run, slots_of_run
from ddpctl.spec.status import RunStatus
from ddpctl_worker.wire import contract


def runs_document(
    runs: Sequence[RunStatus], others: Sequence[OtherRun], claims: Sequence[Claim], now: datetime
) -> dict[str, Any]:
    """Return the runs of this account and of ``others``, with the keys of docs/json.md."""
    rows: list[dict[str, Any]] = [
        {
            "job": run.job,
            "run": run.run,
            "cluster": run.cluster,
            "project": run.project,
            "state": run.verdict.state,
            "hosts": list(run.hosts),
            "started": run.verdict.started,
            "user": run.user,
        }
        for run in runs
    ]
    rows += [
        {
            "job": other.first.job,
            "run": other.first.run,
            "cluster": other.first.cluster,
            "project": other.first.project,
            "state": other.state,
            "hosts": list(other.hosts),
            "started": other.started(now),
            "user": other.first.account,
        }
        for other in others
    ]
    for row in rows:
        row.update(slots=slots_of_run(claims, row["run"]), place=place_of_run(claims, row["run"]))
    return {"schema": contract.SCHEMA, "jobs": rows}
