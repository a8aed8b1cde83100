"""How node records add up to a run."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.merge import current_runs, merge_runs
from ddpctl.spec.outcome import AgreedRun, Attempt, Cause, End, NodeStatus, Strangers, UnfinishedFile
from ddpctl.spec.record import NodeReport, RecordedRun
from ddpctl.spec.status import RunStatus
from ddpctl.spec.verdict import run_state
from ddpctl_worker.wire import contract
from tests.values import recorded, value_of

STATES = sorted(contract.ACTIVE | contract.TERMINAL | contract.NODE_ONLY)


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (["succeeded", "succeeded"], "succeeded"),
        (["succeeded", "failed"], "failed"),
        (["killed", "failed"], "failed"),
        (["killed", "succeeded"], "killed"),
        (["lost", "succeeded"], "lost"),
        (["running", "running"], "running"),
        (["running", "starting"], "starting"),
        (["running", "failed"], "stopping"),
        (["running", "succeeded"], "running"),
        (["unreachable", "succeeded"], "running"),
        (["unreachable", "failed"], "failed"),
        (["unreachable", "failed", "running"], "stopping"),
        (["unreachable", "killed"], "stopping"),
        (["pending", "pending"], "pending"),
        ([], "lost"),
    ],
)
def test_states_add_up(states: list[str], whole: str) -> None:
    assert run_state(states) == whole


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=5))
def test_a_run_is_over_only_when_every_node_is(states: list[str]) -> None:
    over = all(state in contract.TERMINAL for state in states)
    # What a host that is out of reach says one day makes nothing better: a failure stays a failure.
    over = over or ("failed" in states and all(state in {*contract.TERMINAL, "unreachable"} for state in states))
    assert (run_state(states) in contract.TERMINAL) == over
    assert run_state(states) not in contract.NODE_ONLY


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def node(run: str, host: str, state: str = "running", **more: Any) -> NodeReport:
    record = {"project": "exp", "hosts": ["a", "b"], "world_size": 2}
    told = {"run": run, "job": "train", "cluster": "lab", "host": host, "node_rank": 0, "state": state}
    return value_of(NodeReport, {**told, "record": record, **more})


def test_a_host_that_does_not_answer_is_unreachable_and_one_without_the_record_lost() -> None:
    (only,) = merge_runs({"a": [node("1", "a")]})
    assert [one.state for one in only.nodes] == ["running", "unreachable"]
    (only,) = merge_runs({"a": [node("1", "a")], "b": []})
    assert [one.state for one in only.nodes] == ["running", "lost"]


SHARED: dict[str, Any] = {"project": "exp", "hosts": ["a", "b", "c"], "world_size": 3, "timeouts": {"stop": 600}}
SHARED |= {"checkpoint": {"signal": "SIGUSR1", "timeout": 120.0}, "restart": {"restarts": 2}}


@pytest.mark.parametrize(
    "odd",
    [
        {"timeouts": {"stop": 0}},
        {"timeouts": None},
        {"checkpoint": {"signal": "SIGKILL", "timeout": 120.0}},
        {"restart": None},
        {"world_size": 1},
        {"min_nodes": 1},
    ],
)
def test_the_record_of_a_single_host_sets_nothing_for_the_others(odd: dict[str, Any]) -> None:
    """Whichever place the host has in the inventory."""
    (run,) = merge_runs({host: [node("1", host, record=SHARED | (odd if host == "a" else {}))] for host in "abc"})
    assert (run.grace, run.save_signal) == (600.0, "SIGUSR1")
    assert run.record == value_of(RecordedRun, SHARED)


def test_the_first_cause_wins_and_a_victim_never_does() -> None:
    victim = Cause("a", "node_lost", "b went away", "2026-01-01T00:00:01Z")
    culprit = Cause("b", "exited", "ValueError: boom", "2026-01-01T00:00:02Z", rank=1, exit_code=1)
    nodes = (NodeStatus("a", 0, "failed", cause=victim), NodeStatus("b", 1, "failed", cause=culprit))
    run = RunStatus("train", "1", "lab", nodes, recorded())
    assert run.verdict.cause == culprit
    document = run.to_json()
    assert document["cause"]["rank"] == 1
    assert set(document) == {
        "schema", "job", "run", "cluster", "project", "state", "started", "ended", "world_size", "nodes", "cause",
        "candidates",
        "metrics", "metrics_are_printed", "slow", "diagnosis", "attempt", "attempts", "continues", "untracked",
        "checkpoints", "strangers", "without_keeper", "unfinished",
    }  # fmt: skip


def test_the_document_has_the_connections_by_strangers_to_every_host() -> None:
    """A spare is not a node of the attempt, and still has a port."""
    told = {"count": 4210, "addresses": 4, "most": {"10.0.0.9": 4000}, "last": "2026-01-01T00:00:58+00:00"}
    agreed = AgreedRun(1, 1, (Attempt(1, ("a",)),), None)
    nodes = (
        NodeStatus("a", 0, "running", agreed=agreed),
        NodeStatus("b", 1, "pending", strangers=value_of(Strangers, told)),
    )
    document = RunStatus("train", "1", "lab", nodes, recorded(hosts=["a", "b"])).to_json()
    assert [one["host"] for one in document["nodes"]] == ["a"]
    assert document["strangers"] == [{"host": "b", **told}]


def test_the_document_has_the_hosts_whose_keeper_has_ended() -> None:
    nodes = (NodeStatus("a", 0, "running"), NodeStatus("b", 1, "running", keeper_ended=at(1)))
    document = RunStatus("train", "1", "lab", nodes, recorded(hosts=["a", "b"])).to_json()
    assert document["without_keeper"] == [{"host": "b", "since": at(1)}]


def test_the_document_has_the_unfinished_files_of_every_node() -> None:
    cut = {"path": "step_2/model.pt", "bytes": 7}
    nodes = (NodeStatus("a", 0, "killed"), NodeStatus("b", 1, "killed", unfinished=(value_of(UnfinishedFile, cut),)))
    document = RunStatus("train", "1", "lab", nodes, recorded(hosts=["a", "b"])).to_json()
    assert document["unfinished"] == [{"host": "b", **cut}]


STUCK = {"verdict": "rank 1 is stopped", "suspects": [], "since": at(1), "time": at(2)}
SLOW = {"host": "b", "rank": 1, "lag_ms": 20.0, "last_share": 0.9, "why": []}
SAID: dict[str, Any] = {"diagnosis": STUCK, "slow": [SLOW]}
MOVES: dict[str, Any] = {"diagnosis": None, "slow": []}


@pytest.mark.parametrize(
    ("reports", "stuck"),
    [
        ([MOVES | {"reported": at(3)}, SAID | {"reported": at(2)}], False),  # the second host did not get the message
        ([SAID | {"reported": at(2)}, MOVES | {"reported": at(3)}], True),  # the first host decides
        ([None, SAID | {"reported": at(2)}, MOVES | {"reported": at(3)}], False),  # it does not answer: the newest
        ([{"reported": None}, SAID | {"reported": at(2)}], True),  # its disk is new
        ([{"reported": None}, {}], False),
    ],
)
def test_the_node_that_decides_says_who_is_stuck_and_slow(reports: list[dict[str, Any] | None], stuck: bool) -> None:
    record = {"project": "exp", "hosts": ["a", "b", "c"][: len(reports)], "world_size": 3}
    answers = {
        host: [node("1", host, **report, record=record)]
        for host, report in zip("abc", reports, strict=False)
        if report is not None
    }
    (run,) = merge_runs(answers)
    assert (run.diagnosis is not None, bool(run.slow)) == (stuck, stuck)


@pytest.mark.parametrize("first", ["2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z"])
def test_a_host_that_was_cut_off_does_not_blame_the_others(first: str) -> None:
    """On its own it hears nothing of anybody; most hosts decide, and between two hosts node rank 0 decides."""
    told = Cause("c", "node_lost", "nothing was heard of c", "2026-01-01T00:00:02Z")
    alone = Cause("a", "node_lost", "nothing was heard of a", first)
    three = [NodeStatus(host, rank, "failed", cause=told) for rank, host in enumerate("ab")]
    for nodes in (
        [*three, NodeStatus("c", 2, "failed", cause=alone)],
        [three[0], NodeStatus("c", 1, "failed", cause=alone)],
    ):
        assert RunStatus("train", "1", "lab", tuple(nodes)).verdict.cause == told


def test_a_node_that_comes_back_changes_neither_the_cause_nor_the_end() -> None:
    """After a power loss it says that its watchers are gone; the other hosts have agreed long before."""
    lost = {"host": "b", "reason": "node_lost", "message": "nothing was heard of b", "time": "2026-01-01T00:00:20Z"}
    gone = {"host": "b", "reason": "supervisor_lost", "message": "killed", "time": "2026-01-01T00:00:10Z"}
    told = [node("1", "a", "failed", cause=lost, ended="2026-01-01T00:00:21Z")]
    (before,) = merge_runs({"a": told})
    for state in ("lost", "killed"):
        back = node("1", "b", state, cause=gone, ended="2026-01-01T00:00:39Z")
        (after,) = merge_runs({"a": told, "b": [back]})
        assert (after.verdict.state, after.verdict.cause, after.verdict.ended) == (
            before.verdict.state,
            before.verdict.cause,
            before.verdict.ended,
        )
        assert [one.state for one in after.nodes] == ["failed", state]
    other = {"host": "a", "reason": "node_lost", "message": "nothing was heard of a", "time": "2026-01-01T00:00:22Z"}
    back = node("1", "b", "failed", cause=other, ended="2026-01-01T00:00:39Z")
    (after,) = merge_runs({"a": told, "b": [back]})  # it was cut off
    assert (after.verdict.cause, after.verdict.ended) == (before.verdict.cause, before.verdict.ended)


def test_a_host_says_itself_why_its_supervisor_is_gone() -> None:
    seen = {"host": "b", "reason": "supervisor_lost", "message": "is gone", "time": "2026-01-01T00:00:10Z"}
    own = {**seen, "message": "the user's own systemd was ended", "time": "2026-01-01T00:00:11Z"}
    told = node("1", "a", "failed", cause=seen)
    (run,) = merge_runs({"a": [told], "b": [node("1", "b", "lost", cause=own)]})
    assert run.verdict.cause is not None
    assert run.verdict.cause.message == "the user's own systemd was ended"
    (run,) = merge_runs({"a": [told], "b": [node("1", "b", "stale", cause=None)]})
    assert run.verdict.cause is not None
    assert run.verdict.cause.message == "is gone"


def test_a_run_that_nobody_saw_fail_ends_with_the_last_word() -> None:
    gone = {"host": "b", "reason": "node_rebooted", "message": "rebooted", "time": "2026-01-01T00:00:30Z"}
    (run,) = merge_runs({"a": [node("1", "a", "succeeded", ended="t1")], "b": [node("1", "b", "lost", cause=gone)]})
    assert run.verdict.cause is not None
    assert (run.verdict.state, run.verdict.cause.reason, run.verdict.ended) == ("lost", "node_rebooted", "t1")


def test_what_else_may_have_been_the_cause_is_told_once() -> None:
    def cause(host: str, rank: int, second: int) -> dict[str, Any]:
        return {"host": host, "rank": rank, "reason": "exited", "message": "m", "time": f"2026-01-01T00:00:0{second}Z"}

    culprit, one, two = cause("a", 0, 1), cause("b", 1, 3), cause("b", 2, 2)
    (run,) = merge_runs(
        {
            "a": [node("1", "a", "failed", cause=culprit, candidates=[one, two])],
            "b": [node("1", "b", "failed", cause=culprit, candidates=[two, one | {"message": "later"}, culprit])],
        }
    )
    assert [one["rank"] for one in run.to_json()["candidates"]] == [2, 1]
    assert run.to_json()["candidates"][1] == value_of(Cause, one).to_json()


def test_an_end_that_was_seen_stands_when_a_host_is_out_of_reach() -> None:
    (ended,) = merge_runs({"a": [node("1", "a", "killed", ended="t2")], "b": [node("1", "b", "succeeded", ended="t1")]})
    assert ended.verdict.end == End("killed", "t2")
    (later,) = merge_runs({"a": [node("1", "a", "killed", ended="t2")]})
    assert (later.verdict.state, later.verdict.ended, later.verdict.end) == ("stopping", None, None)
    later = replace(later, remembered_end=value_of(End, asdict(ended.verdict.end)))
    assert (later.verdict.state, later.verdict.ended) == ("killed", "t2")
    assert [one.state for one in later.nodes] == ["killed", "unreachable"]


def test_an_ended_run_that_only_some_hosts_still_tell_of_is_not_listed_as_lost() -> None:
    """Host a took part in a newer run and reports only that run; b reports the last run that it knows."""
    runs = merge_runs(
        {"a": [node("2", "a", record={"project": "exp", "hosts": ["a"]})], "b": [node("1", "b", "succeeded")]}
    )
    assert [run.run for run in current_runs(runs)] == ["2"]


def test_what_runs_and_the_newest_of_every_job_is_listed() -> None:
    both = [
        merge_runs({"a": [node(run, "a", state)], "b": [node(run, "b", state)]})[0]
        for run, state in (("1", "running"), ("2", "failed"), ("3", "killed"))
    ]
    assert [run.run for run in current_runs(both)] == ["1", "3"]


@pytest.mark.parametrize(("at", "whole"), [("00:00:22", "killed"), ("00:00:05", "failed")])
@pytest.mark.parametrize("reason", ["node_lost", "rendezvous_timeout"])
def test_a_node_that_a_kill_could_not_reach_loses_the_others_to_it(at: str, whole: str, reason: str) -> None:
    """Or they never join it, when it was starting. Unless it had lost them before."""
    killed = Cause("a", "killed_by_user", "killed by me", "2026-01-01T00:00:10Z")
    lost = Cause("a", reason, "nothing was heard of a", f"2026-01-01T{at}Z")
    run = RunStatus(
        "j", "r", "c", (NodeStatus("a", 0, "killed", cause=killed), NodeStatus("b", 1, "failed", cause=lost))
    )
    assert run.verdict.state == whole
    assert run.verdict.cause == (killed if whole == "killed" else lost)


@pytest.mark.parametrize(
    ("timeouts", "grace"), [({"stop": 3}, 3.0), ({"stop": 0}, 0.0), ({"stop": None}, 30.0), ({}, 30.0), (None, 30.0)]
)
def test_a_kill_gives_the_time_that_the_job_names(timeouts: Any, grace: float) -> None:
    assert RunStatus("train", "1", "lab", (), recorded(timeouts=timeouts)).grace == grace


def elastic(*nodes: NodeStatus, least: int | None = 2) -> RunStatus:
    return RunStatus("train", "1", "lab", nodes, recorded(min_nodes=least))


def ends(host: str, state: str, second: int | None = None, reason: str = "exited") -> NodeStatus:
    """A node that ended at this second, with a cause unless it succeeded."""
    ended = at(second) if second is not None else None
    cause = Cause(host, reason, f"{host} failed", ended) if ended and state == "failed" else None
    return NodeStatus(host, 0, state, ended=ended, cause=cause)


@pytest.mark.parametrize("gone", ["failed", "lost", "unreachable"])
def test_an_elastic_run_goes_down_to_its_fewest_nodes(gone: str) -> None:
    """A lost node that torch's agent does without is no failure, neither during the run nor after its success."""
    away = ends("c", gone, 5 if gone == "failed" else None)
    runs = elastic(ends("a", "running"), ends("b", "running"), away)
    assert (runs.verdict.state, runs.verdict.cause, list(runs.verdict.departed_nodes)) == ("running", None, [away])
    done = elastic(ends("a", "succeeded", 60), ends("b", "succeeded", 61), away)
    assert (done.verdict.state, done.verdict.cause, done.verdict.ended) == ("succeeded", None, at(61))
    assert [one.host for one in done.verdict.candidates] == (["c"] if gone == "failed" else [])
    fewer = elastic(ends("a", "running"), away, replace(away, host="b"))
    assert fewer.verdict.state != "running" or gone == "unreachable"
    assert not fewer.verdict.departed_nodes


def test_a_node_that_fails_once_others_have_succeeded_is_a_failure() -> None:
    late = ends("c", "failed", 60)
    run = elastic(ends("a", "succeeded", 60), ends("b", "succeeded", 61), late)
    assert (run.verdict.state, run.verdict.cause) == ("failed", late.cause)


def test_without_torchs_agent_every_node_counts() -> None:
    nodes = (ends("a", "succeeded", 60), ends("b", "succeeded", 61), ends("c", "failed", 5))
    assert elastic(*nodes, least=None).verdict.state == "failed"


def test_a_loss_that_an_elastic_run_survived_is_not_its_cause() -> None:
    nodes = (ends("a", "failed", 1000), ends("b", "failed", 1001), ends("c", "failed", 5))
    run = elastic(*nodes)
    assert run.verdict.cause == nodes[0].cause
    assert elastic(*nodes, least=None).verdict.cause == nodes[2].cause


def agreed(version: int = 1, over: str | None = None, hosts: str = "abc") -> AgreedRun:
    return AgreedRun(1, version, (Attempt(1, tuple(hosts), at(0)),), End(over) if over else None)


def voters(*states: str, work: str = "ab", ended: int = 0, over: str = "failed") -> RunStatus:
    """A run with restarts on hosts a, b, c ..., of which ``work`` are at work; the first ``ended`` know of its end."""
    nodes = []
    for rank, state in enumerate(states):
        paper = agreed(2, over, work) if rank < ended else agreed(hosts=work)
        nodes.append(NodeStatus("abcde"[rank], rank, state, agreed=None if state == "unreachable" else paper))
    return RunStatus("train", "1", "lab", tuple(nodes), recorded(restart={}, hosts=[*"abcde"[: len(states)]]))


@pytest.mark.parametrize(
    ("run", "whole"),
    [
        (voters("unreachable", "unreachable", "failed", work="abc"), "starting"),  # a and b may have continued it
        (voters("unreachable", "unreachable", "failed", work="abc", ended=3), "starting"),  # by the report of c alone
        (voters("failed", "failed", "unreachable", work="abc"), "failed"),  # c alone cannot continue it
        (voters("failed", "failed", "unreachable", work="abc", ended=2), "failed"),
        (voters("failed", "unreachable"), "failed"),
        (voters("lost", "unreachable"), "stopping"),
        (voters("failed", "lost", "unreachable", work="abc"), "failed"),  # b never votes again
        (voters("lost", "lost", "unreachable"), "lost"),
        (voters("succeeded", "succeeded", "unreachable"), "succeeded"),
        (voters("succeeded", "lost", "unreachable", work="a"), "succeeded"),
        (voters("lost", "lost", "lost"), "lost"),
        (voters("lost", "lost", "pending"), "starting"),  # the spare waits, and does not know that no host comes back
        (voters("succeeded", "succeeded", "pending"), "running"),
        (voters("succeeded", "succeeded", "pending", ended=2, over="succeeded"), "succeeded"),
        (voters("failed", "failed", "stopping", ended=2), "failed"),
        (voters("failed", "failed", "failed"), "failed"),
    ],
)
def test_a_run_with_restarts_is_over_when_no_majority_can_continue_it(run: RunStatus, whole: str) -> None:
    assert run.verdict.state == whole


@pytest.mark.parametrize(
    ("run", "may"),
    [
        (voters("failed", "unreachable", "unreachable", work="abc"), True),
        (voters("failed", "lost", "unreachable", work="abc"), False),
        (voters("lost", "unreachable"), False),
        (voters("failed", "failed", "unreachable", "unreachable", work="abcd"), False),
        (voters("unreachable", "unreachable", "lost", "failed", work="ab"), True),  # half keep their ranks
        (voters("unreachable", "lost", "unreachable", "failed", work="ab"), False),  # b was in that attempt
        (voters("unreachable", "failed", work="a"), True),
    ],
)
def test_silent_hosts_may_go_on_where_no_other_vote_is_needed(run: RunStatus, may: bool) -> None:
    assert run.verdict.silent_may_go_on == may


def test_half_of_the_hosts_may_have_begun_an_attempt_of_which_the_others_have_lost_the_record() -> None:
    run = voters("lost", "lost", "unreachable", "unreachable", work="ab")
    assert not run.verdict.silent_may_go_on
    wiped = replace(run, nodes=(run.nodes[0], replace(run.nodes[1], agreed=None), *run.nodes[2:]))
    assert wiped.verdict.silent_may_go_on


def test_a_host_without_its_record_of_a_run_cannot_continue_it() -> None:
    """It took part in a newer run, and reports only that run; or its disk is new."""
    record = {"project": "exp", "restart": {}, "hosts": ["a", "b", "c"]}
    told = replace(node("1", "c", "failed", record=record), agreed=agreed())
    (only,) = merge_runs({"a": [], "c": [told]})
    assert [one.state for one in only.nodes] == ["lost", "unreachable", "failed"]
    assert only.verdict.state == "failed"


def ranked(record: dict[str, Any], **ranks: tuple[int, ...]) -> RunStatus:
    """A run on hosts with these ranks; a host without any is out of reach."""
    nodes = [
        NodeStatus(host, number, "running" if own else "unreachable", ranks=own)
        for number, (host, own) in enumerate(ranks.items())
    ]
    return RunStatus("train", "1", "lab", tuple(nodes), recorded(**record))


@pytest.mark.parametrize(
    ("run", "wanted", "hosts"),
    [
        (ranked({"world_size": 4}, a=(0, 1), b=(2, 3)), {2}, ["b"]),
        (ranked({"world_size": 4}, a=(0, 1), b=(2, 3)), {1, 2}, ["a", "b"]),
        (ranked({"world_size": 4}, a=(0, 1), b=(2, 3)), {4}, []),
        # A host out of reach has the ranks that no other host has.
        (ranked({"world_size": 4}, a=(0, 1), b=()), {3}, ["b"]),
        (ranked({"world_size": 4}, a=(0, 1), b=()), {1}, ["a"]),
        (ranked({"world_size": 4}, a=(0, 1), b=()), {1, 9}, ["a"]),
        (ranked({"world_size": 4}, a=(0, 1), b=()), {9}, []),
        # A restart may have given a rank to another host, and the next restart may give it to a third.
        (ranked({"world_size": 4, "restart": {}}, a=(0, 1), b=(2, 3)), {2}, ["a", "b"]),
        (ranked({"world_size": 4, "restart": {}}, a=(0, 1), b=(2, 3), c=()), {2}, ["a", "b", "c"]),
        (ranked({"world_size": 4, "restart": {}}, a=(0, 1), b=(2, 3)), {4}, []),
        (ranked({"world_size": 4, "restart": {}}, a=(0, 1), b=(2, 3), c=(4, 5)), {5}, ["a", "b", "c"]),
        (ranked({"world_size": None, "min_nodes": 1}, a=(0, 1), b=(2, 3)), {3}, ["a", "b"]),
    ],
)
def test_which_hosts_may_have_run_a_rank(run: RunStatus, wanted: set[int], hosts: list[str]) -> None:
    assert run.hosts_of(wanted) == hosts
