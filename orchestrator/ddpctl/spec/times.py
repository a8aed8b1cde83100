"""Times of records, and how a person says them. Pure."""

from __future__ import annotations

from datetime import datetime


def elapsed(begin: str | None, end: str | None) -> float | None:
    """Seconds between two times of a record; None where one is missing or damaged."""
    try:
        first, last = (datetime.fromisoformat((time or "").replace("Z", "+00:00")) for time in (begin, end))
        return (last - first).total_seconds()
    except (ValueError, TypeError):
        return None


def lasting(took: float) -> str:
    """``8.3 s``, ``3 min 12 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if took < 59.95:
        return f"{took:.1f} s" if took < 10 else f"{took:.0f} s"
    whole = round(took)
    for (one, length), (below, part) in (
        (("d", 86400), ("h", 3600)),
        (("h", 3600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {one} {rest} {below}" if rest else f"{whole // length} {one}"
    return f"{whole} s"
