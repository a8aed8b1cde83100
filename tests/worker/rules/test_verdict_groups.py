"""Subgroups, sends and receives, and GPUs: which rank waits for which rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ddpctl_worker.rules.verdict import diagnose
from tests.worker.looks import (
    GATHER,
    HERE,
    LOOP,
    MAIN,
    NOW,
    ODD,
    READ,
    REDUCE,
    STEP,
    TRAIN,
    Call,
    Look,
    behind,
    by_stack,
    group,
    look,
    named,
    receives,
    suspects,
    waits_in,
)


def in_group(rank: int, seq: int = 3, ranks: Sequence[int] | None = None, seconds: float = 40.0) -> Look:
    """Return a look at a rank that waits in group 7, after the whole loop of the default group."""
    groups = {"0": group(LOOP), "7": group([REDUCE] * seq, waits=seconds, ranks=ranks)}
    return look(rank, groups=groups, stack=[[TRAIN, 60, "share"], MAIN])


def test_a_member_of_a_subgroup_that_did_not_come() -> None:
    odd = look(1, groups={"0": group(LOOP), "7": group([REDUCE] * 2)})
    rest = [waits_in(rank, [*LOOP, REDUCE]) for rank in (2, 3)]
    text = "2 of 4 ranks wait in all_reduce #7 (train.py:88 in step) for 40 s; rank 1 on node0 is at data.py:41 in "
    named([in_group(0), odd, *rest], text + "blocked_read", 1)


def test_a_fresh_subgroup_has_members_only_where_they_are_listed() -> None:
    idle = [look(rank, groups={"0": group(LOOP)}) for rank in (2, 3)]
    wait = "2 of 4 ranks wait in all_reduce #1 of group 7 (train.py:60 in share) for 40 s; "
    named([in_group(0, 1), in_group(1, 1), *idle], wait + "ranks 2-3 are at data.py:41 in blocked_read", 2, 3)
    listed = [in_group(rank, 1, [0, 1, 3]) for rank in (0, 1)]
    named([*listed, *idle], wait + "rank 3 on node1 is at data.py:41 in blocked_read", 3)


def test_a_fresh_subgroup_whose_member_waits_elsewhere() -> None:
    team = [in_group(rank, 1) for rank in (0, 1, 3)]
    text = "3 of 4 ranks wait in all_reduce #1 of group 7 (train.py:60 in share) for 40 s; "
    named([waits_in(2, [*LOOP, GATHER]), *team], text + "rank 2 on node1 is in all_gather #7 (train.py:88 in step)", 2)
    two = diagnose([waits_in(2, [*LOOP, GATHER]), waits_in(3, [*LOOP, GATHER]), *team[:2]])
    assert two.stuck
    assert not two.suspects
    assert "network" not in two.verdict


def again(rank: int, **changes: Any) -> Look:
    """In the first collective after a second init_process_group; the look before may have ended up to 3 s earlier."""
    one = waits_in(rank, [GATHER], **changes)
    one["groups"]["0"]["since"] = NOW - 40.0
    return one


@pytest.mark.parametrize(
    ("calls", "age"),
    [([("barrier", 0)], 41.0), (LOOP, 41.0), (LOOP, 900.0), (LOOP, 38.0)],
    ids=["one", "more", "earlier", "looked-at-earlier"],
)
def test_a_rank_that_does_not_come_after_a_second_init(calls: Sequence[Call], age: float) -> None:
    """The rank's record has entries of the first group only, and their numbers are at least as high."""
    record = group(calls)
    record["entries"] = [[*entry[:4], NOW - age, entry[5]] for entry in record["entries"]]
    rest = [again(rank) for rank in (0, 1, 3)]
    text = "3 of 4 ranks wait in all_gather #1 (train.py:88 in step) for 40 s; "
    named([look(2, groups={"0": record}), *rest], text + ODD, 2)
    busy = diagnose([look(2, groups={"0": record}, cpu=90.0), *rest])
    assert busy.verdict == f"nobody is stuck yet: {text}rank 2 on node1 is at work at {HERE} (90 % of a core)"


def test_what_a_rank_has_entered_since_a_second_init_counts() -> None:
    """The rank's record may begin after the second init."""
    newer = group([GATHER])
    newer["entries"][0][4] = NOW - 36.0
    found = diagnose([look(2, groups={"0": newer}), *(again(rank) for rank in (0, 1, 3))])
    assert not found.suspects
    looks = [again(rank) for rank in range(4)]
    looks[2]["groups"]["0"].pop("since")
    assert "network" in diagnose(looks).verdict


def test_a_cycle_over_two_groups() -> None:
    def cross(rank: int, enters: str, has: str) -> Look:
        groups = {enters: group([REDUCE] * 3, waits=40.0), has: group([REDUCE] * 2), "0": group(LOOP)}
        return look(rank, groups=groups, stack=[[TRAIN, 60 + rank, "share"], MAIN])

    looks = [cross(0, "1", "2"), cross(1, "2", "1"), *(waits_in(rank, [*LOOP, GATHER]) for rank in (2, 3))]
    text = (
        "ranks 0-1 wait for each other: rank 0 on node0 is in all_reduce #3 of group 1 (train.py:60 in share); "
        "rank 1 on node0 is in all_reduce #3 of group 2 (train.py:61 in share)"
    )
    named(looks, text, 0, 1)


def test_a_member_that_went_on_without_its_team() -> None:
    """The member waits in a collective of all ranks, and its team waits in group 7. Only the member is at its place."""
    team = [in_group(rank) for rank in (2, 3)]
    odd = waits_in(1, [*LOOP, GATHER])
    odd["groups"]["7"] = group([REDUCE] * 2)
    text = "ranks 1-3 wait for each other: rank 1 on node0 is in all_gather #7 (train.py:88 in step); "
    text += "ranks 2-3 are in all_reduce #3 of group 7 (train.py:60 in share)"
    named([waits_in(0, [*LOOP, GATHER]), odd, *team], text, 1)


def test_a_cycle_behind_others_is_found() -> None:
    """Each of 300 ranks waits for all that come after it, and the last two wait for each other: it takes no time."""
    looks = [waits_in(rank, LOOP[: 2 + rank % 4]) for rank in range(298)]
    looks += [receives(298, 299, []), receives(299, 298, [])]
    assert suspects(diagnose(looks)) == [298, 299]


def test_a_cycle_of_receives() -> None:
    text = (
        "ranks 0-1 wait for each other: rank 0 on node0 is in recv from rank 1 (train.py:50 in exchange); "
        "rank 1 on node0 is in recv from rank 0 (train.py:50 in exchange)"
    )
    rest = [waits_in(rank, [*LOOP, REDUCE]) for rank in (2, 3)]
    named([receives(0, 1), receives(1, 0), *rest], text, 0, 1)
    found = diagnose([receives(0, 1), receives(1, 0)], asked=False)
    assert (suspects(found), found.stuck) == ([0, 1], True)


def test_a_send_that_is_being_received_is_no_cycle() -> None:
    found = diagnose([receives(0, 1, op="send"), receives(1, 0)])
    assert found.verdict == "nobody is stuck: 1 of 2 ranks waits in send to rank 1 (train.py:50 in exchange)"
    assert not found.suspects


def test_a_chain_of_receives_leads_to_its_end() -> None:
    chain = [receives(1, 0), receives(2, 1), receives(3, 2)]
    text = "1 of 4 ranks waits in recv from rank 0 (train.py:50 in exchange); rank 0 on node0 is at data.py:41 in "
    named([behind(0), *chain], text + "blocked_read", 0)


def test_a_receive_from_nobody_knows_whom() -> None:
    others = [receives(rank, None) for rank in (0, 1, 3)]
    text = "3 of 4 ranks wait in recv (train.py:50 in exchange); " + ODD
    named([behind(2), *others], text, 2)
    found = diagnose([receives(rank, None) for rank in range(4)])
    assert set(suspects(found)) in ({0, 1, 2, 3}, set())


def nccl(rank: int, *, started: bool, **changes: Any) -> Look:
    groups = {"0": group(LOOP, waits=40.0, ranks=range(4), started=started)}
    return look(
        rank,
        groups=groups,
        stack=[["/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 9, "synchronize"], STEP],
        **changes,
    )


def test_a_gpu_that_has_not_begun_what_the_others_have() -> None:
    looks = [nccl(rank, started=rank != 2) for rank in range(4)]
    text = "all 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s; "
    text += "the GPU of rank 2 on node1 has not begun it"
    named(looks, text, 2)
    assert "network" in diagnose([nccl(rank, started=True, cpu=100.0) for rank in range(4)]).verdict
    assert "network" in diagnose([nccl(rank, started=False) for rank in range(4)]).verdict


def test_where_the_record_is_empty_the_stack_tells() -> None:
    """With NCCL, while the job is healthy: gloo's record is empty."""
    looks = [by_stack(rank, "barrier", groups={}, cpu=100.0) for rank in (0, 1, 3)]
    text = "3 of 4 ranks wait in barrier (train.py:88 in step); "
    named([look(2, groups={}), *looks], text + ODD, 2)
    everybody = diagnose([*looks, by_stack(2, "barrier", groups={}, cpu=100.0)])
    assert everybody.verdict == "nobody is stuck: all 4 ranks wait in barrier (train.py:88 in step)"


def test_an_empty_record_of_gloo_is_one() -> None:
    """A rank that has not come to the first collective, or is in a collective without an entry."""
    rest = [waits_in(rank, [REDUCE]) for rank in (0, 1, 3)]
    wait = "3 of 4 ranks wait in all_reduce #1 (train.py:88 in step) for 40 s; "
    named([look(2, groups={}), *rest], wait + ODD, 2)
    receiver = receives(2, 0)
    receiver["groups"] = {}
    assert diagnose([receiver, *rest]).verdict.startswith("ranks 0, 2 wait for each other")


def both(rank: int, calls: Sequence[Call], seconds: float | None) -> Look:
    """Gloo's record and that of NCCL, which count the same group: the last collective of gloo is over."""
    groups = {"0": group(LOOP), "nccl:0": group(calls, waits=seconds, ranks=range(4))}
    return look(rank, groups=groups, stack=[STEP, MAIN] if seconds else [READ, MAIN])


@pytest.mark.parametrize("seconds", [40.0, 998.0], ids=["nccl-last", "gloo-last"])
def test_gloo_and_nccl_count_apart(seconds: float) -> None:
    looks = [both(2, [REDUCE], None), *(both(rank, [REDUCE, GATHER], seconds) for rank in (0, 1, 3))]
    wait = f"3 of 4 ranks wait in all_gather #2 (train.py:88 in step) for {seconds:.0f} s; "
    named(looks, wait + ODD, 2)


def test_what_waits_in_gloo_does_not_wait_for_nccl() -> None:
    waits = [waits_in(rank, [*LOOP, REDUCE]) for rank in (0, 1, 3)]
    looks = [look(2, groups={"nccl:0": group([REDUCE] * 50, ranks=range(4))}), *waits]
    named(looks, "3 of 4 ranks wait in all_reduce #7 (train.py:88 in step) for 40 s; " + ODD, 2)
