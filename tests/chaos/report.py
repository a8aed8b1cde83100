"""What a campaign says: a line a fault, and at its end a summary, as text and as JSON. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.plan import Round

TIMES = (("detected", "detected"), ("stopped", "stopped"), ("up_ended", "`up` ended"))


@dataclass(frozen=True)
class Result:
    """The result of a single round."""

    round: Round
    hit: bool
    must_end: bool
    violations: tuple[str, ...]
    seconds: float
    detected: float | None = None
    stopped: float | None = None
    up_ended: float | None = None


def line(result: Result) -> str:
    word = "VIOLATED" if result.violations else "ok" if result.hit else "missed"
    times = [f"{title} {value:.1f} s" for key, title in TIMES if (value := getattr(result, key)) is not None]
    what = ", ".join(times) if result.must_end else result.round.then
    return f"{result.round} {word:8} {result.seconds:5.1f} s  {what}"


def summary(plan: str, results: Sequence[Result]) -> str:
    """``plan`` is the command-line text that makes the same plan again."""
    bad = [result for result in results if result.violations]
    hit = sum(result.hit for result in results)
    lines = [f"{plan}: {len(results)} rounds, {hit} faults, {len(bad)} with violations", ""]
    lines += _table(results)
    for result in bad:
        lines += ["", f"{result.round}", f"  again: python -m tests.chaos {plan} --only {result.round.number}"]
        lines += [f"  {text}" for text in result.violations]
    return "\n".join(lines)


def _table(results: Sequence[Result]) -> Iterator[str]:
    yield "| fault | rounds | violated | detected | stopped | `up` ended |"
    yield "|---|---|---|---|---|---|"
    for name in [*sorted({result.round.fault for result in results}), ""]:
        found = [result for result in results if name in ("", result.round.fault)]
        bad = sum(bool(result.violations) for result in found)
        times = [spread([getattr(result, key) for result in found]) for key, _ in TIMES]
        yield f"| {name or 'all'} | {len(found)} | {bad} | {' | '.join(times)} |"


def spread(values: Sequence[float | None]) -> str:
    """Median and maximum of the seconds that are known."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} s, at most {max(known):.1f} s" if known else ""


def to_json(plan: str, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "schema": 1,
        "plan": plan,
        "rounds": [{**asdict(result), "repeat": f"{plan} --only {result.round.number}"} for result in results],
        "violations": sum(bool(result.violations) for result in results),
    }
