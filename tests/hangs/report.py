"""What a campaign says: a line a job, and at its end a table with what was wrong. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tests.hangs.judge import Facts, Healthy, false_alarms, findings


def line(facts: Facts, seconds: float) -> str:
    """A round; `seconds` is how long it took."""
    word = "WRONG" if findings(facts) else "right"
    times = {"watcher": facts.watcher_s, "doctor": facts.doctor_s}
    said = ", ".join(f"{name} {value:.1f} s" for name, value in times.items() if value is not None)
    rows = [f"{facts.round} {word} {seconds:5.0f} s  {said}".rstrip()]
    return "\n".join([*rows, *(f"       {text}" for text in findings(facts))])


def healthy_line(healthy: Healthy, number: int, seconds: float) -> str:
    found = false_alarms(healthy)
    word = "WRONG" if found else "right"
    row = f"{number:4} {healthy.program:18} {word} {seconds:5.0f} s  {len(healthy.doctors)} looks"
    return "\n".join([row, *(f"       {text}" for text in found)])


def summary(repeat: str, results: Sequence[Facts]) -> str:
    """``repeat`` is the command-line text that makes the same plan again."""
    wrong = [facts for facts in results if findings(facts)]
    rows = [f"{repeat}: {len(results)} hangs, {len(wrong)} wrong", "", *_table(results)]
    for facts in wrong:
        rows += ["", f"{facts.round}", *(f"  {text}" for text in findings(facts)), f"  verdict: {facts.verdict or '-'}"]
    return "\n".join(rows)


def _table(results: Sequence[Facts]) -> Iterator[str]:
    yield "| kind | rounds | right | wrong | watcher: median, max | doctor: median, max |"
    yield "|---|---|---|---|---|---|"
    for name in [*sorted({facts.round.kind for facts in results}), ""]:
        found = [facts for facts in results if name in ("", facts.round.kind)]
        bad = sum(bool(findings(facts)) for facts in found)
        watcher, doctor = spread([one.watcher_s for one in found]), spread([one.doctor_s for one in found])
        yield f"| {name or 'all'} | {len(found)} | {len(found) - bad} | {bad} | {watcher} | {doctor} |"


def spread(values: Sequence[float | None]) -> str:
    """Median and maximum of the seconds that are known."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} s, {max(known):.1f} s" if known else ""


def healthy_summary(results: Sequence[Healthy]) -> str:
    rows = ["| program | runs | false alarms | looks of the doctor |", "|---|---|---|---|"]
    for name in [*sorted({one.program for one in results}), ""]:
        found = [one for one in results if name in ("", one.program)]
        bad, looks = sum(bool(false_alarms(one)) for one in found), sum(len(one.doctors) for one in found)
        rows.append(f"| {name or 'all'} | {len(found)} | {bad} | {looks} |")
    return "\n".join(rows)


def program_line(facts: Facts, seconds: float) -> str:
    """A round without the doctor: where each rank stands, by py-spy."""
    rows = [f"{facts.round} {'WRONG' if facts.trouble else 'right'} {seconds:5.0f} s  {facts.state}"]
    if facts.expected.ends:
        rows.append(f"       cause: {facts.cause}")
    for one in (facts.doctor or {}).get("ranks", ()):
        at = one["stack"][0] if one["stack"] else {"line": "?", "function": "?"}
        mark = "odd" if one["rank"] in facts.expected.odd else ""
        rows.append(f"       rank {one['rank']} {one['state']} line {at['line']} {at['function']} {mark}".rstrip())
    return "\n".join([*rows, *(f"       {text}" for text in facts.trouble)])
