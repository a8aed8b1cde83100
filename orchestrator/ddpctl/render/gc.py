"""What a clean-up removed, or would remove."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpctl.render.console import Whole
from ddpctl.render.push import size
from ddpctl.spec.garbage import GcOutcome

MOST_ROWS = 200


def gc_view(outcome: GcOutcome) -> RenderableType:
    """A row a thing, biggest first on each host, and the sum."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("HOST", "KIND", "NAME", "SIZE", "AGE"):
        table.add_column(name)
    rows = [(host, item) for host, items in outcome.hosts.items() for item in sorted(items, key=lambda i: -i.bytes)]
    for host, item in rows[:MOST_ROWS]:
        table.add_row(Text(host), item.kind, Text(item.name), size(item.bytes), age(item.age_s))
    word = "would free" if outcome.dry_run else "freed"
    total = Text(f"{word} {size(outcome.bytes)} on {len(outcome.hosts)} hosts")
    if len(rows) > MOST_ROWS:
        total.append(f" ({len(rows) - MOST_ROWS} more things not shown; --json has all)")
    return Group(Whole(table), total) if rows else total


def age(seconds: float) -> str:
    """``3d``, ``5h``, ``7m``."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
