"""The rank that had not come, once the other ranks have timed out."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl_worker.doctor.hung import Hung, Waits, find_hung, sees_all, timed_out
from tests.worker.looks import C10D, LOOP, TRAIN, Look, behind, by_stack, group, look, waits_in

SLEEPS = [[TRAIN, 3, "<module>"]]
FIRST: Waits = ("0", 1, "barrier")
SIXTH: Waits = ("0", 6, "broadcast")


def text(looks: list[Look], waited: dict[int, Waits]) -> str | None:
    found = find_hung(looks, waited)
    return found.message if found is not None else None


def test_one_never_came_to_the_first_barrier() -> None:
    found = find_hung([look(0, groups={}, stack=SLEEPS)], {1: FIRST})
    assert found == Hung("node0", 0, "rank 0 on node0 had not reached barrier #1: it was at train.py:3")


def test_what_it_does_is_told() -> None:
    asleep = behind(2, sleep_s=600.0)
    assert text([asleep, waits_in(3)], {0: SIXTH, 1: SIXTH, 3: SIXTH}) == (
        "rank 2 on node1 had not reached broadcast #6: it was at data.py:41 in blocked_read, asleep for another 600 s"
    )


def test_several_have_not_come() -> None:
    assert text([behind(1), behind(2)], {0: SIXTH, 3: SIXTH}) == (
        "ranks 1-2 had not reached broadcast #6: rank 1 on node0 was at data.py:41 in blocked_read"
    )


def test_without_a_record_the_stacks_decide() -> None:
    assert text([by_stack(0), look(1, stack=SLEEPS)], {}) == (
        "rank 1 on node0 had not reached the collective of the others: it was at train.py:3"
    )


@pytest.mark.parametrize("state", ["sleeping", "unknown"])
def test_a_stack_proves_nothing_while_another_rank_was_not_seen(state: str) -> None:
    unseen = look(1, state=state, stack=None)
    assert find_hung([look(0, stack=SLEEPS), unseen], {}) is None
    assert not sees_all([unseen])
    assert find_hung([behind(0), unseen], {3: SIXTH}) is not None  # its record proves it


def test_a_stack_proves_nothing_while_another_host_is_silent() -> None:
    assert find_hung([look(0, stack=SLEEPS)], {}, {"node1"}) is None
    assert find_hung([behind(0)], {3: SIXTH}, {"node1"}) is not None
    assert find_hung([look(0, stack=SLEEPS), look(1, state="ended", stack=None)], {}) is not None


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [waits_in(0), waits_in(1)],  # all ranks wait: the network
        [look(0, groups={"0": group(LOOP)}, stack=SLEEPS)],  # it has been there
        [look(0, state="ended", stack=None)],
        [look(0, stack=None)],
        [look(0, groups={"0": group(LOOP)}, stack=[[C10D, 9, "recv"], *SLEEPS])],
    ],
)
def test_where_it_is_not_clear_nobody_is_named(looks: list[Any]) -> None:
    assert find_hung(looks, {3: SIXTH}) is None


def test_the_farthest_collective_of_as_many_ranks_counts() -> None:
    found = text([behind(0)], {0: ("0", 5, "all_reduce"), 1: SIXTH})
    assert found == "rank 0 on node0 had not reached broadcast #6: it was at data.py:41 in blocked_read"


@pytest.mark.parametrize(
    ("message", "late"),
    [
        (
            "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation",
            True,
        ),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", True),
        ("wait timeout after 300000ms, keys: /default_pg/0//store_based_barrier_key:1", True),
        ("Rank 1 successfully reached monitoredBarrier, but received errors; failed to pass monitoredBarrier", True),
        ("RuntimeError: Connection closed by peer [10.9.0.11]:39583", False),
        ("ValueError: boom", False),
    ],
)
def test_which_failures_are_time_outs(message: str, late: bool) -> None:
    assert timed_out(["ValueError", message]) is late
