"""Decides the next step of a host's part of the newest attempt. Pure.

The steps of a part:
1. Collect: every host hashes its checkpoints.
2. Choose: the first host of the attempt chooses for all hosts.
3. RestorePart: every host fetches its share of the choice.
4. StartPart: the ranks start.

The choice is part of the document, so all hosts act on the same choice, and no host decides from memory. The first
attempt of a run starts at once: ddpctl has prepared it.
"""

from __future__ import annotations

from typing import Tuple

from ddpctl_worker.agent.limits import CALL_OFF_S, ROOM_S
from ddpctl_worker.agent.state import (
    CHOOSE,
    COLLECT,
    RESTORE,
    START,
    Actions,
    CallOff,
    Choose,
    Collect,
    Drop,
    OwnPart,
    PartProgress,
    Renew,
    RestorePart,
    StartPart,
    State,
)
from ddpctl_worker.record.document import Document

Step = Tuple[State, Actions]


def follow(state: State, now: float) -> Step:
    """Take the next step of this host's part that the newest document asks for."""
    document = state.document
    if not (state.agreed or document.last.number == state.config.first) or state.done or state.stop is not None:
        return state, ()
    state, actions = _see_whether_over(state, now)
    if document.live and state.host in document.last.hosts:
        state, more = _go_on(state, now)
        actions += more
    return state, actions


def renew_lease(state: State) -> Step:
    """Pass the lease on to the ranks, even while they are being stopped: the leader waits for their end."""
    part, last = state.part, state.document.last
    if part is None or not part.runs or part.number != last.number or last.ended is not None:
        return state, ()
    if state.lease <= state.renewed:
        return state, ()
    return state._replace(renewed=state.lease), (Renew(part.number, state.lease),)


def _see_whether_over(state: State, now: float) -> Step:
    """End a part whose attempt is over elsewhere, or drop it if it has not begun."""
    part, document = state.part, state.document
    if part is None or part.progress.end is not None:
        return state, ()
    wanted = document.live and part.number == document.last.number
    if part.ordered < START:
        return (state, ()) if wanted else (state._replace(part=None), (Drop(part.number),))
    if wanted:
        return state._replace(part=part._replace(call_off_at=None)), ()
    if part.call_off_at is None:
        return state._replace(part=part._replace(call_off_at=now + CALL_OFF_S)), ()
    return state, (CallOff(part.number),) if now > part.call_off_at else ()


def _go_on(state: State, now: float) -> Step:
    """Order the next step of this host's part of the newest attempt."""
    part, document = state.part, state.document
    number, hosts = document.last.number, document.last.hosts
    if part is not None and part.number < number and part.progress.end is None:
        return state, ()  # its end comes first
    if part is None or part.number < number:
        prepared = number == state.config.first or not state.config.resumes
        fresh = OwnPart(number, COLLECT, PartProgress(number, restored=prepared))
        state = state._replace(part=fresh)
        return _start(state, fresh, document, now) if prepared else (state, (Collect(number, hosts),))
    if part.progress.end is not None or part.ordered == START:
        return state, ()
    resume = document.resume
    if part.progress.restored:
        return _start(state, part, document, now)
    if resume is None or resume.attempt != number or part.progress.reaches is None:
        return state, ()
    if resume.choice is not None and part.ordered < RESTORE:
        order = RestorePart(number, hosts, resume.choice)
        return state._replace(part=part._replace(ordered=RESTORE)), (order,)
    if state.host == hosts[0] and part.ordered < CHOOSE:
        return state._replace(part=part._replace(ordered=CHOOSE)), (Choose(number, hosts, resume.sources),)
    return state, ()


def _start(state: State, part: OwnPart, document: Document, now: float) -> Step:
    if document.go < part.number or state.lease < now + ROOM_S:
        return state, ()
    started = part._replace(ordered=START)
    return state._replace(part=started, renewed=state.lease), (StartPart(part.number, state.lease),)
