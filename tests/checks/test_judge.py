"""From the catalogue to questions, from answers to findings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.checks import judge
from ddpctl.checks.base import Check, Requirements, Target, Timing, View
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.report import differences
from ddpctl.errors import UsageError
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_hosts_by_value
from ddpctl.spec.origin import JobId
from ddpctl.spec.question import Answer, Question, probe_questions
from ddpctl_worker import facts

NODES = tuple(Target(name, name, "python3", "~/d", nproc=1) for name in "abc")


def check(name: str, *asks: Question, found: tuple[Finding, ...] = ()) -> Check:
    return Check(name, f"title of {name}", lambda view: found, ask=asks)


def test_only_and_skip_take_ids_and_subjects() -> None:
    run, out = judge.choose_checks(CATALOGUE, only=["gpu", "host.disk"], skip=["gpu.xid"])
    assert "host.disk" in {one.id for one in run}
    assert "gpu.xid" in {one.id for one in out}
    assert {one.id.split(".")[0] for one in run} == {"gpu", "host"}
    assert len(run) + len(out) == len(CATALOGUE)


def test_a_misspelt_check_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"gpu\.xid"):
        judge.choose_checks(CATALOGUE, only=["gpu.xids"])


def test_two_checks_share_a_question_with_the_longer_deadline() -> None:
    asked = judge.collect_questions(
        [check("a.a", Question("disk", {"path": "/"}, 3.0)), check("b.b", Question("disk", {"path": "/"}, 9.0))],
        NODES[0],
        Requirements(),
    )
    assert [(one.key, one.deadline) for one in asked] == [("disk:path='/'", 9.0)]


def test_every_question_is_one_the_worker_knows_and_travels_as_json() -> None:
    want = Requirements(
        job=JobId("lab", "exp", "j"),
        script="/x.py",
        workdir="/w",
        master="a",
        master_port=29500,
        data=("/data",),
        packages=("numpy",),
    )
    asked = judge.collect_questions(CATALOGUE, NODES[0], want)
    assert {one.name for one in asked} <= set(facts.QUESTIONS)
    assert json.loads(json.dumps(probe_questions(asked))) == probe_questions(asked)


def test_a_check_that_finds_nothing_is_ok_once_and_one_left_out_is_skipped() -> None:
    ask = Question("x")
    view = View(NODES, Requirements(), {node.name: {"x": Answer(True, 1)} for node in NODES})
    found = judge.judge_checks([check("a.a", ask)], view, [check("b.b", ask)])
    assert [(one.check, one.severity) for one in found] == [("a.a", Severity.OK), ("b.b", Severity.SKIPPED)]


def _exempting(one: Check, exempt: dict[str, str]) -> Check:
    return replace(one, exempt=lambda view: exempt)


def test_where_a_check_does_not_apply_it_is_skipped_and_says_why() -> None:
    ask = Question("x")
    view = View(NODES, Requirements(), {node.name: {"x": Answer(True, 1)} for node in NODES})
    for exempt, expected in (
        (
            {"a": "no GPU found", "c": "no GPU found"},
            [(Severity.OK, None, ()), (Severity.SKIPPED, None, ("a", "c"))],
        ),
        ({"b": "no GPU found"}, [(Severity.OK, None, ()), (Severity.SKIPPED, "b", ("b",))]),
        (dict.fromkeys("abc", "no GPU found"), [(Severity.SKIPPED, None, ("a", "b", "c"))]),
    ):
        found = judge.judge_checks([_exempting(check("a.a", ask), exempt)], view)
        assert [(one.severity, one.host, one.hosts if one.hosts else ()) for one in found] == expected
        assert found[-1].message == "not applicable: no GPU found"


def test_what_was_looked_at_nowhere_is_not_ok() -> None:
    ask = Question("x")
    view = View(NODES[:2], Requirements(), {node.name: {"x": Answer(True, 1)} for node in NODES[:2]})
    closed = [Finding("a.a", Severity.UNKNOWN, "not checked: for root only", host) for host in "ab"]
    everywhere = judge.judge_checks([check("a.a", ask, found=tuple(closed))], view)
    assert [one.severity for one in everywhere] == [Severity.UNKNOWN, Severity.UNKNOWN]
    on_one = judge.judge_checks([check("a.a", ask, found=tuple(closed[:1]))], view)
    assert [one.severity for one in on_one] == [Severity.UNKNOWN, Severity.OK]


def test_a_question_that_fails_is_unknown_there() -> None:
    view = View(
        NODES, Requirements(), {"a": {"x": Answer(True, 1)}, "b": {"x": Answer(False, error="PermissionError")}}
    )
    found = judge.judge_checks([check("a.a", Question("x"))], view)
    assert [(one.severity, one.host) for one in found] == [(Severity.UNKNOWN, "b"), (Severity.OK, None)]
    assert found[0].message == "not checked: PermissionError"


def test_a_question_without_an_answer_is_a_warning_on_that_host_alone() -> None:
    view = View(
        NODES, Requirements(), {"a": {"x": Answer(True, 1)}, "b": {"x": Answer(False, error="late", timed_out=True)}}
    )
    found = judge.judge_checks([check("a.a", Question("x"))], view)
    assert [(one.severity, one.host) for one in found] == [(Severity.WARNING, "b")]
    assert "late" in found[0].message


def _numbers(view: View) -> list[Finding]:
    values = view.values(Question("x"))
    return [Finding("a.a", Severity.WARNING, "odd", host) for host, value in values.items() if value % 2]


def test_an_answer_that_a_check_cannot_read_is_a_finding_of_its_host_and_hides_no_other() -> None:
    answers = {"a": {"x": Answer(True, 3)}, "b": {"x": Answer(True, ["no number"])}, "c": {"x": Answer(True, 2)}}
    one = Check("a.a", "numbers", _numbers, ask=(Question("x"),))
    found = judge.judge_checks([one], View(NODES, Requirements(), answers))
    assert [(one.severity, one.host) for one in found] == [(Severity.WARNING, "a"), (Severity.ERROR, "b")]
    assert "cannot be read" in found[1].message
    assert "TypeError" in found[1].message


def test_an_answer_by_which_a_check_cannot_tell_where_it_applies_is_a_finding_of_its_host() -> None:
    """Whether a host has GPUs at all is read from the kernel's data about them."""
    answers = {host: {"nvidia_smi": Answer(True, None), "nvidia_kernel": Answer(True, {"gpus": []})} for host in "ab"}
    answers["b"]["nvidia_kernel"] = Answer(True, ["no mapping"])
    checks = [one for one in CATALOGUE if one.id == "gpu.driver"]
    found = judge.judge_checks(checks, View(NODES[:2], Requirements(), answers))
    assert [(one.severity, one.host) for one in found] == [(Severity.ERROR, "b"), (Severity.SKIPPED, "a")]


def test_answers_that_only_together_cannot_be_read_are_a_finding_all_the_same() -> None:
    answers = {"a": {"x": Answer(True, 3)}, "b": {"x": Answer(True, "3")}}
    one = Check("a.a", "numbers", lambda view: sorted_values(view), ask=(Question("x"),))
    (found,) = judge.judge_checks([one], View(NODES, Requirements(), answers))
    assert (found.severity, found.host) == (Severity.ERROR, None)


def sorted_values(view: View) -> list[Finding]:
    sorted(view.values(Question("x")).values())
    return []


def test_nobody_answered_nothing_is_said() -> None:
    assert judge.judge_checks([check("a.a", Question("x"))], View(NODES, Requirements(), {})) == ()


def test_no_gpu_host_that_answers_nothing_at_all_breaks_any_check() -> None:
    view = View(
        NODES, Requirements(job=JobId("lab", "exp", "j"), master="a", master_port=1), {node.name: {} for node in NODES}
    )
    judge.judge_checks(CATALOGUE, view)


def test_every_check_survives_a_host_on_which_every_question_fails() -> None:
    want = Requirements(
        job=JobId("lab", "exp", "j"),
        script="/x.py",
        workdir="/w",
        master="a",
        master_port=29500,
        data=("/d",),
        packages=("numpy",),
    )
    failed = Answer(False, error="PermissionError: [Errno 13]")
    answers = {node.name: {one.key: failed for one in judge.collect_questions(CATALOGUE, node, want)} for node in NODES}
    found = judge.judge_checks(CATALOGUE, View(NODES, want, answers))
    bad = {Severity.WARNING, Severity.ERROR, Severity.UNKNOWN, Severity.SKIPPED}
    assert {one.severity for one in found if one.severity is not Severity.OK} <= bad


@given(st.floats(-1e5, 1e5), st.floats(0, 60), st.floats(0, 30), st.floats(0, 30))
def test_the_clock_rule_is_right_to_within_its_uncertainty(ahead: float, work: float, out: float, back: float) -> None:
    start = 1_700_000_000.0
    timing = Timing(start, start + out + ahead, start + out + work + ahead, start + out + work + back)
    assert abs(timing.offset - ahead) <= timing.uncertainty + 1e-5


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.sampled_from("xyz"), min_size=1))
def test_differences_name_each_host_of_a_minority_once(values: dict[str, str]) -> None:
    found = differences(Severity.ERROR, values, what="v")
    parts = group_hosts_by_value(values)
    assert sum(len(hosts) for _, hosts in parts) == len(values)
    if len(parts) == 1:
        assert found == []
    elif len(parts[0][1]) == len(parts[1][1]):
        assert len(found) == 1
        assert found[0].host is None
    else:
        assert len(found) == len(parts) - 1
        assert all(one.host is None or len([h for h in values if values[h] == values[one.host]]) == 1 for one in found)
