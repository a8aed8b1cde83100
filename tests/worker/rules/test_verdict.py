"""Which rank is odd: the whole sentence, the suspects, and whether the run is stuck."""

from __future__ import annotations

import pytest

from ddpctl_worker.rules.verdict import diagnose
from tests.worker.looks import (
    AUTOGRAD,
    DATA,
    HERE,
    LOADER,
    LOOP,
    NOW,
    ODD,
    READ,
    STEP,
    TRAIN,
    WAIT,
    Look,
    behind,
    by_stack,
    group,
    look,
    named,
    recorded,
    suspects,
    three_wait,
    waits_in,
)


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (behind(2, waits_in="pipe_read"), ODD + ", reading from a pipe"),
        (
            behind(2, state="blocked"),
            ODD + ", waiting for a disk or a network file system",
        ),
        (behind(2, sleep_s=600.0), ODD + ", asleep for another 600 s"),
        (behind(2, stack=[[TRAIN, 7, "<module>"]]), "rank 2 on node1 is at train.py:7"),
        (
            behind(2, stack=[[AUTOGRAD, 9, "backward"], STEP]),
            "rank 2 on node1 is at train.py:88 in step, in the backward pass",
        ),
        (behind(2, stack=None), "rank 2 on node1 is elsewhere (its stack could not be read)"),
        (behind(2, stack=None, waits_in="futex_wait"), "rank 2 on node1 is waiting for a lock"),
        (
            behind(2, stack=[[LOADER, 1291, "_next_data"], READ]),
            ODD + ", waiting for its data loader",
        ),
        (
            behind(
                2,
                stack=[[LOADER, 1291, "_next_data"], READ],
                children=[{"pid": 7, "state": "sleeping", "sleep_s": None, "stack": [[DATA, 12, "__getitem__"]]}],
            ),
            ODD + ", waiting for its data loader, whose worker is at data.py:12 in __getitem__",
        ),
        (
            behind(2, spins=True, gil=True, cpu=99.0),
            ODD + ", in a loop that takes a whole core",
        ),
    ],
)
def test_one_that_the_others_wait_for(odd: Look, text: str) -> None:
    named(three_wait(odd), WAIT + text, 2)


def test_one_that_is_stopped() -> None:
    named(
        three_wait(look(2, state="stopped")),
        WAIT + "rank 2 on node1 is stopped at data.py:41 in blocked_read, by SIGSTOP or a debugger",
        2,
    )
    named(
        three_wait(look(2, state="traced", stack=None)),
        WAIT + "rank 2 on node1 is stopped, by SIGSTOP or a debugger",
        2,
    )


def test_one_that_has_ended() -> None:
    named(three_wait(look(2, state="ended", stack=None)), WAIT + "rank 2 on node1 has ended", 2)
    found = diagnose(three_wait(behind(2))[1:], expected={0: "node0", 1: "node0", 2: "node1", 3: "node1"})
    assert (found.verdict, suspects(found), found.stuck) == (WAIT + "rank 2 on node1 has ended", [2], True)


def test_ranks_that_end_one_by_one_are_no_fault() -> None:
    working = [look(rank, cpu=80.0) for rank in (0, 1, 3)]
    text = "nobody is stuck yet: 3 of 4 ranks are at data.py:41 in blocked_read; rank 2 on node1 has ended"
    named([look(2, state="ended", stack=None), *working], text)
    named([look(rank, state="ended", stack=None) for rank in range(4)], "every rank has ended")
    found = diagnose(three_wait(look(2, state="ended"), seconds=2.0))
    assert not found.stuck
    assert not found.suspects


def test_two_that_are_behind() -> None:
    rest = [waits_in(0), waits_in(3)]
    wait = "2 of 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s; "
    named([*rest, behind(1), behind(2)], wait + "ranks 1-2 are at data.py:41 in blocked_read", 1, 2)
    other = behind(2, stack=[[TRAIN, 9, "save"]])
    text = "rank 1 on node0 is at data.py:41 in blocked_read; rank 2 on node1 is at train.py:9 in save"
    named([*rest, behind(1), other], wait + text, 1, 2)


@pytest.mark.parametrize(
    ("odd", "excused_s", "text"),
    [
        ({"sleep_s": 20.0}, 60.0, "asleep for another 20 s at data.py:41 in blocked_read"),
        ({"cpu": 90.0}, 590.0, "at work at data.py:41 in blocked_read (90 % of a core)"),
        ({"cpu": 90.0, "still": False}, 590.0, "at work at data.py:41 in blocked_read (90 % of a core)"),
        ({"below": 90.0}, 590.0, "at work at data.py:41 in blocked_read (90 % of a core)"),
        ({"bytes": 1 << 20}, 590.0, "at work at data.py:41 in blocked_read (0 % of a core)"),
        ({"cpu": 90.0, "stack": None}, 590.0, "at work (90 % of a core)"),
    ],
)
def test_what_excuses_a_rank_for_a_while(odd: Look, excused_s: float, text: str) -> None:
    wait = "nobody is stuck yet: 3 of 4 ranks wait in broadcast #6 (train.py:88 in step) for %d s; rank 2 on node1 is "
    named(three_wait(behind(2, **odd), excused_s), wait % excused_s + text)
    found = diagnose(three_wait(behind(2, **odd), excused_s + 31.0))
    assert suspects(found) == [2]


@pytest.mark.parametrize("still", [True, False])
def test_a_loop_of_pure_python_is_excused_for_less_than_other_work(still: bool) -> None:
    """The samples of an evaluation may all be on the same line, and the samples of a loop on several lines."""
    for seconds, stuck in ((85.0, []), (95.0, [2])):
        spins = behind(2, spins=True, still=still, cpu=99.0)
        assert suspects(diagnose(three_wait(spins, seconds), asked=False)) == stuck
    reads = behind(2, spins=True, still=still, cpu=99.0, bytes=1 << 20)
    assert not suspects(diagnose(three_wait(reads, 590.0), asked=False))


def test_a_person_is_told_soon_and_the_record_not_before_the_stall() -> None:
    for seconds, asked, stuck in ((4.0, True, False), (6.0, True, True), (29.0, False, False), (31.0, False, True)):
        found = diagnose(three_wait(behind(2), seconds), asked=asked)
        assert (found.stuck, suspects(found)) == (stuck, [2] if stuck else [])
    spins = behind(2, spins=True, cpu=99.0)
    assert [suspects(diagnose(three_wait(spins, 12.0), asked=asked)) for asked in (True, False)] == [[2], []]


def test_the_evidence_is_that_of_the_suspect() -> None:
    children = [{"pid": 7, "state": "sleeping", "stack": [[DATA, 12, "__getitem__"]]}]
    odd = behind(2, cpu=1.4, below=3.0, waits_in="pipe_read", swap_mb=7.2, children=children)
    assert diagnose(three_wait(odd)).evidence == [
        (
            "rank 2 on node1, pid 1002: sleeping, 1 % of a core, its children 3 %, "
            "in the kernel at pipe_read, 7 MB in swap"
        ),
        "    /job/code/data.py:41 in blocked_read",
        "    /job/code/train.py:120 in <module>",
        "  its child 7: sleeping",
        "    /job/code/data.py:12 in __getitem__",
    ]


def test_stacks_alone_name_the_odd_rank() -> None:
    text = "3 of 4 ranks wait in all_reduce (train.py:88 in step); " + ODD
    named([look(2), *(by_stack(rank) for rank in (0, 1, 3))], text, 2)
    works = diagnose([look(2, cpu=90.0), *(by_stack(rank) for rank in (0, 1, 3))])
    assert not works.suspects


def test_one_in_another_operation_by_its_stack() -> None:
    odd = by_stack(2, "broadcast", [TRAIN, 30, "save"])
    found = diagnose([odd, *(by_stack(rank) for rank in (0, 1, 3))])
    assert "rank 2" in found.verdict or "network" not in found.verdict


def test_nothing_can_be_read_at_all() -> None:
    named(
        [look(rank, stack=None) for rank in range(2)],
        "nobody waits in a collective: all 2 ranks are elsewhere (their stacks could not be read)",
    )


def test_all_in_data_loading() -> None:
    looks = [look(rank, groups={"0": group(LOOP)}, stack=[[LOADER, 9, "_next_data"], READ]) for rank in range(4)]
    text = "nobody waits in a collective: all 4 ranks are at data.py:41 in blocked_read, waiting for their data loaders"
    named(looks, text)


def test_everybody_waits_and_none_is_missing() -> None:
    looks = [waits_in(rank) for rank in range(4)]
    found = diagnose(looks)
    text = (
        "all 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s, and none is missing: their data does not get "
    )
    assert found.verdict == text + "through; check the network between the nodes"
    assert (found.stuck, found.suspects) == (True, [])
    named(
        [waits_in(rank, seconds=3.0) for rank in range(4)],
        "nobody is stuck: all 4 ranks wait in broadcast #6 (train.py:88 in step) for 3 s",
    )


@pytest.mark.parametrize("work", [{"bytes": 100 << 20, "cpu": 80.0}, {"bytes": 1 << 17}, {"cpu": 80.0}])
def test_a_long_transfer_is_no_fault_of_the_network(work: Look) -> None:
    """Also where only one rank has work, as in the first step of a broadcast."""
    rest = [waits_in(rank, seconds=590.0) for rank in (1, 2)]
    text = "all 4 ranks wait in broadcast #6 (train.py:88 in step) for 590 s; ranks 0, 3 are at work"
    busy = [waits_in(rank, seconds=590.0, **work) for rank in (0, 3)]
    named([*busy, *rest], "nobody is stuck yet: " + text)
    looks = [waits_in(rank, seconds=610.0, **work) for rank in range(4)]
    assert diagnose(looks).stuck
    absent = diagnose([waits_in(rank, seconds=590.0, **work) for rank in range(2)], absent=["node1"], expected=ALL)
    assert not absent.stuck


def test_on_one_host_there_is_no_network_to_check() -> None:
    found = diagnose([waits_in(rank, host="node0") for rank in range(4)])
    assert found.verdict.endswith(" for 40 s, and none is missing: their data does not get through on node0 itself")
    assert found.stuck


def test_a_connection_without_an_answer_is_named() -> None:
    lost = [["10.0.0.1:41234", "10.0.0.2:29501", 8]]
    found = diagnose([*(waits_in(rank) for rank in range(3)), waits_in(3, unanswered=lost)])
    assert found.stuck
    assert found.verdict.endswith(
        "their data does not get through; rank 3 on node1 has sent data from 10.0.0.1:41234 to 10.0.0.2:29501 8 times "
        "without an answer: a firewall or NAT between the nodes has forgotten this connection, or drops its packets"
    )


def test_one_that_moved_within_the_second() -> None:
    looks = three_wait(behind(2, moved=True))
    named(looks, "nobody is stuck: rank 2 on node1 entered or left a collective within the last second")


def test_all_wait_for_a_disk() -> None:
    named(
        [look(rank, state="blocked") for rank in range(3)],
        "all 3 ranks wait in the kernel for a disk or a network file system (data.py:41 in blocked_read)",
    )


def test_one_rank_alone() -> None:
    named([look(0)], "nobody waits in a collective: the only rank is at data.py:41 in blocked_read")
    named(
        [waits_in(0, seconds=1.0)], "nobody is stuck: the only rank waits in broadcast #6 (train.py:88 in step) for 1 s"
    )


def test_no_rank() -> None:
    named([], "no rank was seen")
    found = diagnose([], absent=["node0", "node1"])
    assert found.verdict == "no rank was seen: node0, node1 did not answer"
    assert found.missing == ["node0 did not answer", "node1 did not answer"]


ALL = {rank: f"node{rank // 2}" for rank in range(4)}


def test_ranks_of_a_host_that_does_not_answer_are_neither_ended_nor_there() -> None:
    found = diagnose([waits_in(0), waits_in(1)], absent=["node1"], expected=ALL)
    assert found.verdict == "2 of 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s; node1 did not answer"
    assert (found.stuck, found.suspects) == (True, [])
    assert found.missing == ["node1 did not answer"]


def test_a_rank_is_named_although_a_host_does_not_answer() -> None:
    found = diagnose([waits_in(0), behind(1)], absent=["node1"], expected=ALL)
    assert found.verdict == (
        f"1 of 4 ranks waits in broadcast #6 (train.py:88 in step) for 40 s; rank 1 on node0 is at {HERE}"
    )
    assert suspects(found) == [1]


def test_what_could_not_be_had_is_said_once_for_all_ranks() -> None:
    looks = [look(rank, missing=["no stack: py-spy is not on this host"]) for rank in (0, 1, 3)]
    assert diagnose(looks).missing == ["ranks 0-1, 3: no stack: py-spy is not on this host"]


@pytest.mark.parametrize(
    ("name", "ranks", "text"),
    [
        (
            "asleep",
            [1],
            (
                "2 of 3 ranks wait in all_reduce #7 (train.py:10 in step) for %d s; "
                "rank 1 on node1 is at train.py:17 in load, asleep for another %d s"
            ),
        ),
        (
            "skipped",
            [2],
            (
                "rank 2 on node2 has skipped broadcast #7, which ranks 0-1 called at train.py:18; "
                "it is in all_reduce #7 (train.py:10 in step)"
            ),
        ),
        (
            "loader",
            [2],
            (
                "2 of 3 ranks wait in all_reduce #7 (train.py:10 in step) for %d s; "
                "rank 2 on node2 is at train.py:24, waiting for its data loader, "
                "whose worker is at train.py:21 in Numbers.__getitem__"
            ),
        ),
        (
            "receive_cycle",
            [0, 1],
            (
                "ranks 0-1 wait for each other: rank 0 on node0 is in recv from rank 1 (train.py:18); "
                "rank 1 on node1 is in recv from rank 0 (train.py:18)"
            ),
        ),
        (
            "subgroup",
            [1],
            (
                "1 of 3 ranks waits in all_reduce #2 of group 1 (train.py:24) for %d s; "
                "rank 1 on node1 is at train.py:19 in sample, reading from a pipe"
            ),
        ),
    ],
)
def test_real_jobs(name: str, ranks: list[int], text: str) -> None:
    found = diagnose(recorded(name))
    parts = text.split("%d")
    assert found.verdict.startswith(parts[0])
    assert found.verdict.endswith(parts[-1])
    assert suspects(found) == ranks
    assert found.stuck
    assert found.waited_s < NOW
