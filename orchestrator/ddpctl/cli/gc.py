"""``ddpctl gc``: old runs, environments and wheels off the nodes."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.prompt import confirm, require_terminal
from ddpctl.render.console import stderr_console, stdout_console
from ddpctl.render.push import gc_view, size
from ddpctl.stages.gc import KEEP_DAYS, collect


def gc(
    inventory: Path | None = session.InventoryArgument,
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be removed, and how much it frees."),
    days: float = typer.Option(KEEP_DAYS, "--days", min=0.0, help="Keep anything used in the last N days."),
    yes: bool = typer.Option(False, "-y", "--yes", help="Remove without asking."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Remove old runs, and the environments and wheels that no run uses. Whatever a live run uses is kept."""
    ask = not (yes or dry_run)
    if ask:
        require_terminal(
            "gc asks before it removes anything",
            otherwise="`ddpctl gc --dry-run` lists it, `ddpctl gc --yes` removes it",
        )
    where = session.load(inventory, option)
    with session.at_work(where) as (fleet, tell):
        outcome = collect(where, where.hosts, fleet, tell, delete=not (dry_run or ask), days=days)
        if ask and outcome.bytes:
            (stderr_console() if as_json else stdout_console()).print(gc_view(outcome))
            if confirm(f"remove these, {size(outcome.bytes)} in all?"):
                outcome = collect(where, where.hosts, fleet, tell, delete=True, days=days)
    session.show(outcome, gc_view, as_json=as_json)
    outcome.raise_for_errors()
    return 0
