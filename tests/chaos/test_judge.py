"""The violations that the checker finds, and the campaign's report about them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.catalogue import FAULTS
from tests.chaos.judge import Command, Facts, Part, violations
from tests.chaos.plan import TRAINING, Round
from tests.chaos.report import Result, line, summary, to_json
from tests.restarts import judge as restarts
from tests.restarts.plan import plan

RUN, HOSTS = "20260101T000000Z-abcdef", ("node0", "node1", "node2")
ROUND = Round(3, "kill-rank", 1, TRAINING, 0.5, "plain", "finish", 0.25)


def part(state: str, host: str | None = None, **more: Any) -> Part:
    end = {"state": state, "cause": {"host": host, "message": "gone"} if host else None}
    text = json.dumps(end).encode()
    return Part({"run.json": b'{"run": 1}', "state.json": b'{"state": 1}', "exit.json": text}, (text,), **more)


def ended(**changes: Any) -> Facts:
    """A run that ended as it should: its rank on node1 was killed, and all say so."""
    facts = Facts(ROUND, FAULTS["kill-rank"], acknowledged=True, victim="node1", healthy=HOSTS, main=RUN)
    facts.parts = {RUN: {host: part("failed", "node1") for host in HOSTS}}
    facts.left = {host: [] for host in HOSTS}
    facts.detected, facts.stopped, facts.up_ended = 0.5, 1.0, 2.0
    facts.commands = [Command("up --job x", 1, 9.0, 90.0, frozenset({1}))]
    facts.told = {"state": "failed", "cause": {"host": "node1"}}
    return replace(facts, **changes)


def went_on(**changes: Any) -> Facts:
    facts = ended(fault=FAULTS["kill-guardian"], round=replace(ROUND, fault="kill-guardian"), told={"cause": None})
    facts.parts = {RUN: {host: part("succeeded") for host in HOSTS}}
    facts.commands = [Command("up --job x", 0, 9.0, 90.0, frozenset({0}))]
    return replace(facts, **changes)


def on_node2(other: Part) -> dict[str, dict[str, Part]]:
    return {RUN: {**ended().parts[RUN], "node2": other}}


CHANGED = replace(part("failed", "node1"), exits=(b'{"state": "killed"}', b'{"state": "failed"}'))
LOST = replace(part("failed", "node1"), records={"run.json": b"{}", "state.json": b'{"a": 1}', "exit.json": None})
HANGS = Command("kill x", None, 80.0, 80.0, frozenset({0}))
CRASHED = Command("kill x", 1, 8.0, 80.0, frozenset({0, 7}), "ddpctl: no")
TRACED = Command("up", 1, 8.0, 80.0, frozenset({1}), 'Traceback (most recent call last)\n "orchestrator/ddpctl/x.py"')


def test_nothing_is_said_of_what_is_well() -> None:
    assert violations(ended()) == []
    assert violations(went_on()) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ended(commands=[HANGS]), "hang: `ddpctl kill x` did not end within 80 s"),
        (ended(commands=[CRASHED]), "exit code: `ddpctl kill x` ended with 1, not 0 or 7: ddpctl: no"),
        (ended(left={"node2": ["pid 7 (sleep)"]}), "orphans: on node2 there still runs pid 7 (sleep)"),
        (ended(stopped=None), "hang: the ranks on node0, node1, node2 still ran"),
        (ended(parts=on_node2(CHANGED)), "changed: killed then failed"),
        (ended(parts=on_node2(LOST)), f"exit.json of {RUN} on node2 is lost"),
        (ended(parts=on_node2(part("failed", "node0"))), "node2 blames node0, not node1"),
        (ended(parts=on_node2(part("failed", "node1", launchers=2))), "second attempt: 2 launchers"),
        (ended(parts=on_node2(part("succeeded"))), "must end a run as failed or lost"),
        (ended(parts=on_node2(part("asleep"))), "says asleep, which is no end"),
        (ended(told={"state": "failed", "cause": {"host": "node0"}}), "`ddpctl status` blames node0"),
        (went_on(parts=ended().parts), "kill-guardian must not hurt a run"),
        (went_on(acknowledged=False), "start: the run did not come up"),
        (ended(commands=[TRACED]), "traceback: `ddpctl up` showed one"),
        (went_on(commands=ended().commands), "`ddpctl up` ended with 1, and the run like this"),
    ],
)
def test_each_broken_promise_is_named(facts: Facts, words: str) -> None:
    assert any(words in text for text in violations(facts)), violations(facts)


def test_a_fault_that_came_too_late_may_end_in_any_way() -> None:
    assert violations(went_on(fault=FAULTS["kill-rank"], hit=False)) == []


def test_a_job_with_restarts_is_judged_by_its_attempts() -> None:
    """Neither the end of an attempt nor another cause than the fault's is a violation, a host wrongly set aside is."""
    seen = restarts.Facts(plan(1, 1, ["pair"])[0], 1.0, told={"state": "succeeded", "attempts": []})
    parts = {host: part("succeeded", launchers=2) for host in HOSTS}
    facts = ended(parts={RUN: parts}, carried=seen, told=seen.told)
    assert violations(facts) == []
    assert not facts.must_end
    aside = {"attempt": 1, "set_aside": [{"host": "node3", "why": "slow"}]}
    seen.told = {"state": "succeeded", "attempts": [aside]}
    assert violations(facts) == ["restarts: attempt 1: node3 is set aside (slow), wrongly"]
    seen.told, facts.told = {}, {"state": "failed"}
    assert violations(facts) == ["end: it was carried on, and then ended as failed: None"]


def test_a_host_that_the_kill_could_not_reach_may_have_ended_by_itself() -> None:
    facts = went_on(fault=FAULTS["short-cut"], round=replace(ROUND, fault="short-cut", then="kill"))
    parts = {host: part("killed") for host in HOSTS}
    facts.parts = {RUN: {**parts, "node1": part("failed", "node0")}}
    facts.commands = [Command("kill x", 0, 9.0, 80.0, frozenset({0, 4}))]
    assert len(violations(facts)) == 2
    facts.commands = [replace(facts.commands[0], rc=4)]
    assert violations(facts) == []


def test_a_summary_tells_how_to_repeat_what_was_violated() -> None:
    good = Result(ROUND, True, True, (), 20.0, detected=0.5, stopped=1.0, up_ended=2.0)
    bad = replace(good, round=replace(ROUND, number=4), violations=("hang: `up`",), stopped=3.0)
    assert "detected 0.5 s, stopped 1.0 s" in line(good)
    assert "VIOLATED" in line(bad)
    text = summary("--seed 9", [good, bad])
    assert "python -m tests.chaos --seed 9 --only 4" in text
    assert "| kill-rank | 2 | 1 | 0.5 s, at most 0.5 s | 2.0 s, at most 3.0 s |" in text
    document = json.loads(json.dumps(to_json("--seed 9", [good, bad])))
    assert document["violations"] == 1
    assert document["rounds"][1]["repeat"] == "--seed 9 --only 4"
    assert document["rounds"][0]["round"]["fault"] == "kill-rank"
