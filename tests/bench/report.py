"""A measurement and how it is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A number with its reference value. ``aim`` is in words; ``note`` says how it was measured.

    Where there is no number, ``value`` is a word: ``>60``, ``not run``.
    """

    name: str
    value: float | str
    unit: str
    aim: str = ""
    note: str = ""


def table(title: str, rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [f"### {title}", "", "| what | measured | aim | how |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {number(row.value)} {row.unit} | {row.aim} | {row.note} |" for row in rows]
    return "\n".join([*lines, ""])


def number(value: float | str) -> str:
    """Three significant digits, no exponent."""
    if isinstance(value, str):
        return value
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """``median 1.2 (1.1 to 1.4, n=5)``."""
    return (
        f"median {number(statistics.median(values))} ({number(min(values))} to {number(max(values))}, n={len(values)})"
    )
