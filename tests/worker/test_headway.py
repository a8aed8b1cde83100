"""A host that hangs while an attempt is prepared does not hold up the run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker.agent.headway import HANGS_S
from ddpctl_worker.agent.lead import Leader
from ddpctl_worker.agent.part import CalledOff, LocalPart
from tests.worker.handclock import HandClock

HOSTS = ["a", "b", "c", "d"]


class Preparing:
    """Attempt 2 on a, b and c is prepared, and a leads. Each turn is ten seconds later."""

    def __init__(self, hosts: str = "abcd", least: int = 3) -> None:
        self.clock = HandClock()
        members = [{"host": host, "address": "127.0.0.1"} for host in hosts]
        run = {"restart": {"hosts": members, "nodes": 3, "least": least, "restarts": 1}}
        ended = {"attempt": 1, "hosts": list("abc"), "cause": {"message": "it failed"}, "set_aside": []}
        fresh = {"attempt": 2, "hosts": list("abc"), "ended": None, "cause": None, "set_aside": []}
        value = {"attempts": [ended, fresh], "live": True, "go": 1, "aside": {}, "over": None}
        self.voter: Any = SimpleNamespace(host="a", leads=True, agreed=True, paper=SimpleNamespace(value=value))
        self.voter.write = lambda value: setattr(self.voter.paper, "value", value)
        self.voter.quiet_at = lambda host: self.clock.at + 100.0
        self.reports: dict[str, dict[str, Any]] = {host: self.report() for host in "bc"}
        self.part = LocalPart("/nonexistent", 2)
        self.caller: Any = SimpleNamespace(lock=threading.RLock(), reports=self.reports, changed=threading.Event())
        self.caller.near = lambda seconds: list(hosts)
        self.caller.save = self.caller.nudge = lambda: None
        line: Any = SimpleNamespace(peers={})
        self.leader = Leader(run, self.voter, line, "/nonexistent", self.clock)  # type: ignore[arg-type]

    @staticmethod
    def report(**more: Any) -> dict[str, Any]:
        return {"clear": 1, "end": None, "attempt": 2, "ready": 0, **more}

    @property
    def value(self) -> dict[str, Any]:
        found: dict[str, Any] = self.voter.paper.value
        return found

    def last(self, seconds: float, **moves: int) -> None:
        """``moves``: the hosts that come on, and how far in ten seconds."""
        until = self.clock.at + seconds
        while self.clock.at < until and self.value["live"]:
            self.clock.at += 10.0
            for host, count in moves.items():
                if host == "a":
                    self.part.move(count)
                else:
                    self.reports[host]["moved"] = self.reports[host].get("moved", 0) + count
            self.leader.turn(self.caller, self.part)


def test_a_host_that_hangs_is_set_aside() -> None:
    run = Preparing()
    run.part.ready = True
    run.last(HANGS_S, b=1)
    assert run.value["live"]
    run.last(20.0, b=1)
    assert not run.value["live"]
    assert list(run.value["aside"]) == ["c"]
    for host in "bc":
        run.reports[host]["clear"] = 2
    run.leader.turn(run.caller, None)
    ended = run.value["attempts"][-1]
    assert (ended["cause"]["host"], [one["host"] for one in ended["set_aside"]]) == ("c", ["c"])
    assert "made no progress for 120 s" in ended["cause"]["message"]
    assert run.value["over"] is None, "it was the last attempt, and no rank of it had begun"
    assert list(run.value["aside"]) == ["c"]


def test_what_takes_hours_and_comes_on_is_waited_for() -> None:
    run = Preparing()
    run.reports["c"]["ready"] = 2
    run.last(7200.0, a=1, b=1 << 30)
    assert run.value["live"]
    run.part.ready = True
    run.reports["b"]["ready"] = 2
    run.leader.turn(run.caller, run.part)
    assert run.value["go"] == 2


def test_who_waits_for_another_host_is_not_to_blame() -> None:
    """b waits for a, which waits for c; on that one a part of the attempt before does not end."""
    run = Preparing()
    run.part.waits_for, run.reports["b"]["waits"] = "c", "a"
    run.reports["c"]["clear"] = 0
    run.last(HANGS_S + 30.0)
    assert list(run.value["aside"]) == ["c"]


def test_where_the_run_needs_that_host_it_is_waited_for() -> None:
    run = Preparing(hosts="abc")
    run.last(3600.0, a=1, b=1)
    assert run.value["live"]
    assert run.value["aside"] == {}
    words = run.leader.headway.waits
    assert words is not None
    assert words.startswith("attempt 2 waits for a, b, c (no progress since ")
    run.last(20.0, a=1, b=1)
    assert run.leader.headway.waits == words
    run.last(10.0, a=1, b=1, c=1)
    assert run.leader.headway.waits == "attempt 2 waits for a, b, c"


def test_fewer_hosts_are_enough_where_the_job_says_so() -> None:
    run = Preparing(hosts="abc", least=2)
    run.last(HANGS_S + 30.0, a=1, b=1)
    assert list(run.value["aside"]) == ["c"]


def test_what_a_host_says_of_its_preparation() -> None:
    run = Preparing()
    part = LocalPart("/nonexistent", 2)
    part.move(7)
    part.waits_for = "b"
    told = run.leader.report(part)
    assert (told["moved"], told["waits"], told["ready"]) == (7, "b", 0)
    part.wanted = False
    with pytest.raises(CalledOff):
        part.move()
    assert "moved" not in run.leader.report(LocalPart("/nonexistent", 1))
