"""``ddpctl ps``: every job found on the nodes, no matter who started it."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import HostsFailed
from ddpctl.render.status import runs_table
from ddpctl.stages.status import all_runs
from ddpctl_worker.wire import contract


def ps(
    inventory: Path | None = session.InventoryArgument,
    everything: bool = typer.Option(
        False, "-a", "--all", help="Include older finished runs (default: active runs and each job's latest)."
    ),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """List the jobs on the nodes, no matter who started them."""
    where = session.load(inventory, option)
    with session.fleet_of(where) as fleet:
        runs, outcome = all_runs(fleet, everything=everything)
    if as_json:
        rows = [
            {
                "job": run.job,
                "run": run.run,
                "cluster": run.cluster,
                "project": run.project,
                "state": run.state,
                "hosts": list(run.hosts),
                "started": run.started,
                "user": run.user,
            }
            for run in runs
        ]
        session.print_json({"schema": contract.SCHEMA, "jobs": rows})
    else:
        session.print_view(runs_table(runs, where.project))
    for host, answer in outcome.results.items():
        if answer.get("left_out"):
            session.warn(f"warning: {host} has {answer['left_out']} more old runs; ddpctl gc removes them")
    if outcome.errors:
        raise HostsFailed(f"{len(outcome.errors)} of {len(fleet.hosts)} hosts did not answer", outcome.errors)
    return 0
