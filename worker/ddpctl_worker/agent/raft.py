"""The agreement between the agents of a run: leader election, committed documents and leases. Pure.

This is Raft (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014; pre-votes as in section
9.6 of Ongaro's thesis), made smaller:
- The log is a single document that is replaced as a whole.
- Followers ask the leader; the leader does not call them.
- No host joins or leaves.

Leases follow section 6.4.1 of the thesis:
- A host that has heard the leader votes for no other host within ELECTION_S.
- So a leader knows for how long there can be no other leader: until enough hosts are free again to form a majority
  without it. This time is its authority.
- The leader passes its authority on, and a host may run processes until GRACE_S after it.
- Hence a new leader waits for GRACE_S and for the time to kill; then no process runs that it does not know.

Each function takes the state and returns the next state.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.agent.limits import (
    AGAIN_S,
    AUTHORITY_S,
    CHANCE_A_HOST_S,
    CHANCE_S,
    ELECTION_S,
    GRACE_S,
    KILL_S,
    LAST_TURN_S,
    REACHABLE_POLLS,
    REACHABLE_S,
    TURN_S,
)
from ddpctl_worker.agent.state import Candidacy, Config, Event, Follower, Lead, Report, State
from ddpctl_worker.record.document import Ballot, Document, Mark, Proposal

Question = Mapping[str, Any]
Answer = Dict[str, Any]
_LONG_AGO = -1e9  # unlike NEVER, JSON can carry it


def first_state(config: Config, ballot: Ballot, now: float) -> State:
    """Return the state of an agent that has just begun. ``ballot``: from the disk."""
    state = State(config, ballot, heard=now, stand_at=now, poll_at=now, looked=now, together=now)
    announced = ballot.proposal.document.last.number
    state = state._replace(stand_at=now + ELECTION_S + _turn(state, 0.0), announced=announced)
    if ballot.term == 1 and ballot.proposal.mark == (1, 1):
        return _begin_to_lead(state, now) if ballot.voted == config.host else state._replace(leader=ballot.voted)
    return state


# --- as a follower


def poll(state: State) -> Question:
    """Return the question to the leader, or to a host that may lead."""
    mark = state.ballot.proposal.mark
    return {
        "k": "poll",
        "term": state.ballot.term,
        "stamp": state.stamp,
        "have": mark,
        "knows": state.committed,
        "report": state.report.to_json(),
    }


def hear(state: State, answer: Mapping[str, Any], asked: float, event: Event) -> State:
    """Take in the answer to a poll that was sent at ``asked``."""
    now, term = event.now, int(answer["term"])
    state = _learn(state, term, event)
    if term < state.ballot.term or state.lead is not None or answer.get("stamp") is None:
        return state  # from an earlier term, or not the leader's
    before = state.ballot.proposal.mark, state.committed, state.stamp is not None and state.stamp[0] == term
    proposal = answer.get("proposal")
    if proposal is not None:
        state = _adopt(state, Proposal.from_json(proposal))
    mark = state.ballot.proposal.mark
    state = state._replace(
        leader=str(answer["leader"]),
        heard=now,
        together=now,
        stamp=(term, float(answer["stamp"])),
        candidacy=None,
        stand_at=now + ELECTION_S + _turn(state, event.chance),
    )
    if _mark(answer["committed"]) == mark:
        state = state._replace(committed=mark)
    if _mark(answer["mark"]) == mark:  # the lease is for the attempt of this proposal
        state = state._replace(lease=max(state.lease, asked + float(answer["remaining"]) + GRACE_S))
    if (mark, state.committed, True) != before:  # tell the leader at once that this host has the proposal
        state = state._replace(poll_at=now)
    return state


# --- answers to another host


def answer_poll(state: State, host: str, question: Question, event: Event) -> Tuple[State, Answer]:
    """Answer a host that takes this host for the leader, or looks for the leader."""
    now, state = event.now, _learn(state, int(question["term"]), event)
    lead, term = state.lead, state.ballot.term
    if lead is None:
        return state, {"term": term}  # without the leader's name: it may be lost by now
    follower = lead.followers.get(host, Follower())
    stamp = question["stamp"]
    if stamp is not None and int(stamp[0]) == term:
        follower = follower._replace(stamp=max(follower.stamp, float(stamp[1])))
    report, knows = Report.from_json(question["report"]), _mark(question["knows"])
    follower = follower._replace(asked=now, have=_mark(question["have"]), knows=knows, report=report)
    state = _count(_with_follower(state, host, follower))
    until = authority(state, now)
    withheld = host in lead.withheld
    if not withheld:
        state = _with_follower(state, host, follower._replace(granted=max(follower.granted, until)))
    state = state._replace(promised=max(state.promised, until))
    proposal = state.ballot.proposal
    return state, {
        "term": term,
        "leader": state.host,
        "stamp": now,
        "remaining": _LONG_AGO if withheld else max(_LONG_AGO, until - now),
        "mark": proposal.mark,
        "proposal": None if follower.have == proposal.mark else proposal.to_json(),
        "committed": state.committed,
    }


def answer_vote(state: State, host: str, question: Question, event: Event) -> Tuple[State, Answer]:
    """Answer a host that asks for votes, or whether it would get them."""
    now, term = event.now, int(question["term"])
    free_at = max(state.heard + ELECTION_S, state.promised) if state.lead is None else authority(state, now)
    if now < free_at:
        return state, {"term": 0, "granted": False}
    if term < state.ballot.term or _mark(question["have"]) < state.ballot.proposal.mark:
        return state, {"term": state.ballot.term, "granted": False}
    if question["k"] == "pre":
        return state, {"term": state.ballot.term, "granted": term > state.ballot.term}
    state = _learn(state, term, event)
    if state.lead is not None or state.ballot.voted not in (None, host):
        return state, {"term": term, "granted": False}
    stand_at = now + ELECTION_S + _turn(state, event.chance)
    return state._replace(ballot=state.ballot._replace(voted=host), stand_at=stand_at), {"term": term, "granted": True}


# --- as a candidate


def stand(state: State, event: Event) -> Tuple[State, Optional[Question]]:
    """Return the question to every other host, if it is time to stand for election.

    The first question is a pre-vote, so that a host that is cut off does not disturb the other hosts.
    """
    if state.lead is not None or event.now < state.stand_at:
        return state, None
    state = state._replace(stand_at=event.now + AGAIN_S + _turn(state, event.chance))
    return _ask_for_votes(state, "pre", event.now)


def count_vote(
    state: State, host: str, question: Question, answer: Mapping[str, Any], event: Event
) -> Tuple[State, Optional[Question]]:
    """Count an answer to ``question``. Return the next question to all hosts, if there is one."""
    state = _learn(state, int(answer["term"]), event)
    standing = state.candidacy
    if standing is None or (standing.kind, standing.term) != (question["k"], int(question["term"])):
        return state, None
    if not answer.get("granted"):
        return state, None
    standing = standing._replace(votes=standing.votes | {host})
    return _see_votes(state._replace(candidacy=standing), event.now)


def _ask_for_votes(state: State, kind: str, now: float) -> Tuple[State, Optional[Question]]:
    term = state.ballot.term + 1
    if kind == "vote":
        ballot = Ballot(term, state.host, state.ballot.proposal)
        state = state._replace(ballot=ballot, leader=None)
    state = state._replace(candidacy=Candidacy(kind, term, frozenset([state.host])))
    state, question = _see_votes(state, now)
    asks = state.candidacy is not None and question is None
    return state, {"k": kind, "term": term, "have": state.ballot.proposal.mark} if asks else question


def _see_votes(state: State, now: float) -> Tuple[State, Optional[Question]]:
    """Take the next step if a majority agrees: the vote after a pre-vote, the lead after a vote."""
    standing = state.candidacy
    assert standing is not None
    if len(standing.votes) < state.config.majority:
        return state, None
    if standing.kind == "pre":
        return _ask_for_votes(state, "vote", now)
    return _begin_to_lead(state, now), None


def _begin_to_lead(state: State, now: float) -> State:
    lead = Lead(now, {host: Follower() for host in state.config.others})
    state = state._replace(candidacy=None, leader=state.host, lead=lead)
    if state.ballot.proposal.term != state.ballot.term:
        return propose(state, state.document)
    return _count(state)


# --- as the leader


def propose(state: State, document: Document) -> State:
    """Propose a new document. It counts once it is committed."""
    assert state.lead is not None
    ballot = state.ballot
    return _count(_adopt(state, Proposal(ballot.term, ballot.proposal.version + 1, document)))


def authority(state: State, now: float) -> float:
    """Return the time until which there can be no other leader."""
    assert state.lead is not None
    hosts, followers = state.config.hosts, state.lead.followers
    needed = len(hosts) - state.config.majority + 1  # without these hosts there is no other majority
    stamps = [now, *(follower.stamp for follower in followers.values())]
    return sorted(stamps, reverse=True)[needed - 1] + AUTHORITY_S


def renew_own_lease(state: State, now: float) -> State:
    """Renew the leader's own lease."""
    lead = state.lead
    if lead is None or state.host in lead.withheld:
        return state
    until = max(state.promised, authority(state, now))
    lease = max(state.lease, until + GRACE_S)
    return state._replace(promised=until, lead=lead._replace(granted=until), lease=lease)


def quiet_at(state: State, host: str) -> float:
    """Return the time at which no process runs on ``host`` any more, if it is lost or its lease is withheld."""
    lead = state.lead
    assert lead is not None
    granted = lead.granted if host == state.host else lead.followers[host].granted
    return max(lead.since, granted) + GRACE_S + KILL_S


def reachable_hosts(state: State, now: float, seconds: float = REACHABLE_S) -> List[str]:
    """Return the hosts that have asked the leader lately, and the leader itself."""
    assert state.lead is not None
    since = now - max(seconds, REACHABLE_POLLS * state.config.poll_every)
    followers = state.lead.followers
    return [host for host in state.config.hosts if host == state.host or followers[host].asked >= since]


def _count(state: State) -> State:
    """Commit the newest proposal if a majority has it."""
    lead, proposal = state.lead, state.ballot.proposal
    if lead is None or proposal.term != state.ballot.term:
        return state
    have = 1 + sum(follower.have == proposal.mark for follower in lead.followers.values())
    return state._replace(committed=proposal.mark) if have >= state.config.majority else state


def _with_follower(state: State, host: str, follower: Follower) -> State:
    assert state.lead is not None
    return state._replace(lead=state.lead._replace(followers={**state.lead.followers, host: follower}))


# --- always


def _adopt(state: State, proposal: Proposal) -> State:
    if proposal.mark <= state.ballot.proposal.mark:
        return state
    return state._replace(ballot=state.ballot._replace(proposal=proposal))


def _learn(state: State, term: int, event: Event) -> State:
    """Step down if another host is in a later term."""
    if term <= state.ballot.term:
        return state
    if state.lead is not None:  # all leases of this term must run out before this host can lead again
        state = state._replace(stand_at=max(state.stand_at, state.promised + _turn(state, event.chance)))
    ballot = Ballot(term, None, state.ballot.proposal)
    return state._replace(ballot=ballot, leader=None, candidacy=None, lead=None)


def _turn(state: State, chance: float) -> float:
    """Return the delay before this host stands for election.

    The first living host of the list should lead, so the other hosts wait for it. Chance separates any two hosts.
    """
    hosts = state.config.hosts
    spread = max(CHANCE_S, CHANCE_A_HOST_S * len(hosts))
    return min(LAST_TURN_S, TURN_S * hosts.index(state.host)) + spread * chance


def _mark(pair: Any) -> Mark:
    return int(pair[0]), int(pair[1])
