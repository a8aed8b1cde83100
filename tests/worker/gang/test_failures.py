"""How the hub decides, with a clock of the test's own; and the wire, with an enemy on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.gang.failures import FailureJudge
from ddpctl_worker.gang.limits import (
    CULPRIT_S,
    EARLY_S,
    ENDED_S,
    LATE_S,
    MAX_LINE,
    MUTE_S,
    REJOIN_S,
    SILENT_S,
    SLACK_S,
    VICTIMS_S,
)
from ddpctl_worker.gang.wire import HubWire, MemberWire, from_wire, to_wire
from ddpctl_worker.machine.strangers import Stranger
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome

HOSTS = ["hub", "a", "b"]


def make_judge() -> FailureJudge:
    judge = FailureJudge(HOSTS, "hub")
    for host in HOSTS:
        judge.heard(host, 100.0)
    return judge


def failure(host: str, victim: bool = False, suspect: bool = False) -> Outcome:
    return outcomes.failed(outcomes.cause(host, "exited", f"{host} failed"), victim=victim, suspect=suspect)


def decided(judge: FailureJudge, now: float) -> str | None:
    for host in HOSTS:
        if judge.nodes[host].gone is None:
            judge.heard(host, now)
    verdict = judge.tick(now)
    return None if verdict is None or verdict.cause is None else verdict.cause["host"]


def test_a_culprit_is_named_after_a_moment() -> None:
    judge = make_judge()
    judge.report(failure("a"), 0.0, 101.0)
    assert decided(judge, 101.0 + CULPRIT_S - 0.1) is None
    assert decided(judge, 101.0 + CULPRIT_S) == "a"


def test_the_earliest_counts_not_the_first_to_arrive() -> None:
    judge = make_judge()
    judge.report(failure("a"), 0.1, 101.0)
    judge.report(failure("b"), 3.0, 101.5)
    assert decided(judge, 103.0) == "b"


def test_victims_wait_for_their_culprit() -> None:
    judge = make_judge()
    judge.report(failure("a", victim=True), 0.0, 101.0)
    assert decided(judge, 101.0 + VICTIMS_S - 0.1) is None
    judge.report(failure("b"), 0.0, 101.0 + VICTIMS_S - 0.1)
    assert decided(judge, 101.0 + VICTIMS_S + CULPRIT_S) == "b"


def test_only_victims_end_it_too() -> None:
    judge = make_judge()
    for host in HOSTS:
        judge.report(failure(host, victim=True), 0.1 if host == "a" else 0.0, 101.0)
    assert decided(judge, 101.0 + VICTIMS_S) == "a"


def test_a_node_that_has_told_of_nothing_is_waited_for() -> None:
    """Its rank is the culprit, and slow to die: it writes a core dump, or hangs in its exit for a while."""
    judge = make_judge()
    for host in ("hub", "a"):
        judge.report(failure(host, victim=True), 0.0, 101.0)
    assert judge.undecided
    assert decided(judge, 101.0 + MUTE_S - 0.1) is None
    judge.report(failure("b"), 0.0, 101.0 + MUTE_S - 0.1)
    assert decided(judge, 101.0 + MUTE_S - 0.1 + CULPRIT_S) == "b"
    assert not judge.undecided


def test_a_node_that_has_told_of_nothing_is_not_waited_for_for_ever() -> None:
    judge = make_judge()
    judge.report(failure("a", victim=True), 0.0, 101.0)
    assert decided(judge, 101.0 + MUTE_S) == "a"


def test_victims_wait_until_a_node_whose_beats_have_stopped_is_given_up() -> None:
    """The node has lost its power; the switch says "No route to host" to the other ranks long before SILENT_S."""
    judge = make_judge()
    for host in ("hub", "a"):
        judge.report(failure(host, victim=True), 0.0, 108.0)
    now = 108.0
    while now < 100.0 + SILENT_S + SLACK_S:
        judge.heard("hub", now)
        judge.heard("a", now)
        assert judge.tick(now) is None
        now += LATE_S - 0.5
    for _ in range(3):
        verdict = judge.tick(now)
        now += CULPRIT_S
    assert verdict is not None
    assert verdict.cause is not None
    assert (verdict.cause["host"], verdict.cause["reason"]) == ("b", "node_lost")


def decide_timeouts(*places: str) -> str:
    """Return the message of the verdict after a collective timed out on the hub, on a and on b, in these places."""
    judge = make_judge()
    for host, place in zip(HOSTS, places, strict=False):
        text = f"rank 7 was killed: collective operation timeout in {place} (a peer failed or hung first)"
        judge.report(outcomes.failed(outcomes.cause(host, "signaled", text, rank=7), victim=True), 0.0, 101.0)
    decided(judge, 101.0 + VICTIMS_S + MUTE_S + SLACK_S)
    assert judge.verdict is not None
    assert judge.verdict.cause is not None
    return f"{judge.verdict.cause['host']}: {judge.verdict.cause['message']}"


def test_collectives_that_timed_out_on_all_nodes_are_compared() -> None:
    equal = decide_timeouts("ALLREDUCE #80", "ALLREDUCE #80", "ALLREDUCE #80")
    assert equal.startswith("hub: rank 7 was killed: collective operation timeout in ALLREDUCE #80, as on all other ")
    assert equal.endswith("check the network between the nodes")
    behind = decide_timeouts("ALLREDUCE #96", "BROADCAST #64", "ALLREDUCE #96")
    assert behind.startswith("a: ")
    assert behind.endswith("in BROADCAST #64, while the other nodes had come to #96")
    other = decide_timeouts("ALLREDUCE #80", "ALLREDUCE #80", "BROADCAST #80")
    assert other.startswith("hub: ")
    assert other.endswith("in ALLREDUCE #80, and rank 7 on b in BROADCAST #80: they do not match")


@pytest.mark.parametrize("places", [("ALLREDUCE #80", "ALLREDUCE #80"), ("ALLREDUCE #80", "X #2 of group 5", "X #2")])
def test_collectives_of_some_nodes_or_of_subgroups_are_not_compared(places: tuple[str, ...]) -> None:
    assert decide_timeouts(*places) == (
        "hub: rank 7 was killed: collective operation timeout in ALLREDUCE #80 (a peer failed or hung first)"
    )


SAME = ("ALLREDUCE #80",) * 3


def decide_in_time(in_time: list[list[int] | None], places: Sequence[str] = SAME) -> tuple[str, int | None, str]:
    """Return host, rank and message of the verdict. ``in_time``: of each node, the ranks without a time-out."""
    judge = make_judge()
    for host, place, ranks in zip(HOSTS, places, in_time, strict=True):
        text = f"rank 7 was killed: collective operation timeout in {place} (a peer failed or hung first)"
        late = outcomes.failed(outcomes.cause(host, "signaled", text, rank=7, signal="SIGABRT"), victim=True)
        sent = json.loads(json.dumps(to_wire(late._replace(in_time=None if ranks is None else tuple(ranks)), 0.0)))
        judge.report(from_wire(sent), 0.0, 101.0)
    decided(judge, 101.0 + VICTIMS_S + MUTE_S + SLACK_S)
    assert judge.verdict is not None
    assert judge.verdict.cause is not None
    cause = judge.verdict.cause
    assert judge.verdict.victim is False
    return cause["host"], cause["rank"], cause["message"]


def test_the_only_rank_without_a_time_out_is_the_cause() -> None:
    assert decide_in_time([[], [4], []]) == (
        "a",
        4,
        "all ranks but rank 4 on a timed out in ALLREDUCE #80: rank 4 came last, or not at all",
    )


@pytest.mark.parametrize(
    ("in_time", "words"),
    [
        ([[], [], []], "as on all other nodes"),
        ([[], [4, 5], []], "as on all other nodes"),
        ([[0], [4], []], "as on all other nodes"),
        ([[], [4], None], "as on all other nodes"),
    ],
    ids=["all timed out", "two of a node", "two of two nodes", "not known of a node"],
)
def test_without_a_single_rank_in_time_no_rank_was_waited_for(in_time: list[list[int] | None], words: str) -> None:
    assert words in decide_in_time(in_time)[2]


def test_a_rank_in_time_is_not_named_when_the_collectives_differ() -> None:
    host, rank, text = decide_in_time([[], [4], []], ("ALLREDUCE #80", "ALLREDUCE #80", "ALLREDUCE #79"))
    assert (host, rank) == ("b", 7)
    assert text.endswith("in ALLREDUCE #79, while the other nodes had come to #80")


def test_a_suspect_comes_after_a_culprit_and_before_a_victim() -> None:
    judge = make_judge()
    judge.report(failure("a", victim=True), 5.0, 101.0)
    judge.report(failure("b", suspect=True), 9.0, 101.1)
    assert decided(judge, 101.0 + VICTIMS_S - 0.1) is None
    assert [one["host"] for one in judge.causes()] == ["b", "a"]
    judge.report(failure("hub"), 0.0, 101.0 + VICTIMS_S - 0.1)
    assert [one["host"] for one in judge.causes()] == ["hub", "b", "a"]
    judge = make_judge()
    judge.report(failure("a", victim=True), 5.0, 101.0)
    judge.report(failure("b", suspect=True), 9.0, 101.1)
    assert decided(judge, 101.0 + VICTIMS_S) == "b"


def test_a_lost_supervisor_is_the_cause_of_its_victims() -> None:
    judge = make_judge()
    judge.closed("b", 101.0)
    judge.report(failure("a", victim=True), 0.0, 101.2)
    assert decided(judge, 101.0 + REJOIN_S - 0.1) is None
    assert decided(judge, 101.0 + REJOIN_S + 0.1) is None  # found lost just now
    verdict = judge.tick(101.0 + REJOIN_S + 0.1 + CULPRIT_S)
    assert verdict is not None
    assert verdict.cause is not None
    assert (verdict.cause["host"], verdict.cause["reason"]) == ("b", "supervisor_lost")


def test_a_connection_that_comes_back_is_no_loss() -> None:
    judge = make_judge()
    judge.closed("b", 101.0)
    judge.heard("b", 103.0)
    assert decided(judge, 101.0 + REJOIN_S + 2) is None


def test_silence_is_a_loss() -> None:
    judge = make_judge()
    judge.heard("a", 115.0)
    judge.tick(100.0 + SILENT_S + 0.1)
    verdict = judge.tick(100.0 + SILENT_S + 0.1 + CULPRIT_S)
    assert verdict is not None
    assert verdict.cause is not None
    assert (verdict.cause["host"], verdict.cause["reason"]) == ("b", "node_lost")


def test_a_node_that_said_goodbye_may_be_silent() -> None:
    judge = make_judge()
    judge.goodbye("b")
    judge.closed("b", 101.0)
    judge.heard("a", 200.0)
    assert judge.tick(200.0) is None
    assert not judge.settled()
    judge.goodbye("a")
    assert judge.settled()


def early(host: str, rank: int | None = 2) -> Outcome:
    why = outcomes.ended_early(host, rank, "2026-11-22T12:01:07.123+00:00", 0.0)
    return outcomes.failed(why, suspect=True)


ENDED = "ended with exit code 0 at 12:01:07 UTC"
QUESTION = "before the others failed: do all ranks run the same number of steps?"


def test_a_rank_that_ended_too_early_is_the_cause_of_victims() -> None:
    judge = make_judge()
    judge.report(failure("a", victim=True), 0.0, 120.0)
    judge.report(early("b"), 14.0, 120.5)
    assert decided(judge, 120.0 + MUTE_S - 0.1) is None  # the hub has reported no failure, and may have the culprit
    assert decided(judge, 120.0 + MUTE_S) == "b"
    assert judge.verdict is not None
    cause = judge.verdict.cause
    assert cause is not None
    assert (cause["rank"], cause["exit_code"], cause["reason"]) == (2, 0, "exited")
    assert cause["message"] == f"rank 2 on b {ENDED}, 14 s {QUESTION}"
    assert cause["time"].startswith("2026-11-22T12:01:07")


def after_an_early_end(living: dict[str, int | None], silent: str | None = None) -> FailureJudge:
    """Return a judge: rank 2 on b ended at 106, the ranks of hub and a failed at 119 and 120."""
    judge = make_judge()
    for host, when in (("hub", 119.0), ("a", 120.0)):
        if host != silent:
            judge.report(failure(host, victim=True), 121.0 - when, 121.0)
    judge.report(early("b"), 15.0, 121.0)
    for host, count in living.items():
        judge.heard(host, 121.0, None, count)
    return judge


def test_a_rank_that_ended_too_early_is_named_soon_after_the_last_rank_has_ended() -> None:
    judge = after_an_early_end(dict.fromkeys(HOSTS, 0))
    assert decided(judge, 120.0 + ENDED_S - 0.1) is None
    assert decided(judge, 120.0 + ENDED_S) == "b"


def test_a_node_that_has_succeeded_too_early_is_named_soon_after_the_last_rank_has_ended() -> None:
    judge = make_judge()
    judge.goodbye("b", early("b", None), 118.0)
    for host in ("hub", "a"):
        judge.report(failure(host, victim=True), 0.0, 120.0)
        judge.heard(host, 120.0, None, 0)
    assert decided(judge, 120.0 + ENDED_S - 0.1) is None
    assert decided(judge, 120.0 + ENDED_S) == "b"


@pytest.mark.parametrize(
    ("living", "silent"),
    [({"hub": 0, "a": 1, "b": 0}, None), ({"hub": 0, "a": 0, "b": None}, None), (dict.fromkeys(HOSTS, 0), "a")],
    ids=["a rank lives", "not known", "a node has reported no failure"],
)
def test_it_is_not_named_early_while_the_culprit_may_still_be_reported(
    living: dict[str, int | None], silent: str | None
) -> None:
    judge = after_an_early_end(living, silent)
    assert decided(judge, 121.0 + VICTIMS_S - 0.1) is None
    judge.report(failure("a"), 0.0, 121.0 + VICTIMS_S - 0.1)
    assert decided(judge, 121.0 + VICTIMS_S + CULPRIT_S) == "a"


def test_victims_of_an_unknown_culprit_wait_although_no_rank_lives() -> None:
    judge = make_judge()
    for host in HOSTS:
        judge.report(failure(host, victim=True), 0.0, 120.0)
        judge.heard(host, 120.0, None, 0)
    assert decided(judge, 120.0 + VICTIMS_S - 0.1) is None
    assert decided(judge, 120.0 + VICTIMS_S) == "hub"


@pytest.mark.parametrize("culprit", [{}, {"suspect": True}], ids=["a culprit", "a suspect"])
def test_one_that_has_failed_comes_before_one_that_ended_too_early(culprit: dict[str, bool]) -> None:
    judge = make_judge()
    judge.report(failure("a", victim=True), 0.0, 120.0)
    judge.report(early("b"), 14.0, 120.5)
    judge.report(failure("hub", **culprit), 0.0, 121.0)
    assert decided(judge, 120.0 + MUTE_S) == "hub"


def test_one_that_ended_after_the_first_failure_is_not_the_cause() -> None:
    judge = make_judge()
    judge.report(failure("a", victim=True), 0.0, 120.0)
    judge.report(early("b"), 0.0, 120.0 + EARLY_S + 0.1)
    assert decided(judge, 120.0 + MUTE_S) == "a"


def test_a_node_that_has_succeeded_too_early_is_the_cause_of_victims() -> None:
    judge = make_judge()
    judge.goodbye("b", early("b", None), 110.0)
    judge.goodbye("b", early("b", None), 121.0)  # the same once more
    assert decided(judge, 115.0) is None
    assert not judge.undecided
    judge.report(failure("a", victim=True), 0.0, 120.0)
    assert decided(judge, 120.0 + MUTE_S) == "b"
    assert judge.verdict is not None
    assert judge.verdict.cause is not None
    assert judge.verdict.cause["message"] == f"every rank on b {ENDED}, 10 s {QUESTION}"


@pytest.mark.parametrize("case", ["a culprit", "later"])
def test_a_node_that_has_succeeded_is_not_to_blame_for_others(case: str) -> None:
    judge = make_judge()
    judge.report(failure("a", victim=case == "later"), 0.0, 120.0)
    judge.goodbye("b", early("b", None), 110.0 if case == "a culprit" else 120.5)
    assert decided(judge, 120.0 + MUTE_S) == "a"


def test_a_kill_ends_the_matter_at_once() -> None:
    judge = make_judge()
    judge.report(failure("a"), 5.0, 101.0)
    judge.report(outcomes.killed("b", "alice"), 0.0, 101.1)
    verdict = judge.tick(101.1)
    assert verdict is not None
    assert verdict.state == "killed"
    judge.report(failure("a"), 50.0, 101.2)
    assert judge.tick(200.0) is verdict


def test_missing_and_quiet() -> None:
    judge = FailureJudge(HOSTS, "hub")
    judge.heard("hub", 100.0)
    assert judge.missing() == ["a", "b"]
    judge.heard("a", 101.0, 0.5)
    assert judge.missing() == ["b"]
    assert judge.quiet(110.0) == pytest.approx(9.5)
    judge.heard("hub", 110.0, 2.0)
    assert judge.quiet(110.0) == pytest.approx(2.0)


# --- the wire

KEY = b"k" * 32


def pair(key: bytes = KEY) -> tuple[MemberWire, HubWire]:
    member, hub = MemberWire(key, "run", "a", "hub"), HubWire(KEY, "run", ["a", "b"])
    hub.feed(member.hello())
    member.feed(hub.reply)
    return member, hub


def test_both_talk_after_both_have_proved_the_key() -> None:
    member, hub = pair()
    assert member.peer == "hub"
    assert hub.peer is None  # a hello alone may be a replay
    assert hub.feed(member.pack({"k": "beat"})) == [{"k": "beat"}]
    assert hub.peer == "a"
    assert member.feed(hub.pack({"n": 1}) + hub.pack({"n": 2})) == [{"n": 1}, {"n": 2}]


@given(st.lists(st.integers(1, 50), max_size=50))
def test_messages_survive_any_cutting(cuts: list[int]) -> None:
    member, hub = pair()
    data = b"".join(member.pack({"n": n}) for n in range(5))
    found = []
    for cut in cuts:
        found += hub.feed(data[:cut])
        data = data[cut:]
    assert found + hub.feed(data) == [{"n": n} for n in range(5)]


def test_another_key_another_run_another_host() -> None:
    with pytest.raises(Stranger):
        pair(b"x" * 32)
    for member in (MemberWire(KEY, "other", "a", "hub"), MemberWire(KEY, "run", "c", "hub")):
        hub = HubWire(KEY, "run", ["a", "b"])
        with pytest.raises(Stranger):
            hub.feed(member.hello())
        assert hub.reply == b""


def test_a_hub_that_does_not_hold_the_key() -> None:
    member = MemberWire(KEY, "run", "a", "hub")
    with pytest.raises(Stranger):
        member.feed(json.dumps({"nonce": "00", "mac": "00"}).encode() + b"\n")
    assert not member.open


def test_replay_reorder_reflect_change() -> None:
    member, hub = pair()
    first, second = member.pack({"n": 1}), member.pack({"n": 2})
    hub.feed(first)
    for bad in (first, member.pack({"n": 3}), hub.pack({"n": 1})):
        _, fresh = member, hub
        with pytest.raises(Stranger):
            fresh.feed(bad)
    member, hub = pair()
    with pytest.raises(Stranger):
        hub.feed(member.pack({"n": 1}).replace(b'"n":1', b'"n":9'))
    # Messages recorded on a connection are worth nothing on the next connection.
    old, _ = pair()
    _, hub = pair()
    with pytest.raises(Stranger):
        hub.feed(old.pack({"n": 1}))
    del second


def test_a_recorded_hello_gets_no_further() -> None:
    member = MemberWire(KEY, "run", "a", "hub")
    hello = member.hello()
    hub = HubWire(KEY, "run", ["a"])
    hub.feed(hello)
    with pytest.raises(Stranger):
        hub.feed(b"00 {}\n")
    assert hub.peer is None


@given(st.binary(max_size=300))
def test_junk_is_a_stranger_and_never_an_error(junk: bytes) -> None:
    for wire in (HubWire(KEY, "run", ["a"]), MemberWire(KEY, "run", "a", "hub"), *pair()):
        data: Any = junk + b"\n"
        with pytest.raises(Stranger):
            wire.feed(data)


def test_endless_lines_are_cut_off() -> None:
    with pytest.raises(Stranger):
        HubWire(KEY, "run", ["a"]).feed(b"x" * (MAX_LINE + 1))
    with pytest.raises(Stranger):
        HubWire(KEY, "run", ["a"]).feed(b"[" * 100_000 + b"\n")
