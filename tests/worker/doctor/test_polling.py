"""A rank that sleeps again and again on one line, until something is there that never comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddpctl_worker.doctor.hosts import HostFacts
from ddpctl_worker.doctor.look import Subject, Tools, time_of_wakeup
from ddpctl_worker.doctor.polling import Polling
from ddpctl_worker.doctor.watch import RunWatch
from ddpctl_worker.machine.clocks import Offset
from ddpctl_worker.rules.limits import STALL_S
from ddpctl_worker.rules.verdict import diagnose
from tests.worker.handclock import HandClock
from tests.worker.looks import NOW, TRAIN, WAIT, Look, behind, by_stack, look, named, suspects, three_wait, waits_in

POLLS = [[TRAIN, 3, "wait"], [TRAIN, 9, "<module>"]]
WITHIN_S = 45.0


class Paused:
    """A run of two ranks on one host by default settings: rank 0 waits in a collective, rank 1 sleeps. ``sleep``: how
    many seconds rank 1 still sleeps, by the seconds since the pause began."""

    def __init__(self, sleep: Callable[[float], float], *, recorded: bool = True) -> None:
        self.clock, self._sleep, self._recorded = HandClock(), sleep, recorded
        self._begin = self.clock.now()
        subjects = [Subject(0, 0, 1), Subject(1, 1, 2)]
        said: list[dict[str, Any]] = []
        send = (said.append, said.append, lambda host: Offset(0.0, 0.0), HostFacts())
        parts = (lambda: subjects, list, dict, dict, *send)
        self.watch = RunWatch("node0", ["node0"], STALL_S, Tools("/nowhere", None), *parts, clock=self.clock)
        self.watch._at = self._glance  # type: ignore[method-assign]
        self.watch.look = self._look  # type: ignore[method-assign]

    def named_after(self, seconds: float) -> float | None:
        """Return after how many seconds the run was first called stuck; ``None``: not within ``seconds``."""
        while self.clock.now() < self._begin + seconds:
            self.watch._turn()
            if self.watch.diagnosis is not None:
                return self.clock.now() - self._begin
        return None

    @property
    def _paused(self) -> float:
        return self.clock.now() - self._begin

    def _glance(self, one: Subject, now: float) -> dict[str, Any]:
        pending = self._paused if one.rank == 0 and self._recorded else None
        place = ["0", 6, 5] if self._recorded else None
        return {"pid": one.pid, "place": place, "pending": pending, "cpu": 0.0, "bytes": 0, "new": {}}

    def _look(self, interval: float = 1.0, *, asked: bool = False, nccl: bool = False) -> list[Look]:
        first = self._sleep(self._paused)
        self.clock.sleep(1.0)
        now = NOW + self._paused
        sleeps: dict[str, Any] = {
            "sleep_s": self._sleep(self._paused),
            "polls": first < 1.0,
            "stack": POLLS,
            "now": now,
        }
        if self._recorded:
            waits = waits_in(0, seconds=40.0)
            waits["now"] = waits["groups"]["0"]["entries"][-1][4] + self._paused
            return [waits, behind(1, **sleeps)]
        return [by_stack(0, now=now), look(1, **sleeps)]


@pytest.mark.parametrize("recorded", [True, False], ids=["record", "stacks"])
@pytest.mark.parametrize("period", [0.05, 0.5, 1.0, 3.0, 7.0])
def test_it_is_named_soon_by_default_settings(period: float, recorded: bool) -> None:
    run = Paused(lambda at: period - at % period, recorded=recorded)
    when = run.named_after(WITHIN_S)
    assert when is not None
    assert run.watch.diagnosis is not None
    assert run.watch.diagnosis["suspects"] == [{"host": "node0", "rank": 1}]
    assert "rank 1 on node0 is at train.py:3 in wait, where it sleeps and looks again" in run.watch.diagnosis["verdict"]


@pytest.mark.parametrize(
    ("sleep", "seconds"), [(lambda at: 80.0 - at, 70.0), (lambda at: 30.0, 55.0)], ids=["its end", "its length"]
)
def test_one_long_sleep_is_no_poll(sleep: Callable[[float], float], seconds: float) -> None:
    """Of a sleep that select(2) is in, only the length can be read."""
    assert Paused(sleep).named_after(seconds) is None


def test_the_function_that_only_sleeps_is_not_where_it_is() -> None:
    wrapped = [[TRAIN, 1, "_sleep"], *POLLS]
    text = "rank 2 on node1 is at train.py:3 in wait, where it sleeps and looks again"
    named(three_wait(behind(2, stack=wrapped, sleep_s=0.3, polls=True)), WAIT + text, 2)
    asleep = three_wait(behind(2, stack=wrapped, sleep_s=600.0))
    assert "rank 2 on node1 is at train.py:1 in _sleep" in diagnose(asleep).verdict


@pytest.mark.parametrize("more", [{"cpu": 50.0}, {"below": 50.0}, {"bytes": 1 << 20}])
def test_what_works_meanwhile_is_excused(more: dict[str, Any]) -> None:
    assert suspects(diagnose(three_wait(behind(2, sleep_s=0.3, polls=True, **more)), asked=False)) == []


def test_a_worker_that_polls_excuses_nobody() -> None:
    child = {"pid": 7, "state": "sleeping", "sleep_s": 0.3, "stack": POLLS}
    for polls, odd in ((True, [2]), (False, [])):
        assert suspects(diagnose(three_wait(behind(2, children=[dict(child, polls=polls)])), asked=False)) == odd


def test_a_sleep_on_another_line_begins_anew() -> None:
    polling = Polling()

    def looked(at: float, line: int, sleep_s: float = 2.0) -> bool:
        (made,) = polling.mark_polls([look(0, now=at, sleep_s=sleep_s, stack=[[TRAIN, line, "wait"]])])
        return bool(made["polls"])

    assert [looked(0.0, 3), looked(1.0, 3), looked(1.9, 3), looked(6.0, 3)] == [False, False, False, True]
    assert [looked(11.0, 4), looked(16.0, 4)] == [False, True]
    (awake,) = polling.mark_polls([look(0, now=17.0, stack=[[TRAIN, 4, "wait"]])])
    assert not awake["polls"]
    assert not looked(30.0, 4)


@pytest.mark.parametrize(
    ("sleeps", "polls"),
    [
        ([(0.0, 0.3), (1.0, 0.2)], True),
        ([(0.0, 1.5), (1.0, 0.5)], False),
        ([(0.0, 0.3), (1.0, None)], False),
        ([(0.0, None), (1.0, 0.3)], False),
        ([(0.0, None), (0.25, 0.1), (0.5, None), (0.75, 0.0), (1.0, None)], True),
        ([], False),
    ],
)
def test_within_one_look_a_sleep_must_end(sleeps: list[tuple[float, float | None]], polls: bool) -> None:
    assert time_of_wakeup(sleeps) is polls
