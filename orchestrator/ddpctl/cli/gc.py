"""``ddpctl gc``: old runs, environments and wheels off the nodes."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.prompt import can_ask, confirm
from ddpctl.render.push import gc_view, size
from ddpctl.stages.gc import collect
from ddpctl.stages.limits import GC_KEEP_DAYS


def gc(
    inventory: Path | None = session.InventoryArgument,
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be removed, and how much it frees."),
    days: float = typer.Option(GC_KEEP_DAYS, "--days", min=0.0, help="Keep anything used in the last N days."),
    yes: bool = typer.Option(False, "-y", "--yes", help="Remove without asking."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Remove old runs, and the environments and wheels that no run uses. Whatever a live run uses is kept.

    On a terminal it asks first; without one, or with --json, it does not.
    """
    where = session.load(inventory, option)
    with session.at_work(where) as (fleet, tell):
        ask = can_ask() and not (yes or dry_run or as_json)
        outcome = collect(where, where.hosts, fleet, tell, delete=not (dry_run or ask), days=days)
        if ask and outcome.bytes:
            session.print_view(gc_view(outcome))
            if confirm(f"remove these, {size(outcome.bytes)} in all?"):
                outcome = collect(where, where.hosts, fleet, tell, delete=True, days=days)
    session.show(outcome, gc_view, as_json=as_json)
    outcome.raise_for_errors()
    return 0
