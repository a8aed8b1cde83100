"""What the leading agent decides of hosts that end late, or not at all."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker import notes
from ddpctl_worker.agent.lead import STUCK_S, Leader
from ddpctl_worker.agent.quorum import KILL_S, Voter
from ddpctl_worker.agent.talk import PeerLine
from tests.worker.handclock import HandClock

HOSTS = ["n0", "n1", "n2"]
GRACE_S = 120.0  # the job's


class Table:
    """Three agents without a network; n0 leads. n2 has failed in attempt 1, and n1 has not ended yet."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = HandClock()
        members = [{"host": name, "address": "", "nproc": 1} for name in HOSTS]
        first = {"attempt": 1, "hosts": HOSTS, "master_port": 1, "gang_port": 2, "started": notes.now_iso()}
        first.update(ended=None, cause=None, set_aside=[])
        value = {"attempts": [first], "live": False, "go": 1, "aside": {}, "over": None}
        self.voters = {name: Voter(name, HOSTS, Voter.first("n0", value), self.clock.at) for name in HOSTS}
        for voter in self.voters.values():
            voter.begin(self.clock.at)
        self.leads = self.voters["n0"]
        place = {"hosts": members, "nodes": 3, "least": 2, "restarts": 3, "first": first}
        run = {"run": "r", "restart": place, "timeouts": {"stop": GRACE_S}}
        self.leader = Leader(run, self.leads, PeerLine(b"", "r", "n0", {}), "/", self.clock)
        end = {"state": "failed", "cause": None, "ended": None, "left": 0}
        done = {"clear": 1, "end": end, "attempt": 1, "ready": 1}
        self.reports: dict[str, Any] = {"n1": {"clear": 0, "end": None, "attempt": 1}, "n2": done}
        patch.setattr(self.leader, "report", lambda part: done)

    def second(self) -> None:
        self.clock.at += 1.0
        for name in HOSTS[1:]:
            voter = self.voters[name]
            voter.told(self.leads.answer(voter.poll(), self.clock.at), self.clock.at, self.clock.at)
        self.leads.renew(self.clock.at)
        caller: Any = SimpleNamespace(lock=threading.RLock(), reports=self.reports, changed=threading.Event())
        caller.near, caller.save, caller.nudge = (lambda seconds: HOSTS), (lambda: None), (lambda: None)
        self.leader.turn(caller, None)

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = self.leads.paper.value["attempts"][0]
        return found


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_a_host_has_the_jobs_own_grace(table: Table) -> None:
    """Its ranks may use all of it, and it keeps its lease meanwhile."""
    until = table.clock.at + GRACE_S + STUCK_S
    while table.clock.at < until:
        table.second()
        assert table.last["ended"] is None
        assert table.voters["n1"].lease > table.clock.at or table.clock.at < 1003.0
    table.reports["n1"] = table.reports["n2"]
    table.second()
    assert table.last["ended"] is not None
    assert table.leads.paper.value["aside"] == {}


def test_a_host_that_is_stuck_loses_its_lease_before_the_others_go_on(table: Table) -> None:
    until = table.clock.at + GRACE_S + STUCK_S + 60.0
    while table.last["ended"] is None and table.clock.at < until:
        table.second()
    assert table.last["ended"] is not None
    assert list(table.leads.paper.value["aside"]) == ["n1"]
    assert table.clock.at > table.voters["n1"].lease + KILL_S
    assert table.voters["n2"].lease > table.clock.at
