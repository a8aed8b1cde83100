"""The rank that had not come, once the other ranks have timed out."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl_worker.doctor.hung import Hung, WaitedRanks, Waits, find_hung, find_mismatch, sees_all, timed_out
from ddpctl_worker.doctor.limits import SEARCH_AFTER_S, SEARCH_AGAIN_S, SEARCH_S
from tests.worker.looks import C10D, LOOP, TRAIN, Look, behind, by_stack, group, look, waits_in

SLEEPS = [[TRAIN, 3, "<module>"]]
FIRST = Waits("0", 1, "barrier")
SIXTH = Waits("0", 6, "broadcast")


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
    found = text([behind(0)], {0: Waits("0", 5, "all_reduce"), 1: SIXTH})
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


def test_a_rank_outside_a_subgroup_was_not_waited_for() -> None:
    """Only the record of a rank that has used the group shows that the rank is a member."""
    waited = {3: Waits("2", 6, "broadcast")}
    assert find_hung([behind(0)], waited) is None
    member = look(0, groups={"0": group(LOOP), "2": group(LOOP[:5])}, stack=SLEEPS)
    assert text([member], waited) == "rank 0 on node0 had not reached broadcast #6 of group 2: it was at train.py:3"


NOW = 100.0
WAITING = {"waits": list(SIXTH), "timeouts": 0}
PRINTED = {"waits": None, "timeouts": 1}


def printed() -> WaitedRanks:
    """Return the evidence once rank 1 has printed a time-out in broadcast #6."""
    ranks = WaitedRanks()
    ranks.note_glances("node0", {1: WAITING}, NOW - 5.0)
    assert not ranks.searching
    ranks.note_glances("node0", {1: PRINTED}, NOW)
    assert ranks.is_due(NOW)
    return ranks


def test_a_printed_time_out_keeps_the_missing_rank_until_the_failure() -> None:
    ranks = printed()
    ranks.take_looks([behind(0), look(1, stack=SLEEPS)], (), None, NOW + 1.0)
    assert not ranks.searching
    ranks.note_glances("node0", {0: WAITING, 1: PRINTED}, NOW + 5.0)  # the missing rank has come
    ranks.note_failures({1: "node0"}, NOW + 20.0)
    assert not ranks.searching
    assert ranks.found is not None
    assert ranks.found.rank == 0


def test_before_a_failure_only_the_record_counts() -> None:
    ranks = printed()
    looks = [look(0, stack=SLEEPS)]
    diagnosis = {"suspects": [{"host": "node0", "rank": 0}], "verdict": "rank 0 is asleep"}
    ranks.take_looks(looks, (), diagnosis, NOW + 1.0)
    assert ranks.found is None
    assert ranks.is_due(NOW + 1.0)  # its record may still be read
    ranks.take_looks(looks, (), diagnosis, NOW + SEARCH_S)
    assert not ranks.searching
    ranks.note_failures({1: "node0"}, NOW + 20.0)
    assert not ranks.is_due(NOW + 20.0 + SEARCH_AFTER_S / 2)
    assert ranks.is_due(NOW + 20.0 + SEARCH_AFTER_S)
    ranks.take_looks(looks, (), diagnosis, NOW + 20.0 + SEARCH_AFTER_S)
    assert ranks.found is not None
    assert ranks.found.message.endswith("it was at train.py:3")


def test_a_rank_that_timed_out_too_is_not_the_missing_rank() -> None:
    ranks = printed()
    ranks.take_looks([behind(1), waits_in(0)], (), None, NOW + 1.0)
    assert (ranks.found, ranks.searching) == (None, False)


def test_the_collective_of_a_rank_that_dies_slowly_is_kept() -> None:
    ranks = printed()
    for later in range(1, 4):
        ranks.note_glances("node0", {1: PRINTED}, NOW + later)
    ranks.take_looks([behind(0)], (), None, NOW + 5.0)
    assert ranks.found is not None


def test_a_later_time_out_begins_a_new_search() -> None:
    """The program has handled the first time-out."""
    ranks = printed()
    ranks.take_looks([behind(0)], (), None, NOW + 1.0)
    ranks.note_glances("node0", {1: {"waits": None, "timeouts": 2}}, NOW + SEARCH_AGAIN_S - 1.0)
    assert ranks.found is not None
    ranks.note_glances("node0", {1: {"waits": None, "timeouts": 3}}, NOW + SEARCH_AGAIN_S)
    assert ranks.found is None
    assert ranks.searching


def test_a_rank_that_goes_on_after_its_time_out_ends_the_evidence() -> None:
    """The program has handled the time-out. Hours later another rank is missing."""
    ranks = printed()
    ranks.take_looks([behind(0)], (), None, NOW + 1.0)
    assert ranks.found
    ranks.note_glances("node1", {2: PRINTED}, NOW + 2.0)
    later = {"waits": list(SIXTH._replace(seq=7)), "timeouts": 1}
    ranks.note_glances("node0", {1: later}, NOW + 5.0)
    assert ranks.found, "rank 2 may still fail"
    ranks.note_glances("node1", {2: dict(later, waits=list(SIXTH))}, NOW + 6.0)
    ranks.note_glances("node1", {2: later}, NOW + 7.0)
    assert not ranks.found
    assert not ranks.searching
    ranks.note_failures({0: "node0"}, NOW + 9000.0)
    assert ranks.searching
    ranks.take_looks([behind(1)], (), None, NOW + 9000.0 + SEARCH_AFTER_S)
    assert ranks.found is not None
    assert ranks.found.rank == 1


HOSTS = {0: "node0", 1: "node0", 2: "node1", 3: "node1"}


@pytest.mark.parametrize(
    ("waited", "rank", "words"),
    [
        (
            {0: Waits("0", 25, "barrier", 1), 2: Waits("0", 25, "all_reduce", 4)},
            0,
            "rank 0 on node0 is in barrier #25 and rank 2 on node1 is in all_reduce #25: they do not match",
        ),
        (
            {0: Waits("0", 7, "all_reduce", 6), 2: Waits("0", 7, "all_reduce", 4)},
            0,
            (
                "rank 0 on node0 is in all_reduce #7 with 6 elements and "
                "rank 2 on node1 is in all_reduce #7 with 4 elements: they do not match"
            ),
        ),
        (
            {rank: Waits("0", 7, "broadcast" if rank == 2 else "all_reduce", 4) for rank in HOSTS},
            2,
            "rank 2 on node1 is in broadcast #7, ranks 0-1, 3 are in all_reduce #7: they do not match",
        ),
    ],
    ids=["operation", "size", "majority"],
)
def test_ranks_of_a_short_time_out_that_do_not_match(waited: dict[int, Waits], rank: int, words: str) -> None:
    """The ranks are gone before any close look: only the glances have seen their collectives."""
    assert find_mismatch([], waited, HOSTS) == Hung(HOSTS[rank], rank, words)
    ranks = WaitedRanks()
    for each, where in waited.items():
        ranks.note_glances(HOSTS[each], {each: {"waits": list(where)}}, NOW)
    ranks.note_failures({0: "node0"}, NOW + 5.0)
    gone = [look(each, state="ended", stack=None, ended_s=1.0) for each in waited]
    ranks.take_looks(gone, (), None, NOW + 5.0 + SEARCH_AFTER_S)
    assert ranks.found == Hung(HOSTS[rank], rank, words)


@pytest.mark.parametrize(
    "other",
    [
        Waits("0", 25, "all_reduce", 4),
        Waits("0", 24, "barrier", 1),
        Waits("2", 25, "barrier", 1),
        Waits("0", 25, "all_gather", 9),
    ],
    ids=["the same", "another number", "another group", "gather"],
)
def test_collectives_that_may_match(other: Waits) -> None:
    mine = Waits("0", 25, "all_gather", 9) if other.op == "all_gather" else Waits("0", 25, "all_reduce", 4)
    assert find_mismatch([], {0: mine, 2: other}, HOSTS) is None


def test_a_look_shows_the_place_of_a_collective_that_does_not_match() -> None:
    looks = [waits_in(0, [*LOOP, ("all_gather", 4)]), waits_in(2, [*LOOP, ("broadcast", 2)])]
    found = find_mismatch(looks, {}, HOSTS)
    assert found is not None
    assert found.message == (
        "rank 0 on node0 is in all_gather #7 (train.py:88 in step) and rank 2 on node1 is in broadcast #7 "
        "(train.py:88 in step): they do not match"
    )
