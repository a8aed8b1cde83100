"""The results of a push, of data or of code, and of a gc."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.render.console import Whole, columns
from ddpctl.spec.data import DataOutcome
from ddpctl.spec.push import GcOutcome, PushOutcome, Traffic
from ddpctl.spec.values import plural

MOST_ROWS = 200


def gc_view(outcome: GcOutcome) -> RenderableType:
    """Return a row for each item, biggest first on each host, and the sum."""
    rows = [(host, item) for host, items in outcome.hosts.items() for item in sorted(items, key=lambda i: -i.bytes)]
    hosts = plural(len(outcome.hosts), "host")
    if not rows:
        return Text(f"nothing to remove on {hosts}")
    table = columns("HOST", "KIND", "NAME", "SIZE", "AGE")
    for host, item in rows[:MOST_ROWS]:
        table.add_row(Text(host), item.kind, Text(item.name), size(item.bytes), age(item.age_s))
    word = "would free" if outcome.dry_run else "freed"
    total = Text(f"{word} {size(outcome.bytes)} on {hosts}")
    if len(rows) > MOST_ROWS:
        total.append(f" ({len(rows) - MOST_ROWS} more things not shown; --json has all)")
    return Group(Whole(table), total)


def age(seconds: float) -> str:
    """Return ``3d``, ``5h``, ``7m``."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def push_view(outcome: PushOutcome) -> RenderableType:
    """Return a row for each node, and the bytes."""
    table = columns("HOST", "STATE", "ENVIRONMENT", "CODE", "TORCH", "PYTHON")
    for node in outcome.nodes:
        table.add_row(
            Text(node.host),
            Text("ok", style="green") if node.error is None else Text("failed", style="bold red"),
            (node.environment or "-")[:12],
            (node.code or "-")[:12],
            node.versions.get("torch", "-"),
            Text(node.python),
        )
    return Group(Whole(table), Text(f"{traffic_line(outcome.traffic)}  {outcome.duration_s:.1f}s"))


def data_view(outcome: DataOutcome) -> RenderableType:
    """Return a row for each node, the bytes, and the line for the inventory."""
    table = columns("HOST", "STATE", "PATH")
    for node in outcome.nodes:
        state = Text("ok", style="green") if node.error is None else Text("failed", style="bold red")
        table.add_row(Text(node.host), state, Text(node.path or "-"))
    what = f"{outcome.name}: {plural(outcome.files, 'file')}, {size(outcome.size)}, version {outcome.version[:16]}"
    lines = [what, f"{traffic_line(outcome.traffic)}  {outcome.duration_s:.1f}s"]
    if outcome.link:
        lines.append("in the job: links: {{{}: {}}}".format(*outcome.link))
    else:
        lines.append("the hosts differ in base_dir, and links needs the same place on every host: set one base_dir")
    return Group(Whole(table), *map(Text, lines))


def traffic_line(traffic: Traffic) -> str:
    """Return ``needed 210.0 MB: sent 105.0 MB, relayed 105.0 MB, already there 0 B``."""
    return (
        f"needed {size(traffic.needed)}: sent {size(traffic.sent_by_controller)}, "
        f"relayed {size(traffic.relayed)}, already there {size(traffic.reused)}"
    )


def size(count: int) -> str:
    """Return bytes with a decimal unit."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("not reached")
