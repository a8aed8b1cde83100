"""The errors that the judge finds, and the campaign's report about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.hangs.judge import Expected, Facts, Healthy, false_alarms, findings
from tests.hangs.plan import Round
from tests.hangs.report import healthy_summary, line, summary

STALL, LAST = 15.0, 1_800_000_000.0


def a_round(kind: str, odd: tuple[int, ...] = (2,), world: int = 4) -> Round:
    return Round(7, kind, "ddp", world, 5, odd)


def named(*ranks: int) -> list[dict[str, Any]]:
    return [{"host": f"node{rank // 2}", "rank": rank} for rank in ranks]


def at(seconds: float) -> str:
    """An ISO 8601 time so long after the last progress."""
    return datetime.fromtimestamp(LAST + seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def right(kind: str = "sleep", odd: tuple[int, ...] = (2,), world: int = 4) -> Facts:
    """A hang of which the watcher and the doctor say all that they should."""
    expected = Expected.of(a_round(kind, odd, world), "hang7.py", STALL)
    number = max(expected.lines, default=1)
    stack = [{"file": "/x/code/hang7.py", "line": number, "function": "main"}]
    said = {"verdict": "rank 2 is odd", "suspects": named(*odd)}
    ranks = [{"host": f"node{rank // 2}", "rank": rank, "stack": stack} for rank in range(world)]
    diagnosis = {**said, "since": at(0.0), "time": at(expected.stall + 4.0)}
    doctor = {"schema": 1, **said, "ranks": ranks}
    state = "failed" if expected.ends else "running"
    return Facts(a_round(kind, odd, world), expected, LAST, state, diagnosis, None, doctor, 1.0)


def doctor_says(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, doctor={**(facts.doctor or {}), **changes})


def watcher_says(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, diagnosis={**(facts.diagnosis or {}), **changes})


def stack_of(rank: int, *frames: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"rank": rank, "stack": [{"file": file, "line": line, "function": "f"} for file, line in frames]}]


@pytest.mark.parametrize("kind", ["sleep", "spin", "skipped", "disk", "fifo-worker", "exit", "exit-unseen"])
def test_nothing_is_said_of_a_right_diagnosis(kind: str) -> None:
    assert findings(right(kind)) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(right(), diagnosis=None), "watcher: no diagnosis"),
        (watcher_says(right(), time=at(STALL + 15.5)), "watcher: 15.5 s after it could speak"),
        (watcher_says(right(), time=at(STALL - 5.0)), "watcher: 5.0 s before it may speak"),
        (watcher_says(right("spin"), time=at(STALL + 5.0)), "watcher: 25.0 s before it may speak"),
        (watcher_says(right(), suspects=named(1)), "watcher: names rank 1, not rank 2"),
        (replace(right(), doctor=None), "doctor: no answer"),
        (replace(right(), doctor_s=3.5), "doctor: took 3.5 s"),
        (doctor_says(right(), suspects=named(1, 2)), "doctor: names ranks 1, 2, not rank 2"),
        (doctor_says(right(), suspects=[]), "doctor: names nobody, not rank 2"),
        (doctor_says(right(), suspects=[{"host": "node0", "rank": 2}]), "doctor: names the wrong host"),
        (doctor_says(right(), ranks=[]), "doctor: no stack of rank 2"),
        (doctor_says(right(), ranks=stack_of(2)), "doctor: no stack of rank 2"),
        (doctor_says(right(), ranks=stack_of(2, ("hang7.py", 1))), "doctor: rank 2 is at hang7.py:1, not at hang7.py:"),
        (doctor_says(right(), ranks=stack_of(2, ("/lib/threading.py", 9))), "doctor: rank 2 is at /lib/threading.py:9"),
        (replace(right(), trouble=["campaign: no lab"]), "campaign: no lab"),
    ],
)
def test_each_wrong_word_is_named(facts: Facts, words: str) -> None:
    found = findings(facts)
    assert len(found) == 1
    assert found[0].startswith(words), found


def test_two_against_two_may_be_told_either_way() -> None:
    facts = right("two-against-two", (0, 3))
    for ranks in ((0, 3), (1, 2), (0, 1, 2, 3)):
        said = watcher_says(doctor_says(facts, suspects=named(*ranks)), suspects=named(*ranks))
        assert findings(said) == []
    assert findings(doctor_says(facts, suspects=named(0))) == [
        "doctor: names rank 0, not ranks 0, 3 or ranks 1, 2 or ranks 0, 1, 2, 3"
    ]


def test_only_a_cycle_of_all_ranks_may_have_no_suspect() -> None:
    assert findings(doctor_says(right("cycle", (0, 1, 2, 3)), suspects=[])) == []
    assert findings(doctor_says(right("cycle", (0, 1, 2)), suspects=[])) != []


def test_a_subgroup_whose_member_waits_for_all_may_be_named_whole() -> None:
    facts = right("subgroup-elsewhere", (3,))
    assert findings(doctor_says(facts, suspects=named(3, 0, 1))) == []
    assert findings(doctor_says(facts, suspects=named(0, 1))) != []


def test_a_run_that_ended_is_judged_by_its_cause_or_by_the_doctor() -> None:
    facts = replace(right("exit"), diagnosis=None)
    assert findings(facts) == []
    assert findings(replace(facts, state="running")) == ["run: it did not end by itself, it is running"]
    blind = doctor_says(facts, suspects=[], ranks=[])
    assert findings(replace(blind, cause={"host": "node1", "rank": 2})) == []
    assert findings(replace(blind, cause={"host": "node1", "rank": 3})) == ["doctor: names nobody, not rank 2"]
    assert findings(replace(blind, cause=None)) == ["doctor: names nobody, not rank 2"]


def test_the_watcher_is_timed_from_the_moment_at_which_it_may_speak() -> None:
    assert right().watcher_s == pytest.approx(4.0)
    assert right("spin").watcher_s == pytest.approx(4.0)
    assert replace(right(), diagnosis=None).watcher_s is None


def test_a_healthy_job_must_succeed_and_nothing_may_be_said_of_it() -> None:
    good = Healthy("evaluation", "succeeded", doctors=[{"verdict": "all is well", "suspects": []}])
    assert false_alarms(good) == []
    assert false_alarms(replace(good, state="failed")) == ["the run ended as failed"]
    said = {"verdict": "rank 0 is odd", "suspects": named(0), "time": at(1.0)}
    assert false_alarms(replace(good, diagnoses=[said])) == ["watcher: rank 0 is odd"]
    assert false_alarms(replace(good, doctors=[said])) == ["doctor: names rank 0: rank 0 is odd"]


def test_the_summary_counts_by_kind_and_shows_the_verdict_of_what_is_wrong() -> None:
    bad = doctor_says(right("lock"), suspects=named(1), verdict="rank 1 is odd")
    text = summary("--seed 9", [right(), replace(right(), doctor_s=2.0), bad])
    assert "--seed 9: 3 hangs, 1 wrong" in text
    assert "| sleep | 2 | 2 | 0 | 4.0 s, 4.0 s | 1.5 s, 2.0 s |" in text
    assert "| all | 3 | 2 | 1 |" in text
    assert "doctor: names rank 1, not rank 2\n  verdict: rank 1 is odd" in text
    assert "WRONG" in line(bad, 30.0)
    assert "watcher 4.0 s, doctor 1.0 s" in line(right(), 30.0)


def test_the_healthy_summary_counts_by_program() -> None:
    good = Healthy("join", "succeeded", doctors=[{"suspects": []}])
    text = healthy_summary([good, Healthy("join", "failed")])
    assert "| join | 2 | 1 | 1 |" in text
