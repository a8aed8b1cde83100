"""When to look closely at a run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpctl_worker.doctor.limits import GLANCE_FRESH_S, LOOK_AGAIN_S, MOST_LOOK_AGAIN_S
from ddpctl_worker.doctor.stall import Stall, excuses_end
from ddpctl_worker.rules.limits import BUSY_FACTOR, MOVING_FACTOR

EVERY = 5.0
WORK = {"cpu": 80.0, "bytes": 0}
IDLE = {"cpu": 0.0, "bytes": 0}
READ = {"cpu": 5.0, "bytes": 1 << 20}


class Run:
    """Ranks with a glance every five seconds, on a single clock."""

    def __init__(self, ranks: int = 2, stall: float = 30.0) -> None:
        self.stall, self.now, self.ranks, self.place = Stall(stall), 1000.0, list(range(ranks)), 0

    def steps(self, seconds: float) -> None:
        """Let all ranks move on, so that no look is due."""
        for _ in range(int(seconds / EVERY)):
            self.place += 1
            assert not self.pause(EVERY, WORK, recorded=True)

    def pause(
        self,
        seconds: float,
        work: dict[str, Any] = WORK,
        *,
        waits: bool = False,
        recorded: bool = True,
        excused: bool = False,
        begin: float | None = None,
        every: float = EVERY,
    ) -> list[float]:
        """Let no rank move on, and return when a look was due, in seconds from the begin of the pause.

        ``waits``: rank 0 waits in a collective. ``excused``: the looks find nothing stuck.
        """
        begin, due, end = begin or self.now, [], self.now + seconds
        while self.now < end:
            self.now += every
            for rank in self.ranks:
                pending = self.now - begin if waits and rank == 0 else None
                place = ("0", self.place, self.place) if recorded else None
                self.stall.feed(rank, {**work, "place": place, "pending": pending}, self.now)
            if self.stall.is_due(self.now):
                due.append(self.now - begin)
                if excused:
                    waited = self.now - begin if recorded else 0.0
                    self.stall.take_look(self.now, False, excuses_end(waited, self.stall.limit, []))
        return due


def test_a_pause_longer_than_the_limit_is_due_again_and_again() -> None:
    run = Run()
    run.steps(60)
    assert run.pause(45, waits=True) == [30.0, 35.0, 40.0, 45.0]


def test_a_pause_that_the_run_has_made_before_is_none() -> None:
    run = Run()
    run.steps(60)
    run.pause(50, waits=True)
    run.steps(60)
    assert run.stall.longest == 55.0
    assert run.stall.limit == 82.5
    assert run.pause(100, waits=True)[0] == 85.0  # and not after 60


def test_an_ordinary_pause_is_no_reason() -> None:
    run = Run()
    run.steps(30)
    assert run.pause(25, waits=True) == []
    assert run.pause(25, IDLE) == []


def test_work_while_nobody_waits_is_no_reason() -> None:
    run = Run()
    run.steps(30)
    assert run.pause(300, WORK) == []
    assert run.pause(300, {"cpu": 0.0, "bytes": 1 << 20}) == []


def test_nobody_does_any_work() -> None:
    run = Run()
    run.steps(30)
    assert run.pause(40, IDLE)[0] == 30.0 + EVERY  # idle since the first look that saw it


def test_ranks_without_a_record_are_due_when_idle_only() -> None:
    run = Run()
    assert run.pause(300, WORK, recorded=False) == []
    assert run.pause(60, IDLE, recorded=False)[0] == 30.0 + EVERY
    assert run.stall.paused_since(run.now) == run.now - 60 + EVERY


def test_a_rank_that_falls_silent_says_nothing_any_more() -> None:
    run = Run()
    run.steps(30)
    run.pause(10, waits=True)
    run.ranks = [1]
    assert run.pause(300, WORK) == []
    assert run.pause(60, IDLE)[0] == 30.0 + EVERY  # the remaining rank does no work


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    """The last look at the ended rank shows work, and would count for a while longer."""
    run = Run()
    run.steps(30)
    run.ranks = [1]
    run.stall.forget_rank(0)
    run.stall.forget_rank(7)
    assert run.pause(60, IDLE)[0] == 30.0 + EVERY


def test_nothing_is_due_when_all_are_silent() -> None:
    run = Run()
    run.steps(30)
    run.pause(20, IDLE, waits=True)
    assert not run.stall.is_due(run.now + GLANCE_FRESH_S + 100)
    assert not Stall(30.0).is_due(5.0)


def test_a_look_is_not_due_again_at_once() -> None:
    run = Run()
    run.steps(30)
    assert run.pause(30, waits=True)
    assert not run.stall.is_due(run.now + LOOK_AGAIN_S - 1)
    assert run.stall.is_due(run.now + LOOK_AGAIN_S)


def test_looks_that_find_nothing_stuck_get_rarer() -> None:
    """Rank 0 trains while the other ranks evaluate for three hours."""
    run = Run()
    run.steps(60)
    due = run.pause(3 * 3600, WORK, waits=True, excused=True)
    assert due[:4] == [30.0, 35.0, 40.0, 45.0]
    assert len(due) < 250
    assert max(after - before for before, after in pairwise(due)) == MOST_LOOK_AGAIN_S
    assert {30.0 * BUSY_FACTOR, 30.0 * MOVING_FACTOR} <= set(due)
    run.steps(60)
    again = run.pause(20_000, WORK, waits=True)
    assert run.stall.limit <= again[0] < run.stall.limit + EVERY
    assert again[1] == again[0] + LOOK_AGAIN_S


PHASES = st.lists(st.tuples(st.sampled_from([WORK, IDLE, READ]), st.integers(5, 400)), min_size=1, max_size=8)


@given(phases=PHASES, stall=st.sampled_from([10.0, 30.0, 120.0]))
@example(phases=[(WORK, 358), (WORK, 8)], stall=120.0)  # the look comes in the second phase, which is over soon
def test_rare_looks_do_not_delay_a_diagnosis(phases: list[tuple[dict[str, Any], int]], stall: float) -> None:
    """Rank 0 waits for rank 1, which works, reads and idles by turns.

    A look comes within 10 s after rank 1 has no excuse left by the rules of verdict.py.
    """
    run = Run(stall=stall)
    run.steps(60)
    begin = run.now
    for work, seconds in [*phases, (IDLE, 200)]:
        factor = MOVING_FACTOR if work is READ else BUSY_FACTOR if work is WORK else 1
        may = max(run.now - begin, factor * stall)
        due = run.pause(seconds, work, waits=True, excused=True, begin=begin, every=2.5)
        if any(may <= at <= may + 10.0 for at in due):
            return
        assert run.now - begin < may + 10.0
    pytest.fail("at its end, rank 1 does no work for long enough")


def test_the_end_of_a_sleep_brings_a_look() -> None:
    worker = {"sleep_s": 40.0}
    ends = excuses_end(50.0, 30.0, [{"sleep_s": None}, {"sleep_s": 1.0}, {"sleep_s": None, "children": [worker]}])
    assert ends == [40.0, 550.0, 40.0]
    stall = Stall(30.0)
    stall.feed(0, {**IDLE, "place": None, "pending": None}, 0.0)
    stall.feed(0, {**IDLE, "place": None, "pending": None}, 900.0)
    assert stall.is_due(900.0)
    stall.take_look(901.0, False, [])
    stall.take_look(902.0, False, [2.0, -1.0])
    assert [stall.is_due(at) for at in (903.0, 904.0)] == [False, True]


@pytest.mark.parametrize("recorded", [True, False])
def test_when_a_diagnosis_holds_no_more(recorded: bool) -> None:
    """Without a record, a look that finds nothing stuck ends the diagnosis.

    With a record that shows no movement, the diagnosis holds for longer: a while of work does not prove movement.
    """
    run = Run()
    run.steps(60 if recorded else 0)
    run.pause(60, IDLE, waits=recorded, recorded=recorded)
    assert run.stall.take_look(run.now, True, [])
    assert run.stall.take_look(run.now + 5, False, []) is recorded
    assert run.stall.take_look(run.now + 5 + run.stall.limit, False, []) is False


def test_a_run_that_was_found_stuck_is_looked_at_until_it_is_not() -> None:
    """Its ranks work again, and no record shows that they move."""
    run = Run()
    run.pause(60, IDLE, recorded=False)
    run.pause(10, WORK, recorded=False)
    assert run.stall.paused_since(run.now) is None
    assert not run.stall.is_due(run.now)
    assert run.stall.is_due(run.now, diagnosed=True)


def test_that_a_rank_comes_on_is_said() -> None:
    stall = Stall(30.0)
    glance = {**WORK, "place": ["0", 1, 0], "pending": 0.5}
    assert stall.feed(0, glance, 10.0)
    assert not stall.feed(0, glance, 15.0)
    assert stall.feed(0, {**glance, "place": ["0", 1, 1], "pending": None}, 20.0)
    assert (stall.longest, stall.limit) == (10.0, 30.0)
    assert not stall.feed(0, {**glance, "place": None}, 25.0)
    assert not stall.feed(0, {**glance, "place": ["0", 1, 1]}, 30.0)
