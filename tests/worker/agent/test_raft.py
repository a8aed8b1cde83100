"""The agents of a run agree: one host leads, and a proposal counts once a majority has it."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl_worker.agent import raft
from ddpctl_worker.agent.limits import AUTHORITY_S, ELECTION_S, GRACE_S, KILL_S
from ddpctl_worker.agent.state import Report, State
from ddpctl_worker.record.document import Ballot
from ddpctl_worker.run import limits
from tests.worker.agreement import agent, ask_leader, at, attempt

VOTE = {"k": "vote", "term": 2, "have": (1, 1)}


def vote(voter: State, host: str, now: float, **question: Any) -> tuple[State, bool]:
    voter, answer = raft.answer_vote(voter, host, {**VOTE, **question}, at(now))
    return voter, bool(answer["granted"])


def propose(leader: State, number: int = 2) -> State:
    return raft.propose(leader, leader.document._replace(attempts=(attempt(number),)))


def test_the_time_to_kill_covers_all_that_happens_after_a_lease() -> None:
    """The supervisor's turn and its grace, or the guardian's, and then the kill itself."""
    assert AUTHORITY_S < ELECTION_S
    assert max(limits.LEASED_GRACE_S, limits.LEASE_OVER_S) + limits.LEASED_SUPERVISOR_END_S <= KILL_S


def test_who_heard_the_leader_votes_for_nobody_else() -> None:
    _, voter = ask_leader(agent("n0"), agent("n1"), 200.0)
    assert not vote(voter, "n2", 207.9)[1]
    voter, granted = vote(voter, "n2", 208.1)
    assert granted
    assert not vote(voter, "n0", 220.0)[1]  # a single vote in each term


def test_a_leader_with_authority_votes_for_nobody() -> None:
    leader, voter = agent("n0"), agent("n1")
    for now in (200.0, 201.0):
        leader, voter = ask_leader(leader, voter, now)
    assert raft.authority(leader, 201.0) == 207.5
    leader, granted = vote(leader, "n2", 207.0)
    assert not granted
    assert leader.lead is not None
    leader, granted = vote(leader, "n2", 207.6)
    assert granted
    assert leader.lead is None


def test_who_lacks_what_a_voter_has_is_not_elected() -> None:
    _, voter = ask_leader(propose(agent("n0")), agent("n1"), 200.0)
    assert not vote(voter, "n2", 220.0)[1]
    assert vote(voter, "n2", 220.0, have=(1, 2))[1]


def test_only_the_leader_says_who_leads() -> None:
    """Hosts that have not yet missed a lost leader would otherwise name it to each other for ever."""
    leader, one = ask_leader(agent("n0"), agent("n1"), 200.0)
    leader, two = ask_leader(leader, agent("n2"), 200.0)
    two = two._replace(leader=None)
    one, answer = raft.answer_poll(one, "n2", raft.poll(two), at(205.0))
    assert raft.hear(two, answer, 205.0, at(205.0)).leader is None


def test_a_proposal_counts_once_a_majority_has_it() -> None:
    leader, one, two, three = (agent(name, 5) for name in ("n0", "n1", "n2", "n3"))
    leader = propose(leader)
    leader, one = ask_leader(leader, one, 200.0)
    assert not leader.agreed
    leader, one = ask_leader(leader, one, 201.0)
    leader, two = ask_leader(leader, two, 201.0)
    assert not leader.agreed
    leader, two = ask_leader(leader, two, 202.0)
    assert leader.agreed
    assert not one.agreed
    assert not three.agreed
    leader, one = ask_leader(leader, one, 203.0)
    assert one.agreed


def test_a_lease_needs_the_leaders_newest_proposal() -> None:
    """The lease allows the attempt that is in this proposal."""
    leader, voter = agent("n0"), agent("n1")
    for now in (200.0, 201.0):
        leader, voter = ask_leader(leader, voter, now)
    assert voter.lease == 201.0 + 6.5 + GRACE_S
    assert raft.quiet_at(leader, "n1") == 207.5 + GRACE_S + KILL_S
    assert raft.quiet_at(leader, "n2") == 100.0 + GRACE_S + KILL_S


def test_what_must_not_be_forgotten_is_the_same_from_disk() -> None:
    _leader, voter = ask_leader(propose(agent("n0")), agent("n1"), 200.0)
    voter, granted = vote(voter, "n2", 210.0, have=(1, 2))
    assert granted
    assert Ballot.from_json(voter.ballot.to_json()) == voter.ballot


def test_a_leader_that_steps_down_keeps_what_it_promised() -> None:
    """n1 runs on a lease from n0, which n0 must respect when n2 stands for a later term."""
    leader, voter = agent("n0"), agent("n1")
    for now in (200.0, 201.0):
        leader, voter = ask_leader(leader, voter, now)
    leader = raft.hear(leader, {"term": 5}, 202.0, at(202.0))
    assert leader.lead is None
    leader, granted = vote(leader, "n2", 207.0, term=6)
    assert not granted
    assert vote(leader, "n2", 207.6, term=6)[1]


def elect(candidate: State, voter: State, now: float) -> tuple[State, State]:
    """Let the candidate ask whether it would get the vote, and then ask for the vote itself."""
    candidate, question = raft.stand(candidate, at(now))
    while question is not None:
        voter, answer = raft.answer_vote(voter, candidate.host, question, at(now))
        candidate, question = raft.count_vote(candidate, voter.host, question, answer, at(now))
    return candidate, voter


def test_a_leader_that_steps_down_waits_until_its_own_word_has_run_out() -> None:
    """A leader that is elected again does not remember the leases of its earlier term.

    It assumes that every host may run until a fixed time after the election. No lease of the earlier
    term may end after that time.
    """
    leader, one, two = (agent(name) for name in ("n0", "n1", "n2"))
    for now in (101.0, 101.5):
        leader, one = ask_leader(leader, one, now)
    two, question = raft.stand(two, at(110.0))  # n0 is cut off; n1 would vote for n2
    assert question is not None
    one, answer = raft.answer_vote(one, "n2", question, at(110.0))
    two, question = raft.count_vote(two, "n1", question, answer, at(110.0))
    assert question is not None  # this question is lost on its way to n1
    for now in (110.1, 110.2):
        leader, one = ask_leader(leader, one, now)  # n0 is back
    assert one.lease == 110.1 + 7.5 + GRACE_S
    leader, _ = raft.answer_poll(leader, "n2", raft.poll(two), at(110.3))  # n2 is in a later term
    assert leader.lead is None
    assert raft.stand(leader, at(117.5))[1] is None
    leader, two = elect(leader, two, 118.2)
    assert leader.lead is not None
    assert raft.quiet_at(leader, "n1") >= one.lease + KILL_S


def test_a_leader_that_is_elected_again_has_heard_nothing() -> None:
    """What a host said in an earlier term may have followed from a proposal that was rolled back since."""
    leader, one, two = (agent(name) for name in ("n0", "n1", "n2"))
    for now in (101.0, 101.5):
        leader, one = ask_leader(leader, one, now)
    assert leader.lead is not None
    assert leader.lead.followers["n1"].report is not None
    leader = raft.hear(leader, {"term": 2}, 102.0, at(102.0))
    leader, two = elect(leader, two, 120.0)
    assert leader.lead is not None
    assert [one.report for one in leader.lead.followers.values()] == [None, None]


@pytest.mark.parametrize("agreed", [True, False])
def test_a_host_is_clear_of_an_attempt_only_by_what_was_agreed_on(agreed: bool) -> None:
    leader = agent("n0", document=None)
    leader = raft.propose(leader, leader.document._replace(live=False, attempts=(attempt(2, "n1 n2"),)))
    leader, one = ask_leader(leader, agent("n1"), 200.0)
    if agreed:
        leader, one = ask_leader(leader, one, 201.0)
        leader, one = ask_leader(leader, one, 202.0)
    assert one.report == Report(2, idle=agreed)


def test_chance_keeps_candidates_apart() -> None:
    late = [agent(f"n{number}", 21) for number in (12, 13, 14)]
    assert len({voter.stand_at for voter in late}) == 1  # their places alone do not
    for voter in late:
        stood = [raft.stand(voter, at(500.0)._replace(chance=chance))[0].stand_at for chance in (0.0, 0.5, 0.99)]
        assert stood[0] + 0.9 < stood[1] < stood[2] - 0.9
