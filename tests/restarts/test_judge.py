"""What the campaign calls wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.restarts.judge import Facts, findings
from tests.restarts.plan import plan
from tests.restarts.report import Result, line, table
from tests.restarts.train import Steps

RIGHT = {step: 1.0 / step for step in range(1, 200)}
POWER = plan(1, 1, ["power-worker"])[0]  # node1 of node0 and node1; node2 is the spare


def steps(resumed: int, number: int, at: float, off: float = 0.0) -> Steps:
    return Steps(resumed, [(s, RIGHT[s] + off, at + s) for s in range(resumed + 1, resumed + 1 + number)])


def carried(**changes: Any) -> Facts:
    """As it should be: lost at 1050 s, and carried on from step 40 at 1071 s."""
    first = {host: steps(0, 49, 1000.0) for host in ("node0", "node1")}
    second = {host: steps(40, 20, 1030.0) for host in ("node0", "node2")}
    told = {"state": "running", "cause": None, "attempts": [done([("node1", "silent")]), done([])]}
    begun = {0: 990.0, 1: 1066.0}
    facts = Facts(POWER, 1050.0, {0: first, 1: second}, {"node0": 40, "node2": 30}, begun, told=told)
    return replace(facts, **changes)


def done(set_aside: list[tuple[str, str]]) -> dict[str, Any]:
    return {"attempt": 1, "hosts": [], "set_aside": [{"host": host, "why": why} for host, why in set_aside]}


def over(message: str | None, state: str = "failed") -> dict[str, Any]:
    return {"state": state, "cause": {"message": message} if message else None, "attempts": []}


def second(**hosts: Steps) -> dict[int, dict[str, Steps]]:
    return {0: dict(carried().attempts[0]), 1: hosts}


def test_nothing_is_said_of_what_is_well() -> None:
    assert findings(carried(), RIGHT) == []
    assert (carried().born, carried().seconds) == pytest.approx((16.0, 21.0))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (carried(twice=[{"node0": {0}, "node2": {1}}]), "two attempts at once"),
        (carried(attempts=second(node0=steps(40, 5, 1000.0))), "attempt 0 still made steps after"),
        (carried(attempts=second(node0=steps(40, 5, 1030.0, off=2e-6))), "the loss of step 41 is"),
        (carried(attempts=second(node0=steps(30, 5, 1040.0))), "resumed from step 30, and step 40 was complete"),
        (carried(attempts=second(node0=steps(40, 5, 1030.0), node2=steps(41, 5, 1030.0))), "different steps"),
        (carried(attempts={0: carried().attempts[0]}), "no later attempt carries it on"),
        (carried(told=over("lost"), ended=True), "no later attempt carries it on"),
        (carried(told=over(None), ended=True), "it ended as failed, with the cause {}"),
        (carried(told={**over(None), "attempts": [done([("node2", "slow")])]}), "node2 is set aside (slow), wrongly"),
        (carried(left=["node0: pid 7"]), "still there: node0: pid 7"),
        (carried(trouble=["kill: 6"]), "kill: 6"),
        (carried(round=plan(1, 1, ["exception-again"])[0]), "it was to end with the script's exception"),
    ],
)
def test_each_broken_promise_is_named(facts: Facts, words: str) -> None:
    assert any(words in text for text in findings(facts, RIGHT)), findings(facts, RIGHT)


def test_a_run_may_end_with_its_cause_where_the_fault_allows_it() -> None:
    facts = carried(round=plan(1, 1, ["pair"])[0], told=over("cut off"), ended=True)
    assert findings(facts, RIGHT) == []
    facts = carried(round=plan(1, 1, ["exception-again"])[0], told=over("batch 7 is broken"), ended=True)
    assert findings(facts, RIGHT) == []


def test_a_line_that_a_power_loss_cut_off_does_not_count() -> None:
    read = Steps.read("resumed 4\n5 0.2 10.5\n6 0.1")
    assert (read.resumed, read.rows) == (4, [(5, 0.2, 10.5)])


def test_the_table_has_a_row_for_each_kind_and_one_for_all() -> None:
    results = [Result(POWER, [], 20.0, "attempt 1", 60.0), Result(POWER, ["bad"], 30.0, "attempt 1", 60.0)]
    assert "| power-worker | 2 | 1 | - | - | 25.0 s | 30.0 s | 0 |" in list(table(results))
    assert list(table(results))[-1].startswith("| all | 2 | 1 |")
    assert "WRONG step 30.0 s" in line(results[1])
    assert line(results[1]).endswith("bad")
