"""What the campaign says: a line a round, and a table of the kinds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.restarts.plan import Round


@dataclass(frozen=True)
class Result:
    """The result of a single round. Seconds: from the fault to the first rank (``born``) and to the first step of the
    next attempt, and from the start of the round to its end (``took``). ``load``: of the machine, at the end.
    """

    round: Round
    wrong: Sequence[str]
    seconds: float | None
    outcome: str
    took: float
    born: float | None = None
    load: float = 0.0


def line(result: Result) -> str:
    word = "WRONG" if result.wrong else "right"
    times = [f"next rank {result.born:.1f} s"] if result.born is not None else []
    times += [f"step {result.seconds:.1f} s"] if result.seconds is not None else []
    said = [*times, result.outcome, f"{result.took:.0f} s in all", f"load {result.load:.0f}"]
    row = f"{result.round} {word} {', '.join(said)}"
    return "\n".join([row, *(f"       {text}" for text in result.wrong)])


def table(results: Sequence[Result]) -> Iterator[str]:
    yield "| kind | rounds | right | next attempt, first rank: median | worst | first step: median | worst | ended |"
    yield "|---|---|---|---|---|---|---|---|"
    for kind in dict.fromkeys([*(one.round.kind for one in results), "all"]):
        found = [one for one in results if kind in (one.round.kind, "all")]
        right, over = sum(not one.wrong for one in found), sum(one.outcome == "ended" for one in found)
        born, step = spread(one.born for one in found), spread(one.seconds for one in found)
        yield f"| {kind} | {len(found)} | {right} | {born} | {step} | {over} |"


def spread(values: Iterable[float | None]) -> str:
    """Median and worst of the seconds that are known, as two cells."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} s | {max(known):.1f} s" if known else "- | -"
