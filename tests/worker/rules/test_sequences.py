"""The rank that skipped a collective, repeated it, or called another collective."""

from __future__ import annotations

from collections.abc import Sequence

from ddpctl_worker.rules.verdict import diagnose
from tests.worker.looks import (
    BROADCAST,
    GATHER,
    LOOP,
    MAIN,
    ODD,
    REDUCE,
    TRAIN,
    WAIT,
    Look,
    behind,
    group,
    named,
    waits_in,
)


def at(rank: int, calls: Sequence[tuple[str, int]], line: int) -> Look:
    return waits_in(rank, calls, stack=[["/usr/lib/python3/x.py", 1, "x"], [TRAIN, line, "step"], MAIN])


def test_one_that_skipped_a_collective() -> None:
    """The next collective of the other ranks is known from earlier rounds, or from a rank that is further already."""
    loop = [REDUCE, BROADCAST, GATHER] * 2
    odd = at(2, [*loop, BROADCAST], 91)
    rest = [at(rank, [*loop, REDUCE], 88) for rank in (0, 1, 3)]
    text = "rank 2 on node1 has skipped all_reduce #7, which ranks 0-1, 3 called at train.py:88 in step; "
    named([odd, *rest], text + "it is in broadcast #7 (train.py:91 in step)", 2)


def test_one_that_skipped_a_collective_that_comes_once() -> None:
    odd = at(2, [*LOOP, REDUCE], 88)
    rest = [at(0, [*LOOP, GATHER], 70), at(1, [*LOOP, GATHER, REDUCE], 88), at(3, [*LOOP, GATHER], 70)]
    text = "rank 2 on node1 has skipped all_gather #7, which ranks 0-1, 3 called at train.py:70 in step; "
    named([odd, *rest], text + "it is in all_reduce #7 (train.py:88 in step)", 2)


def test_one_that_repeated_a_collective() -> None:
    once = [*LOOP, GATHER]
    odd = at(2, [*once, GATHER], 70)
    rest = [at(rank, [*once, REDUCE], 88) for rank in (0, 1, 3)]
    text = "rank 2 on node1 has called all_gather #7 twice; it is in all_gather #8 (train.py:70 in step), "
    named([odd, *rest], text + "ranks 0-1, 3 are in all_reduce #8 (train.py:88 in step)", 2)


def test_whether_it_skipped_or_repeated_is_left_open_where_both_fit() -> None:
    odd = at(2, [*LOOP, REDUCE, REDUCE], 88)
    rest = [at(rank, [*LOOP, REDUCE, BROADCAST], 91) for rank in (0, 1, 3)]
    text = "rank 2 on node1 has skipped broadcast #8 or called all_reduce #7 twice; "
    text += "it is in all_reduce #8 (train.py:88 in step), ranks 0-1, 3 are in broadcast #8 (train.py:91 in step)"
    named([odd, *rest], text, 2)


def test_another_operation() -> None:
    odd = at(2, [*LOOP, GATHER], 70)
    rest = [at(rank, [*LOOP, REDUCE], 88) for rank in (0, 1, 3)]
    text = "rank 2 on node1 is in all_gather #7 (train.py:70 in step), "
    named([odd, *rest], text + "ranks 0-1, 3 are in all_reduce #7 (train.py:88 in step): they do not match", 2)


def test_another_size() -> None:
    odd = at(2, [*LOOP, ("all_reduce", 1)], 88)
    rest = [at(rank, [*LOOP, REDUCE], 88) for rank in (0, 1, 3)]
    text = "rank 2 on node1 calls all_reduce #7 (train.py:88 in step) with 1 element, ranks 0-1, 3 with 4"
    named([odd, *rest], text, 2)


def test_sizes_of_what_may_differ_are_not_compared() -> None:
    looks = [waits_in(rank, [*LOOP, ("all_to_all", 4 + rank)]) for rank in range(4)]
    found = diagnose(looks)
    assert "network" in found.verdict
    assert not found.suspects


def test_two_against_two() -> None:
    looks = [at(rank, [*LOOP, REDUCE if rank < 2 else GATHER], 88 if rank < 2 else 70) for rank in range(4)]
    text = (
        "ranks 0-1 are in all_reduce #7 (train.py:88 in step) and ranks 2-3 are in all_gather #7 (train.py:70 in step)"
    )
    named(looks, text + ": they do not match", 0, 1, 2, 3)


def test_a_difference_that_did_no_harm_is_no_fault() -> None:
    """All ranks went past the difference together."""
    mine, theirs = [REDUCE, GATHER, *LOOP], [REDUCE, BROADCAST, *LOOP]
    looks = [behind(2, mine), *(waits_in(rank, theirs) for rank in (0, 1, 3))]
    assert diagnose(looks).verdict == WAIT.replace("#6", "#8") + ODD
    elsewhere = {"1": group([GATHER]), "0": group(LOOP, waits=40.0)}
    looks = [waits_in(rank, groups=elsewhere if rank else {**elsewhere, "1": group([REDUCE])}) for rank in range(4)]
    assert "network" in diagnose(looks).verdict
