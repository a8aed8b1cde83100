"""The one place where an agent decides: what happens to it goes in, the next state and what is to be done come out.

``step`` is pure: no thread, no clock, no disk, no network. agent.py carries events in and does what comes out, and the
simulator of the tests drives the very same function.

A step happens as a whole or not at all. Where ``Save`` fails, the state before it stays, and nothing else of the step
is done; what has happened is told again (a poll is repeated, the disk is looked at again).
"""

from __future__ import annotations

from typing import Tuple

from ddpctl_worker.agent import raft
from ddpctl_worker.agent.ending import announce_restart, see_end, take_word
from ddpctl_worker.agent.following import Step, follow, renew
from ddpctl_worker.agent.leading import lead, see_links, see_ports
from ddpctl_worker.agent.limits import LOST_S, PATIENT_POLL_S, PATIENT_S, STILL_S, TOGETHER_S
from ddpctl_worker.agent.state import (
    Actions,
    Ask,
    Config,
    Event,
    LinksChecked,
    Log,
    Looked,
    PeerAnswered,
    PeerAsked,
    PortsFound,
    Reply,
    Save,
    State,
)
from ddpctl_worker.record.document import Ballot

ANSWERED_HERE = ("poll", "pre", "vote", "over", "hurry")  # the questions that concern the agreement


def begin(config: Config, ballot: Ballot, now: float) -> State:
    """The state of an agent that has just been started; ``ballot`` is on disk."""
    return raft.first_state(config, ballot, now)


def step(state: State, event: Event) -> Tuple[State, Actions]:
    """What follows from ``event``."""
    if state.done:
        return state, (Reply(None),) if isinstance(event.fact, PeerAsked) else ()
    before = state
    state, actions = _take_in(state, event)
    state, more = lead(state, event)
    actions += more
    state, more = follow(state, event.now)
    actions += more
    state, more = announce_restart(state)
    actions += more
    state, more = see_end(_see_majority(state, event.now), event)
    actions += more
    state, more = _talk(_renew_own_lease(state, event.now), event)
    actions += more
    state, more = renew(state)
    actions += more
    actions += _tell_others(before, state)
    return state, _saved_first(before, state, actions)


def wakes_at(state: State) -> float:
    """When a ``Tick`` is due, at the latest."""
    return state.poll_at if state.lead is not None else min(state.poll_at, state.stand_at)


def _take_in(state: State, event: Event) -> Step:
    fact = event.fact
    if isinstance(fact, Looked):
        return _look(state, fact, event.now), ()
    if isinstance(fact, PeerAsked):
        return _answer(state, fact, event)
    if isinstance(fact, PeerAnswered):
        return _hear(state, fact, event)
    if isinstance(fact, LinksChecked):
        return see_links(state, fact, event)
    if isinstance(fact, PortsFound):
        return see_ports(state, fact, event)
    return state, ()


def _look(state: State, fact: Looked, now: float) -> State:
    state = state._replace(looked=now, stop=fact.stop if state.stop is None else state.stop)
    part, told = state.part, fact.progress
    if part is None or told is None or told.number != part.number:
        return state
    told = told._replace(restored=told.restored or part.progress.restored)
    news = told._replace(moved=part.progress.moved) != part.progress
    state = state._replace(part=part._replace(progress=told))
    return state._replace(poll_at=now) if news else state  # the leader waits for it


def _answer(state: State, fact: PeerAsked, event: Event) -> Step:
    kind = fact.question["k"]
    if kind == "poll":
        if state.lead is not None and not _can_lead(state, event.now):
            return state, (Reply(None),)
        state, answer = raft.answer_poll(state, fact.host, fact.question, event)
        return state, (Reply(answer),)
    if kind in ("pre", "vote"):
        state, answer = raft.answer_vote(state, fact.host, fact.question, event)
        return state, (Reply(answer),)
    if kind == "over":
        return take_word(state, fact.question["over"]), (Reply({}),)
    return state._replace(poll_at=event.now), (Reply({}),)


def _hear(state: State, fact: PeerAnswered, event: Event) -> Step:
    state = state._replace(answered={**state.answered, fact.host: event.now})
    kind = fact.question["k"]
    if kind == "poll":
        return raft.hear(state, fact.answer, fact.asked, event), ()
    if kind not in ("pre", "vote"):
        return state, ()
    state, question = raft.count_vote(state, fact.host, fact.question, fact.answer, event)
    return state, () if question is None else (Ask(state.config.others, question),)


def _can_lead(state: State, now: float) -> bool:
    """An agent whose disk hangs neither sees its own ranks end, nor can it save what is agreed on."""
    return now - state.looked < STILL_S


def _renew_own_lease(state: State, now: float) -> State:
    return raft.renew_own_lease(state, now) if _can_lead(state, now) else state


def _see_majority(state: State, now: float) -> State:
    """A leader is part of a majority while that asks it; a follower while the leader answers (raft.hear)."""
    if state.lead is None or not state.agreed:
        return state
    if len(raft.near(state, now, TOGETHER_S)) < state.config.majority:
        return state
    return state._replace(together=now)


def _talk(state: State, event: Event) -> Step:
    """Ask the leader, look for one, or stand for election."""
    now, config = event.now, state.config
    if state.lead is None and now - state.heard > LOST_S:
        state = state._replace(leader=None)
    actions: Actions = ()
    if now >= state.poll_at:
        patient = now - state.together > PATIENT_S
        state = state._replace(poll_at=now + (PATIENT_POLL_S if patient else config.poll_every))
        hosts = _whom_to_ask(state, now)
        actions = (Ask(hosts, raft.poll(state)),) if hosts else ()
    state, question = raft.stand(state, event)
    return state, actions if question is None else (*actions, Ask(config.others, question))


def _whom_to_ask(state: State, now: float) -> Tuple[str, ...]:
    if state.lead is not None:  # another host may lead by now
        return state.config.others if raft.authority(state, now) < now else ()
    return state.config.others if state.leader is None else (state.leader,)


def _tell_others(before: State, state: State) -> Actions:
    """The leader has them ask at once when there is something new."""
    if state.lead is None or state.done:
        return ()
    leads: Actions = ()
    if before.lead is None:
        leads = (Log("agent: this host leads the run now (term %d)" % state.ballot.term),)
    elif state.ballot is before.ballot and state.committed == before.committed:
        return ()
    return (*leads, Ask(state.config.others, {"k": "hurry"}))


def _saved_first(before: State, state: State, actions: Actions) -> Actions:
    return actions if state.ballot is before.ballot else (Save(state.ballot), *actions)
