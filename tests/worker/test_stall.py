"""When to look closely at a run."""

from __future__ import annotations

from typing import Any

from ddpctl_worker.doctor.stall import AGAIN_S, FRESH_S, Stall

EVERY = 5.0
WORK = {"cpu": 80.0, "bytes": 0}
IDLE = {"cpu": 0.0, "bytes": 0}


class Run:
    """Ranks that are glanced at every five seconds on one clock."""

    def __init__(self, ranks: int = 2, stall: float = 30.0) -> None:
        self.stall, self.now, self.ranks, self.place = Stall(stall), 1000.0, list(range(ranks)), 0

    def steps(self, seconds: float) -> None:
        """All ranks come on, so that there is nothing to look at."""
        for _ in range(int(seconds / EVERY)):
            self.place += 1
            assert not self.pause(EVERY, WORK, recorded=True)

    def pause(
        self, seconds: float, work: dict[str, Any] = WORK, *, waits: bool = False, recorded: bool = True
    ) -> list[float]:
        """No rank comes any further; rank 0 may wait in a collective. When a look was due, from the pause's begin."""
        begin, due = self.now, []
        while self.now < begin + seconds:
            self.now += EVERY
            for rank in self.ranks:
                pending = self.now - begin if waits and rank == 0 else None
                place = ("0", self.place, self.place) if recorded else None
                self.stall.feed(rank, {**work, "place": place, "pending": pending}, self.now)
            if self.stall.due(self.now):
                due.append(self.now - begin)
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
    assert run.stall.since is None


def test_a_rank_that_falls_silent_says_nothing_any_more() -> None:
    run = Run()
    run.steps(30)
    run.pause(10, waits=True)
    run.ranks = [1]
    assert run.pause(300, WORK) == []
    assert run.pause(60, IDLE)[0] == 30.0 + EVERY  # the one that is left does no work


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    """The last that was seen of it is work, and would count for another while."""
    run = Run()
    run.steps(30)
    run.ranks = [1]
    run.stall.left(0)
    run.stall.left(7)
    assert run.pause(60, IDLE)[0] == 30.0 + EVERY


def test_nothing_is_due_when_all_are_silent() -> None:
    run = Run()
    run.steps(30)
    run.pause(20, IDLE, waits=True)
    assert not run.stall.due(run.now + FRESH_S + 100)
    assert not Stall(30.0).due(5.0)


def test_a_look_is_not_due_again_at_once() -> None:
    run = Run()
    run.steps(30)
    assert run.pause(30, waits=True)
    assert not run.stall.due(run.now + AGAIN_S - 1)
    assert run.stall.due(run.now + AGAIN_S)


def test_that_a_rank_comes_on_is_said() -> None:
    stall = Stall(30.0)
    glance = {**WORK, "place": ["0", 1, 0], "pending": 0.5}
    assert stall.feed(0, glance, 10.0)
    assert not stall.feed(0, glance, 15.0)
    assert stall.feed(0, {**glance, "place": ["0", 1, 1], "pending": None}, 20.0)
    assert (stall.since, stall.longest, stall.limit) == (20.0, 10.0, 30.0)
    assert not stall.feed(0, {**glance, "place": None}, 25.0)
    assert not stall.feed(0, {**glance, "place": ["0", 1, 1]}, 30.0)
