"""Takes the decisions of an agent: an event goes in, the next state and the actions come out.

``step`` is pure: no thread, no clock, no disk, no network. agent.py feeds it events and carries out the actions. The
simulator of the tests drives the same function.

A step happens as a whole or not at all. If ``Save`` fails, the old state stays, and no action of the step is carried
out. The event comes again: a poll is repeated, and the disk is read again.
"""

from __future__ import annotations

from typing import Tuple

from ddpctl_worker.agent import raft
from ddpctl_worker.agent.ending import announce_restart, propose_end, see_end
from ddpctl_worker.agent.following import Step, follow, renew_lease
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

ANSWERED_HERE = ("poll", "pre", "vote", "over", "hurry")  # questions about the agreement


def begin(config: Config, ballot: Ballot, now: float) -> State:
    """Return the state of an agent that has just started. ``ballot``: from the disk."""
    return raft.first_state(config, ballot, now)


def step(state: State, event: Event) -> Tuple[State, Actions]:
    """Return the next state and the actions that follow from ``event``."""
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
    state, more = renew_lease(state)
    actions += more
    actions += _hurry_followers(before, state)
    return state, _save_first(before, state, actions)


def wakes_at(state: State) -> float:
    """Return the latest time of the next ``Tick``."""
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
    part, own = state.part, fact.progress
    if part is None or own is None or own.number != part.number:
        return state
    own = own._replace(restored=own.restored or part.progress.restored)
    news = own._replace(moved=part.progress.moved) != part.progress
    state = state._replace(part=part._replace(progress=own))
    return state._replace(poll_at=now) if news else state  # the leader waits for this report


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
        return propose_end(state, fact.question["over"]), (Reply({}),)
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
    """Return whether the disk works: without it an agent neither sees its ranks end, nor stores proposals."""
    return now - state.looked < STILL_S


def _renew_own_lease(state: State, now: float) -> State:
    return raft.renew_own_lease(state, now) if _can_lead(state, now) else state


def _see_majority(state: State, now: float) -> State:
    """Note, as the leader, that a majority asks this host. A follower notes answers of the leader (raft.hear)."""
    if state.lead is None or not state.agreed:
        return state
    if len(raft.reachable_hosts(state, now, TOGETHER_S)) < state.config.majority:
        return state
    return state._replace(together=now)


def _talk(state: State, event: Event) -> Step:
    """Ask the leader, look for a leader, or stand for election."""
    now, config = event.now, state.config
    if state.lead is None and now - state.heard > LOST_S:
        state = state._replace(leader=None)
    actions: Actions = ()
    if now >= state.poll_at:
        patient = now - state.together > PATIENT_S
        state = state._replace(poll_at=now + (PATIENT_POLL_S if patient else config.poll_every))
        hosts = _hosts_to_ask(state, now)
        actions = (Ask(hosts, raft.poll(state)),) if hosts else ()
    state, question = raft.stand(state, event)
    return state, actions if question is None else (*actions, Ask(config.others, question))


def _hosts_to_ask(state: State, now: float) -> Tuple[str, ...]:
    if state.lead is not None:  # once its authority has run out, another host may lead
        return state.config.others if raft.authority(state, now) < now else ()
    return state.config.others if state.leader is None else (state.leader,)


def _hurry_followers(before: State, state: State) -> Actions:
    """Have the followers ask at once, if the leader has news."""
    if state.lead is None or state.done:
        return ()
    log: Actions = ()
    if before.lead is None:
        log = (Log("agent: this host leads the run now (term %d)" % state.ballot.term),)
    elif state.ballot is before.ballot and state.committed == before.committed:
        return ()
    return (*log, Ask(state.config.others, {"k": "hurry"}))


def _save_first(before: State, state: State, actions: Actions) -> Actions:
    return actions if state.ballot is before.ballot else (Save(state.ballot), *actions)
