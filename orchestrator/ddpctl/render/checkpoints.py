"""The checkpoints of a job, as a table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.render.console import Whole, columns
from ddpctl.render.push import size
from ddpctl.render.status import age_text, lag_text
from ddpctl.spec.checkpoints import JobCheckpoints

MOST_MISSING = 3


def checkpoints_view(found: JobCheckpoints) -> RenderableType:
    """Return a row for each checkpoint, newest first, and below the missing files."""
    if not found.saved:
        return Text(f"{found.job} has no checkpoints")
    table = columns("NAME", "STEP", "SIZE", "SAVED", "HOSTS", "STATE")
    for saved in found.saved:
        step = "-" if saved.step is None else str(saved.step)
        state = Text("complete", style="green") if saved.complete else Text("not complete", style="yellow")
        hosts = Text(", ".join(saved.hosts) or "-")
        table.add_row(Text(saved.entry), step, size(saved.size), age_text(saved.time), hosts, state)
    lines = [Text(f"{saved.entry}: {_missing(saved.missing)}") for saved in found.saved if not saved.complete]
    lag = [lag_text(found.lag)] if found.lag else []
    return Group(Whole(table), *lines, *lag, *_without_copy(found))


def _without_copy(found: JobCheckpoints) -> list[Text]:
    if not found.uncopied:
        return []
    names = ", ".join(found.uncopied)
    text = (
        f"{names}: no other host has a copy. What keeps it from being copied is in supervisor.log of the other hosts:"
    )
    return [Text(f"{text} ddpctl fetch {found.job}", style="yellow")]


def _missing(missing: tuple[str, ...]) -> str:
    more = len(missing) - MOST_MISSING
    text = ", ".join(missing[:MOST_MISSING]) + (f" and {more} more" if more > 0 else "")
    return text if len(missing) == 1 and " " in missing[0] else f"missing {text}"
