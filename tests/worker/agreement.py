"""Agents without a network: the test hands each event to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpctl_worker.agent import raft
from ddpctl_worker.agent import state as st
from ddpctl_worker.agent.policy import Rules
from ddpctl_worker.agent.state import Config, Event, State
from ddpctl_worker.record.document import AgreedAttempt, Ballot, Document

BEGUN = "2026-01-02T03:04:05+00:00"
ENDED = {"state": "failed", "cause": None, "ended": None, "left": 0}


def at(now: float, fact: st.Fact | None = None) -> Event:
    """Return an event without randomness, so that the times of elections are known."""
    return Event(now, 1_767_225_600.0 + now, 0.0, fact or st.Tick())


def attempt(number: int = 1, hosts: str = "n0 n1 n2", **more: Any) -> AgreedAttempt:
    return AgreedAttempt(number, tuple(hosts.split()), 1, 2, BEGUN, **more)


def agent(host: str, hosts: int = 3, now: float = 100.0, document: Document | None = None, **config: Any) -> State:
    """Return an agent of a run in which the first host leads in term 1."""
    names = tuple(f"n{number}" for number in range(hosts))
    rules = config.pop("rules", Rules(names, hosts, 1, restarts=3))
    first = document or Document((attempt(hosts=" ".join(names)),), True, 1)
    return raft.first_state(Config(host, names, rules, "train", **config), Ballot.first("n0", first), now)


def ask_leader(leader: State, follower: State, now: float) -> tuple[State, State]:
    """Poll the leader and give its answer to the follower, both at ``now``."""
    leader, answer = raft.answer_poll(leader, follower.host, raft.poll(follower), at(now))
    return leader, raft.hear(follower, answer, now, at(now))


def report(number: int, **more: Any) -> st.Report:
    return st.Report(number, more.pop("idle", False), **more)


def with_reports(leader: State, now: float, reports: Mapping[str, st.Report | None]) -> State:
    """Return the leader as if these hosts had just asked, with everything that the leader has proposed.

    A host with the report None has not asked.
    """
    assert leader.lead is not None
    mark = leader.ballot.proposal.mark
    told = {
        host: leader.lead.followers[host]._replace(asked=now, have=mark, knows=mark, report=one)
        for host, one in reports.items()
        if one is not None
    }
    followers = {**leader.lead.followers, **told}
    committed = (
        mark if 2 * (1 + sum(one.have == mark for one in followers.values())) > len(leader.config.hosts) else (0, 0)
    )
    return leader._replace(lead=leader.lead._replace(followers=followers), committed=committed)
