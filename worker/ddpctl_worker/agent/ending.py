"""Decides when the run is over for this host, and how it ends; sets the status while the host is cut off. Pure."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ddpctl_worker.agent import raft
from ddpctl_worker.agent.following import Step
from ddpctl_worker.agent.limits import (
    ALONE_S,
    ANSWERING_S,
    CUT_OFF_S,
    FAREWELL_S,
    KILL_NEWS_S,
    NOTIFY_ALONE_S,
    REACHABLE_S,
    TWO_ALONE_S,
)
from ddpctl_worker.agent.state import Actions, Announce, Ask, EndRun, Event, Say, State
from ddpctl_worker.machine import notes
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.run.notifying import CUT_OFF, ENDED, RESTART
from ddpctl_worker.wire.contract import FAILED, KILLED, NODE_LOST, RUNNING, STARTING


def see_end(state: State, event: Event) -> Step:
    """End the run here if all hosts have agreed on its end, or if this host has been alone for too long."""
    if state.done:
        return state, ()
    if state.stop is not None:
        return _be_killed(state, event, state.stop)
    alone = event.now - state.together
    over = state.document.over
    if over is not None and state.agreed:
        return _say_farewell(state, over, event)
    if alone > _patience(state) and (state.part is None or state.part.progress.end is not None):
        over = over or {"state": FAILED, "cause": _left_alone(state, alone, event.wall)}
        return _end(state, over["state"], over["cause"], None, event, speaks=_speaks_alone(state, event.now))
    return _say(state, event, alone)


def announce_restart(state: State) -> Step:
    """Notify the user of each new attempt, from the leader's host."""
    attempts = state.document.attempts
    last = attempts[-1]
    if not state.agreed or last.number <= state.announced:
        return state, ()
    state = state._replace(announced=last.number)
    if state.lead is None or len(attempts) < 2:
        return state, ()
    event = {"event": RESTART, "state": RUNNING, "cause": attempts[-2].cause, "attempt": last.number}
    return state, (Announce(dict(event, started=last.started)),)


def propose_end(state: State, over: Mapping[str, Any]) -> State:
    """Propose the end of the run, as the leader: a host was asked to end it."""
    if state.lead is None or state.document.over is not None:
        return state
    return raft.propose(state, state.document._replace(live=False, over=dict(over)))


def _patience(state: State) -> float:
    return TWO_ALONE_S if len(state.config.hosts) <= 2 else ALONE_S


def _be_killed(state: State, event: Event, kill: Mapping[str, Any]) -> Step:
    """End the run on this host, because a kill has reached it.

    The leader is asked to end the other parts, in case no other host was reached.
    """
    cause = outcomes.killed(state.host, str(kill.get("by") or ""), when=event.wall).cause
    if state.stop_by is None:
        state = state._replace(stop_by=event.now + KILL_NEWS_S)
        over = {"state": KILLED, "cause": cause}
        if state.lead is not None:
            return propose_end(state, over), ()
        if state.leader is not None:
            return state, (Ask((state.leader,), {"k": "over", "over": over}),)
    agreed = state.leader is None or (state.agreed and state.document.over is not None)
    assert state.stop_by is not None
    if not agreed and event.now < state.stop_by:
        return state, ()
    return _end(state, KILLED, cause, kill.get("grace"), event)


def _say_farewell(state: State, over: Mapping[str, Any], event: Event) -> Step:
    """End the run here; the leader waits until the other hosts know how the run ended."""
    since = event.now if state.over_since is None else state.over_since
    state = state._replace(over_since=since)
    lead, mark = state.lead, state.ballot.proposal.mark
    if lead is not None and event.now < since + FAREWELL_S:
        reachable = raft.reachable_hosts(state, event.now, REACHABLE_S)
        if any(lead.followers[host].knows != mark for host in reachable if host != state.host):
            return state, ()
    return _end(state, over["state"], over["cause"], None, event)


def _end(
    state: State,
    ended: str,
    cause: Optional[Mapping[str, Any]],
    grace: Optional[float],
    event: Event,
    speaks: bool = False,
) -> Step:
    speaks = speaks or state.lead is not None
    state = state._replace(done=True)
    end = EndRun(ended, cause, grace)
    if not speaks:
        return state, (end,)
    attempts = state.document.attempts
    news = {"event": ENDED, "state": ended, "cause": cause, "ended": notes.iso(event.wall)}
    return state, (end, Announce(dict(news, attempt=attempts[-1].number, started=attempts[0].started)))


def _left_alone(state: State, seconds: float, wall: float) -> Dict[str, Any]:
    own = state.part.progress.end if state.part is not None else None
    why = (own or {}).get("cause") or outcomes.cause(state.host, NODE_LOST, "the other hosts are lost", when=wall)
    text = "%s; not restarted: %s did not reach a majority of the run's %d hosts for %s; continue it with: %s"
    spell = "%d s" % seconds if seconds < 3600 else "%d h" % (seconds / 3600)
    step = "ddpctl restart %s" % state.config.job
    return dict(why, message=text % (why["message"], state.host, len(state.config.hosts), spell, step))


def _speaks_alone(state: State, now: float) -> bool:
    """Return whether this host notifies the user while there is no leader: the first host of its group does."""
    since = now - ANSWERING_S
    together = [host for host in state.config.hosts if host == state.host or state.answered.get(host, 0.0) >= since]
    return together[0] == state.host


def _say(state: State, event: Event, alone: float) -> Step:
    """Set the status to the hosts for which this host waits. After a while without a majority, notify the user."""
    if alone < CUT_OFF_S:
        note = state.lead.preparing.waits if state.lead is not None else None
        said = () if note == state.note else (Say(note),)
        return state._replace(note=note, cut_off=None, cut_off_announced=False), said
    since = event.wall - alone if state.cut_off is None else state.cut_off
    text = "since %s it does not reach a majority of the run's %d hosts, which may go on without it; it takes part "
    text = text % (notes.iso(since), len(state.config.hosts)) + "again once it does; "
    note = text + "to end the run instead: ddpctl kill %s" % state.config.job
    actions: Actions = () if note == state.note else (Say(note),)
    state = state._replace(note=note, cut_off=since)
    if alone > NOTIFY_ALONE_S and not state.cut_off_announced:
        state = state._replace(cut_off_announced=True)
        if _speaks_alone(state, event.now):
            last = state.document.last
            text += "how it stands: ddpctl status %s" % state.config.job
            why = outcomes.cause(state.host, NODE_LOST, text, when=event.wall)
            news = {"event": CUT_OFF, "state": STARTING, "cause": why, "attempt": last.number, "started": last.started}
            actions += (Announce(news),)
    return state, actions
