"""What the leading agent decides: that an attempt is over everywhere, and what follows. Pure.

Each function returns the next state, and what the leader's host does for it. Nothing is decided while the newest
document is not committed.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.agent import policy, raft
from ddpctl_worker.agent.following import Step
from ddpctl_worker.agent.headway import look
from ddpctl_worker.agent.limits import (
    AGAIN_FEW_S,
    FEW_S,
    MOST_ATTEMPTS,
    MOST_NAMED,
    NEAR_S,
    PARTNERS,
    SEARCH_S,
    STUCK_S,
)
from ddpctl_worker.agent.state import (
    CheckLinks,
    Event,
    FindPorts,
    Headway,
    Lead,
    LinksChecked,
    Log,
    PortsFound,
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
    """One look, and what follows from it."""
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
    clear = [host for host in last.hosts if _is_clear(reports[host], last)]
    state = _see_whether_stuck(state, clear, now)
    assert state.lead is not None
    silent = [host for host in last.hosts if host not in clear and _is_silent(state, host, now)]
    lost = [host for host in silent if now > raft.quiet_at(state, host)]
    if len(clear) + len(lost) == len(last.hosts):
        return _conclude(state, ends_of(last, reports, clear), event)
    if document.live and (lost or any(not _succeeded(reports[host]) for host in clear)):
        return raft.propose(state, document._replace(live=False)), ()
    if document.live and document.go < last.number:
        return _prepare(state, reports, event)
    return _with(state, headway=Headway()), ()


def _see_whether_stuck(state: State, clear: Sequence[str], now: float) -> State:
    """Hosts that answer, and whose part does not end: their lease runs out, and then they are lost."""
    lead, document = state.lead, state.document
    assert lead is not None
    stopping = None if document.live else now if lead.stopping is None else lead.stopping
    late = stopping is not None and now > stopping + STUCK_S + state.config.grace
    stuck = frozenset(host for host in document.last.hosts if late and host not in clear)
    return _with(state, stopping=stopping, withheld=stuck)


def _is_silent(state: State, host: str, now: float) -> bool:
    assert state.lead is not None
    withheld = state.lead.withheld
    return host in withheld if withheld else host not in raft.near(state, now)


def _prepare(state: State, reports: Mapping[str, Report], event: Event) -> Step:
    """Until all hosts are ready. A host that hangs is set aside, if the run can continue without it."""
    assert state.lead is not None
    document, last, now = state.document, state.document.last, event.now
    told = [reports[host] for host in last.hosts]
    if all(one.attempt == last.number and one.ready for one in told):
        return raft.propose(state, document._replace(go=last.number)), ()
    resume = _resume(document, told, state.config.rules.hosts)
    if resume is not None:
        return raft.propose(state, document._replace(resume=resume)), ()
    near = raft.near(state, now)
    headway, hang = look(state.lead.headway, last, reports, near, now, event.wall)
    state = _with(state, headway=headway)
    aside = {**document.aside, **hang}
    left = policy.choose(state.config.rules, last.hosts, [one for one in near if one not in aside])
    if not hang or len(left) < state.config.rules.least:
        return state, ()
    text = "attempt %d is called off: %s" % (last.number, "; ".join(hang.values()))
    return raft.propose(state, document._replace(live=False, aside=aside)), (Log(text),)


def _resume(document: Document, told: Sequence[Report], hosts: Sequence[str]) -> Optional[ResumePlan]:
    """What the document is to say next about the checkpoints of the newest attempt; None: it stays as it is.

    A host out of the attempt counts where every host of it gets its checkpoints.
    """
    last, resume = document.last, document.resume
    if any(one.attempt != last.number or one.reaches is None for one in told):
        return None
    if resume is None or resume.attempt != last.number:
        common = set.intersection(*(set(one.reaches or ()) for one in told))
        return ResumePlan(last.number, tuple(host for host in hosts if host in last.hosts or host in common))
    choice = told[0].choice
    return resume._replace(choice=choice) if resume.choice is None and choice is not None else None


def _conclude(state: State, ends: policy.Ends, event: Event) -> Step:
    document, last = state.document, state.document.last
    near = raft.near(state, event.now)
    step = policy.after(state.config.rules, document.attempts, ends, near, document.aside, event.wall)
    done = last._replace(ended=notes.iso(event.wall), cause=step.cause, set_aside=tuple(step.set_aside))
    fresh = document.with_last(done)._replace(live=False, aside={**document.aside, **step.unfit}, over=step.over)
    next_at = event.now + policy.pause(fresh.attempts)
    state = _with(state, withheld=frozenset(), stopping=None, ended=None, next_at=next_at, headway=Headway())
    text = "attempt %d is over: %s" % (last.number, (step.cause or {}).get("message", SUCCEEDED))
    return raft.propose(state, fresh), (Log(text),)


# --- after an attempt, and a pause


def _go_on(state: State, event: Event) -> Step:
    """See which hosts reach each other: the next attempt runs on those."""
    now, lead = event.now, state.lead
    assert lead is not None
    ended = now if lead.ended is None else lead.ended
    state = _with(state, ended=ended)
    waits = lead.next_at if lead.next_at is not None else ended + NEAR_S  # a new leader has not heard all of them yet
    if now < waits or (lead.search is not None and now < lead.search.until):
        return state, ()
    hosts = tuple(host for host in raft.near(state, now) if host in state.config.rules.hosts)
    mark = state.ballot.proposal.mark
    return _with(state, search=Search(mark, now + SEARCH_S)), (CheckLinks(hosts, mark),)


def see_links(state: State, fact: LinksChecked, event: Event) -> Step:
    """The links have been looked at: choose the hosts."""
    search = _search_of(state, fact.mark)
    if search is None:
        return state, ()
    rules, document = state.config.rules, state.document
    near = [host for host in raft.near(state, event.now) if host in rules.hosts]
    convicted = convict(near, fact.cut)
    usable = [host for host in near if host not in document.aside and host not in convicted]
    usable = policy.connected(rules, document.last.hosts, usable, fact.cut)
    return _look_for_ports(state, search._replace(usable=tuple(usable), convicted=convicted), event)


def see_ports(state: State, fact: PortsFound, event: Event) -> Step:
    """The next master has two ports, so the attempt can be proposed; or another host is the master."""
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
    over = policy.given_up(document.last.cause, policy.too_few(rules, hosts), document.last, event.wall)
    return raft.propose(state, document._replace(over=over)), ()


def _search_of(state: State, mark: Tuple[int, int]) -> Optional[Search]:
    """The search that an answer belongs to; None: it is over, or another host leads."""
    search = state.lead.search if state.lead is not None else None
    current = search is not None and search.mark == mark == state.ballot.proposal.mark
    return search if current and state.agreed and state.document.over is None else None


def convict(hosts: Sequence[str], cut: Pairs) -> Dict[str, str]:
    """Who is to blame for links that are cut, and why: a host that fails with two others. One bad link between two
    hosts convicts neither of them."""
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
    found = {host: one.report or Report(0, False) for host, one in state.lead.followers.items()}
    return {**found, state.host: state.report}


def _is_clear(report: Report, attempt: AgreedAttempt) -> bool:
    return report.attempt == attempt.number and report.clear


def _succeeded(report: Report) -> bool:
    return report.end is not None and report.end["state"] == SUCCEEDED


def ends_of(attempt: AgreedAttempt, reports: Mapping[str, Report], clear: List[str]) -> policy.Ends:
    """How each host's part of an attempt ended; None: it was not heard of any more. A host that is clear and tells no
    end had not begun when the attempt was called off: that is no loss of it."""
    return {host: (reports[host].end or _NOT_BEGUN) if host in clear else None for host in attempt.hosts}


def _without_traceback(attempt: AgreedAttempt) -> AgreedAttempt:
    """What every host is told again with each change has to stay small."""
    return attempt if attempt.cause is None else attempt._replace(cause=dict(attempt.cause, traceback=None))


def _with(state: State, **changes: object) -> State:
    assert state.lead is not None
    lead: Lead = state.lead._replace(**changes)  # type: ignore[arg-type]
    return state._replace(lead=lead)
