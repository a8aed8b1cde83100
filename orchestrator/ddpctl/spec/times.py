"""Times of records, and durations as text. Pure."""

from __future__ import annotations

from datetime import datetime


def elapsed(begin: str | None, end: str | None) -> float | None:
    """Return the seconds between two times of a record; ``None``: a time is missing or damaged."""
    try:
        first, last = (datetime.fromisoformat((time or "").replace("Z", "+00:00")) for time in (begin, end))
        return (last - first).total_seconds()
    except (ValueError, TypeError):
        return None


def duration_seconds(took: float) -> str:
    """Return a duration in seconds as text: ``8.3 s``, ``3 min 12 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if took < 59.95:
        return f"{took:.1f} s" if took < 10 else f"{took:.0f} s"
    whole = round(took)
    for (unit, length), (below, part) in (
        (("d", 86400), ("h", 3600)),
        (("h", 3600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit} {rest} {below}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"
