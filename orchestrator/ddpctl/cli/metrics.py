"""``ddpctl metrics``: prints hosts and runs for Prometheus."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.exposition import render_exposition
from ddpctl.stages.slots import ask_claims, unknown_claims
from ddpctl.stages.top import read_overview


def metrics(
    inventory: Path | None = session.InventoryArgument,
    option: Path | None = session.InventoryOption,
) -> int:
    """Print hosts and runs in the text format of Prometheus.

    A host that does not answer is a value (ddpctl_host_up is 0): the exit code stays 0.
    """
    where = session.load(inventory, option, recorded=True)
    with session.fleet_of(where) as fleet:
        seen, outcome = read_overview(fleet)
        _, slots = ask_claims(fleet)
    typer.echo(render_exposition(where.cluster, seen, slots.results, datetime.now(timezone.utc)), nl=False)
    for host, error in outcome.errors.items():
        session.warn(f"warning: {host}: {error.message}")
    for host, why in unknown_claims(slots).items():
        if host not in outcome.errors:
            session.warn(f"warning: {host}: the slots in use are not known: {why}")
    return 0
