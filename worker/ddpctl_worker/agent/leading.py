"""Decides as the leader: when an attempt has ended on every host, and where the next attempt runs. Pure.

Each function returns the next state and the actions of the leader's host. The leader decides nothing while its newest
document is not committed.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.agent import policy, raft
from ddpctl_worker.agent.following import Step
from ddpctl_worker.agent.limits import (
    AGAIN_FEW_S,
    FEW_S,
    MOST_ATTEMPTS,
    MOST_NAMED,
    PARTNERS,
    REACHABLE_S,
    SEARCH_S,
    STUCK_S,
)
from ddpctl_worker.agent.preparing import find_hanging
from ddpctl_worker.agent.state import (
    CheckLinks,
    Event,
    FindPorts,
    Lead,
    LinksChecked,
    Log,
    PortsFound,
    Preparing,
    Report,
    Search,
    State,
)
from ddpctl_worker.machine import notes
from ddpctl_worker.record.document import AgreedAttempt, Document, ResumePlan
from ddpctl_worker.wire.contract import FAILED, SUCCEEDED

Pairs = AbstractSet[FrozenSet[str]]
_NOT_BEGUN = {"state": FAILED, "cause": None, "ended": None, "left": 0}


def lead(state: State, event: Event) -> Step:
    """Watch the running attempt, or prepare the next one."""
    if state.lead is None or state.done or not state.agreed or state.document.over is not None:
        return state, ()
    if state.document.last.ended is not None:
        return _go_on(state, event)
    return _watch(state, event)


# --- while an attempt runs, or is being ended


def _watch(state: State, event: Event) -> Step:
    assert state.lead is not None
    document, now = state.document, event.now
    last, reports = document.last, _reports(state)
    idle = [host for host in last.hosts if _is_idle(reports[host], last)]
    state = _see_whether_stuck(state, idle, now)
    assert state.lead is not None
    silent = [host for host in last.hosts if host not in idle and _is_silent(state, host, now)]
    lost = [host for host in silent if now > raft.quiet_at(state, host)]
    if len(idle) + len(lost) == len(last.hosts):
        return _conclude(state, ends_of(last, reports, idle), event)
    if document.live and (lost or any(not _succeeded(reports[host]) for host in idle)):
        return raft.propose(state, document._replace(live=False)), ()
    if document.live and document.go < last.number:
        return _prepare(state, reports, event)
    return _with(state, preparing=Preparing()), ()


def _see_whether_stuck(state: State, idle: Sequence[str], now: float) -> State:
    """Withhold the lease of hosts that answer but whose part does not end; they are lost once the lease is over."""
    lead, document = state.lead, state.document
    assert lead is not None
    stopping = None if document.live else now if lead.stopping is None else lead.stopping
    late = stopping is not None and now > stopping + STUCK_S + state.config.grace
    stuck = frozenset(host for host in document.last.hosts if late and host not in idle)
    return _with(state, stopping=stopping, withheld=stuck)


def _is_silent(state: State, host: str, now: float) -> bool:
    assert state.lead is not None
    withheld = state.lead.withheld
    return host in withheld if withheld else host not in raft.reachable_hosts(state, now)


def _prepare(state: State, reports: Mapping[str, Report], event: Event) -> Step:
    """Release the ranks once all hosts are ready. Exclude a host that hangs, if the run can continue without it."""
    assert state.lead is not None
    document, last, now = state.document, state.document.last, event.now
    own = [reports[host] for host in last.hosts]
    if all(report.attempt == last.number and report.ready for report in own):
        return raft.propose(state, document._replace(go=last.number)), ()
    resume = _resume(document, own, state.config.rules.hosts)
    if resume is not None:
        return raft.propose(state, document._replace(resume=resume)), ()
    reachable = raft.reachable_hosts(state, now)
    preparing, hang = find_hanging(state.lead.preparing, last, reports, reachable, now, event.wall)
    state = _with(state, preparing=preparing)
    excluded = {**document.set_aside, **hang}
    left = policy.choose(state.config.rules, last.hosts, [host for host in reachable if host not in excluded])
    if not hang or len(left) < state.config.rules.least:
        return state, ()
    text = "attempt %d is called off: %s" % (last.number, "; ".join(hang.values()))
    return raft.propose(state, document._replace(live=False, set_aside=excluded)), (Log(text),)


def _resume(document: Document, reports: Sequence[Report], hosts: Sequence[str]) -> Optional[ResumePlan]:
    """Return the new plan for the checkpoints of the newest attempt; ``None`` if the plan stays as it is.

    A host outside the attempt is a source if every host of the attempt can fetch its checkpoints.
    """
    last, resume = document.last, document.resume
    if any(report.attempt != last.number or report.reaches is None for report in reports):
        return None
    if resume is None or resume.attempt != last.number:
        common = set.intersection(*(set(report.reaches or ()) for report in reports))
        return ResumePlan(last.number, tuple(host for host in hosts if host in last.hosts or host in common))
    choice = reports[0].choice
    return resume._replace(choice=choice) if resume.choice is None and choice is not None else None


def _conclude(state: State, ends: policy.Ends, event: Event) -> Step:
    document, last = state.document, state.document.last
    reachable = raft.reachable_hosts(state, event.now)
    step = policy.choose_next_step(
        state.config.rules, document.attempts, ends, reachable, document.set_aside, event.wall
    )
    done = last._replace(ended=notes.iso(event.wall), cause=step.cause, set_aside=tuple(step.set_aside))
    fresh = document.with_last(done)._replace(
        live=False, set_aside={**document.set_aside, **step.unfit}, over=step.over
    )
    next_at = event.now + policy.pause(fresh.attempts)
    state = _with(state, withheld=frozenset(), stopping=None, ended=None, next_at=next_at, preparing=Preparing())
    text = "attempt %d is over: %s" % (last.number, (step.cause or {}).get("message", SUCCEEDED))
    return raft.propose(state, fresh), (Log(text),)


# --- after an attempt, and a pause


def _go_on(state: State, event: Event) -> Step:
    """Have the links between the hosts checked: the next attempt runs on hosts that reach each other."""
    now, lead = event.now, state.lead
    assert lead is not None
    ended = now if lead.ended is None else lead.ended
    state = _with(state, ended=ended)
    waits = (
        lead.next_at if lead.next_at is not None else ended + REACHABLE_S
    )  # not all hosts have asked a new leader yet
    if now < waits or (lead.search is not None and now < lead.search.until):
        return state, ()
    hosts = tuple(host for host in raft.reachable_hosts(state, now) if host in state.config.rules.hosts)
    mark = state.ballot.proposal.mark
    return _with(state, search=Search(mark, now + SEARCH_S)), (CheckLinks(hosts, mark),)


def see_links(state: State, fact: LinksChecked, event: Event) -> Step:
    """Choose the hosts of the next attempt, once the links have been checked."""
    search = _search_of(state, fact.mark)
    if search is None:
        return state, ()
    rules, document = state.config.rules, state.document
    reachable = [host for host in raft.reachable_hosts(state, event.now) if host in rules.hosts]
    convicted = convict(reachable, fact.cut)
    usable = [host for host in reachable if host not in document.set_aside and host not in convicted]
    usable = policy.connected_hosts(rules, document.last.hosts, usable, fact.cut)
    return _look_for_ports(state, search._replace(usable=tuple(usable), convicted=convicted), event)


def see_ports(state: State, fact: PortsFound, event: Event) -> Step:
    """Propose the next attempt if the next master has two ports; otherwise choose hosts without it."""
    search = _search_of(state, fact.mark)
    if search is None or fact.host not in search.hosts[:1]:
        return state, ()
    if fact.ports is None:
        text = "%s gives no ports for the next attempt, which does without it" % fact.host
        left = tuple(host for host in search.usable if host != fact.host)
        state, actions = _look_for_ports(state, search._replace(usable=left), event)
        return state, (Log(text), *actions)
    document, last = state.document, state.document.last
    also = tuple({"host": host, "why": why} for host, why in search.convicted.items())
    done = last._replace(set_aside=(*last.set_aside, *also))
    fresh = AgreedAttempt(last.number + 1, search.hosts, *fact.ports, started=notes.iso(event.wall))
    attempts = (*map(_without_traceback, document.attempts[:-1]), done, fresh)[-MOST_ATTEMPTS:]
    state = _with(state, search=None, ended=None, next_at=None)
    return raft.propose(state, document._replace(attempts=attempts, live=True, resume=None)), ()


def _look_for_ports(state: State, search: Search, event: Event) -> Step:
    document, rules = state.document, state.config.rules
    assert state.lead is not None
    hosts = tuple(policy.choose(rules, document.last.hosts, search.usable))
    if len(hosts) >= rules.least:
        ask = FindPorts(hosts[0], document.last.master_port, search.mark)
        return _with(state, search=search._replace(hosts=hosts)), (ask,)
    state = _with(state, search=None, next_at=event.now + AGAIN_FEW_S)
    assert state.lead is not None
    if state.lead.ended is None or event.now - state.lead.ended <= FEW_S:
        return state, ()
    over = policy.find_given_up(document.last.cause, policy.too_few(rules, hosts), document.last, event.wall)
    return raft.propose(state, document._replace(over=over)), ()


def _search_of(state: State, mark: Tuple[int, int]) -> Optional[Search]:
    """Return the search that an answer belongs to; ``None`` if it is over or another host leads."""
    search = state.lead.search if state.lead is not None else None
    current = search is not None and search.mark == mark == state.ballot.proposal.mark
    return search if current and state.agreed and state.document.over is None else None


def convict(hosts: Sequence[str], cut: Pairs) -> Dict[str, str]:
    """Return the hosts that are at fault for cut links, and why: hosts with cut links to several other hosts.

    A single cut link between two hosts convicts neither host.
    """
    found: Dict[str, Tuple[int, str]] = {}
    for host in hosts:
        partners = sorted(other for link in cut if host in link for other in link if other != host)
        if len(partners) >= PARTNERS:
            more = " and %d others" % (len(partners) - MOST_NAMED) if len(partners) > MOST_NAMED else ""
            why = "no connection between it and %s%s" % (", ".join(partners[:MOST_NAMED]), more)
            found[host] = (len(partners), why)
    worst = max([count for count, _ in found.values()] or [0])
    return {host: why for host, (count, why) in found.items() if count == worst}


# --- what the hosts report


def _reports(state: State) -> Dict[str, Report]:
    assert state.lead is not None
    found = {host: follower.report or Report(0, False) for host, follower in state.lead.followers.items()}
    return {**found, state.host: state.report}


def _is_idle(report: Report, attempt: AgreedAttempt) -> bool:
    return report.attempt == attempt.number and report.idle


def _succeeded(report: Report) -> bool:
    return report.end is not None and report.end["state"] == SUCCEEDED


def ends_of(attempt: AgreedAttempt, reports: Mapping[str, Report], idle: List[str]) -> policy.Ends:
    """Return how each host's part of an attempt ended; ``None`` for a host that has not reported again.

    An idle host without an end had not begun when the attempt was called off, so it is not lost.
    """
    return {host: (reports[host].end or _NOT_BEGUN) if host in idle else None for host in attempt.hosts}


def _without_traceback(attempt: AgreedAttempt) -> AgreedAttempt:
    """Drop the traceback of an older attempt: every host gets the whole document with each change."""
    return attempt if attempt.cause is None else attempt._replace(cause=dict(attempt.cause, traceback=None))


def _with(state: State, **changes: object) -> State:
    assert state.lead is not None
    lead: Lead = state.lead._replace(**changes)  # type: ignore[arg-type]
    return state._replace(lead=lead)
