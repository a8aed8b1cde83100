"""A host that hangs while an attempt is prepared does not hold up the run."""

from __future__ import annotations

import pytest

from ddpctl_worker.agent import state as st
from ddpctl_worker.agent.limits import HANGS_S
from ddpctl_worker.agent.part import CalledOff, LocalPart
from ddpctl_worker.agent.policy import Rules
from ddpctl_worker.agent.step import step
from ddpctl_worker.record.document import Document
from tests.worker.agreement import BEGUN, agent, at, attempt, report, with_reports

CAUSE = {"host": "n1", "reason": "exited", "message": "it failed", "traceback": None, "time": BEGUN}


class Preparing:
    """Attempt 2 on n0, n1 and n2 is prepared, and n0 leads. Each turn is ten seconds later."""

    def __init__(self, hosts: int = 4, least: int = 3) -> None:
        ended = attempt(1, ended=BEGUN, cause=CAUSE)
        document = Document((ended, attempt(2)), True, 1)
        names = tuple(f"n{number}" for number in range(hosts))
        self.now = 1000.0
        rules = Rules(names, 3, least, restarts=1)
        self.leader = agent("n0", hosts, self.now, document, rules=rules, resumes=True)
        self.reports: dict[str, st.Report] = {name: report(2) for name in names[1:]}
        self.own = st.PartProgress(2)
        self.note: str | None = None

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.leader = with_reports(self.leader, self.now, self.reports)
        self.leader, actions = step(self.leader, at(self.now, st.Looked(None, self.own)))
        self.note = next((action.note for action in actions if isinstance(action, st.Say)), self.note)

    def last(self, seconds: float, **moves: int) -> None:
        """``moves``: the hosts that come on, and how far in ten seconds."""
        until = self.now + seconds
        while self.now < until and self.leader.document.live:
            for host, count in moves.items():
                if host == "n0":
                    self.own = self.own._replace(moved=self.own.moved + count)
                else:
                    told = self.reports[host]
                    self.reports[host] = told._replace(moved=told.moved + count)
            self.turn(10.0)


def test_a_host_that_hangs_is_set_aside() -> None:
    run = Preparing()
    run.turn()
    run.own = run.own._replace(reaches=(), restored=True)
    run.last(HANGS_S, n1=1)
    assert run.leader.document.live
    run.last(20.0, n1=1)
    assert not run.leader.document.live
    assert list(run.leader.document.set_aside) == ["n2"]
    run.turn()
    run.reports.update({host: report(2, idle=True) for host in ("n1", "n2")})
    run.turn()
    document = run.leader.document
    ended = document.attempts[-1]
    assert ended.cause is not None
    assert (ended.cause["host"], [one["host"] for one in ended.set_aside]) == ("n2", ["n2"])
    assert "made no progress for 120 s" in ended.cause["message"]
    assert document.over is None, "it was the last attempt, and no rank of it had begun"


def test_what_takes_hours_and_comes_on_is_waited_for() -> None:
    run = Preparing()
    run.reports["n2"] = report(2, ready=True)
    run.last(7200.0, n0=1, n1=1 << 30)
    assert run.leader.document.live
    run.own = run.own._replace(restored=True)
    run.reports["n1"] = report(2, ready=True)
    run.turn()
    run.turn()
    assert run.leader.document.go == 2


def test_who_waits_for_another_host_is_not_to_blame() -> None:
    """On n2 a part of the attempt before does not end."""
    run = Preparing()
    run.turn()
    run.own = run.own._replace(reaches=())
    run.reports["n1"] = report(2, reaches=(), waits=True)
    run.last(HANGS_S + 30.0)
    assert list(run.leader.document.set_aside) == ["n2"]


def test_where_the_run_needs_that_host_it_is_waited_for() -> None:
    run = Preparing(hosts=3)
    run.last(3600.0, n0=1, n1=1)
    assert run.leader.document.live
    assert run.leader.document.set_aside == {}
    words = run.note
    assert words is not None
    assert words.startswith("attempt 2 waits for n0, n1, n2 (no progress since ")
    run.last(20.0, n0=1, n1=1)
    assert run.note == words
    run.last(10.0, n0=1, n1=1, n2=1)
    assert run.note == "attempt 2 waits for n0, n1, n2"


def test_fewer_hosts_are_enough_where_the_job_says_so() -> None:
    run = Preparing(hosts=3, least=2)
    run.last(HANGS_S + 30.0, n0=1, n1=1)
    assert list(run.leader.document.set_aside) == ["n2"]


def test_what_a_host_says_of_its_preparation() -> None:
    part = LocalPart("/nonexistent", 2)
    part.move(7)
    assert part.progress == st.PartProgress(2, moved=7)
    part.wanted = False
    with pytest.raises(CalledOff):
        part.move()
