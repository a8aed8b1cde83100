"""What follows an attempt: the end of the run, or another attempt, and on which hosts. Pure.

The evidence first: which host is set aside is decided by what was seen of that host. An exception of the script, a lack
of memory, a full disk or a kill say nothing against a host.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import datetime
from typing import Any, Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker import outcome as outcomes
from ddpctl_worker.agent.document import AgreedAttempt
from ddpctl_worker.agent.limits import FIRST_PAUSE_S, MOST_PAUSE_S, STEADY_S
from ddpctl_worker.contract import (
    EXITED,
    FAILED,
    KILLED,
    KILLED_BY_USER,
    LINK_LOST,
    NODE_LOST,
    RENDEZVOUS_TIMEOUT,
    SPAWN_FAILED,
    SUCCEEDED,
)

# What a GPU that is broken makes drivers and libraries say; NVIDIA's Xid 48, 63, 64, 74, 79, 94, 95 in words.
_BROKEN_GPU = re.compile(
    r"uncorrectable ECC|GPU (?:has fallen off the bus|is lost)|Unable to determine the device handle for GPU|"
    r"CUDA error: hardware stack error|row remapp\w+ fail",
    re.IGNORECASE,
)
_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.M)
Ends = Mapping[str, Optional[Mapping[str, Any]]]  # the exit record of each host; None: it was not heard of any more


class Rules(NamedTuple):
    """What a job allows; ``hosts`` in the order of the list, spares included."""

    hosts: Sequence[str]
    nodes: int  # of an attempt
    least: int  # as few as it may run on
    restarts: int


class NextStep(NamedTuple):
    """What comes next: ``over`` (a state and its cause), or another attempt, whose hosts ``choose`` names later."""

    cause: Optional[Dict[str, Any]]  # of the attempt's end
    set_aside: List[Dict[str, str]]  # hosts that take no part in the next attempt, and why
    unfit: Dict[str, str]  # hosts among these that take no part in any later attempt, even if they answer
    over: Optional[Dict[str, Any]] = None


def after(
    rules: Rules,
    attempts: Sequence[AgreedAttempt],
    ends: Ends,
    near: Sequence[str],
    aside: Mapping[str, str],
    wall: float,
) -> NextStep:
    """``attempts``: all of them, the last one being over. ``ends``: the exit record of each of its hosts, None for a
    host that was not heard of any more. ``near``: hosts that answer now. ``aside``: hosts that must not be used, and
    why; a host of the last attempt among them hung, so that the attempt could not begin. ``wall``: now (Unix
    seconds)."""
    last = attempts[-1]
    hung = {host: aside[host] for host in last.hosts if host in aside}  # the attempt was called off for these
    ends = {**ends, **{host: _hung(host, why, wall) for host, why in hung.items()}}
    damaged = broken(ends)
    cause = cause_of(ends, wall)
    lost = {host: "it was not heard of any more" for host, end in ends.items() if end is None}
    stuck = {host: "it answers, and its part of the attempt does not end" for host in lost if host in near}
    unfit = {**stuck, **damaged, **hung}
    states = {str(end["state"]) for end in ends.values() if end is not None}
    if states == {SUCCEEDED} and not lost:
        return NextStep(None, [], {}, {"state": SUCCEEDED, "cause": None})
    if cause is not None and cause["reason"] == KILLED_BY_USER:
        return NextStep(cause, [], {}, {"state": KILLED, "cause": cause})
    set_aside = [{"host": host, "why": why} for host, why in {**lost, **unfit}.items()]
    why_not = None if hung else _why_not(rules, attempts, cause)
    over = given_up(cause, why_not, last, wall) if why_not else None
    return NextStep(cause, set_aside, unfit, over)


def given_up(cause: Optional[Mapping[str, Any]], why: str, attempt: AgreedAttempt, wall: float) -> Dict[str, Any]:
    """The end of a run that has no next attempt after this one, for this reason."""
    if cause is None:  # it was called off before it began
        text = "attempt %d was stopped by ddpctl" % attempt.number
        cause = outcomes.cause(attempt.hosts[0], SPAWN_FAILED, text, when=wall)
    return {"state": FAILED, "cause": dict(cause, message="%s; not restarted: %s" % (cause["message"], why))}


def _hung(host: str, why: str, wall: float) -> Dict[str, Any]:
    return {"state": FAILED, "cause": outcomes.cause(host, SPAWN_FAILED, why, when=wall)}


def cause_of(ends: Ends, wall: float) -> Optional[Dict[str, Any]]:
    """The first failure in time, a culprit before those who only missed another host; a kill before everything. None
    where nothing has failed. Of a host that was lost, rather than of those that were cut off from it."""
    found = [dict(end["cause"]) for end in ends.values() if end is not None and end.get("cause")]
    killed = [one for one in found if one["reason"] == KILLED_BY_USER]
    culprits = killed or [one for one in found if one["reason"] != NODE_LOST]
    links = [one for one in culprits if one["reason"] == LINK_LOST]
    if links and all(one["reason"] in (LINK_LOST, RENDEZVOUS_TIMEOUT) for one in culprits):
        culprits = links  # a host that others miss has said so itself: it lives
    if culprits:
        return min(culprits, key=lambda one: str(one["time"]))
    if not found and None not in ends.values():
        return None
    lost = [host for host, end in ends.items() if end is None]
    about = [one for one in found if one["host"] in lost] or ([] if lost else found)
    if about:
        missed = Counter(one["host"] for one in about)
        return max(about, key=lambda one: missed[one["host"]])
    return outcomes.cause(lost[0], NODE_LOST, "nothing was heard from %s: it is down or cut off" % lost[0], when=wall)


def broken(ends: Ends) -> Dict[str, str]:
    """Hosts whose own words say that their hardware is broken, with these words."""
    found: Dict[str, str] = {}
    for host, end in ends.items():
        words = _BROKEN_GPU.search(_words(end.get("cause"))) if end is not None and _own(end, host) else None
        if words:
            found[host] = "its GPU is broken: %s" % words.group(0)
        if end is not None and end.get("left"):
            found[host] = "%d processes of the job there cannot be killed" % end["left"]
    return found


def choose(rules: Rules, before: Sequence[str], usable: Sequence[str]) -> List[str]:
    """The hosts of the next attempt, in the order of their node ranks. Hosts of the last attempt are preferred."""
    stay = [host for host in rules.hosts if host in usable and host in before]
    more = [host for host in rules.hosts if host in usable and host not in before]
    chosen = {*(stay + more)[: rules.nodes]}
    return [host for host in rules.hosts if host in chosen]


def connected(rules: Rules, before: Sequence[str], usable: Sequence[str], cut: Collection[FrozenSet[str]]) -> List[str]:
    """The ``usable`` hosts without one end of each link that is ``cut``, as far as enough hosts are left: no attempt
    can run on both. Of the two the later one is left out; it is not to blame, and may be used again."""
    left = list(usable)
    while True:
        hosts = set(choose(rules, before, left))
        for pair in sorted(sorted(pair, key=rules.hosts.index) for pair in cut if pair <= hosts):
            fewer = [one for one in left if one != pair[-1]]
            if len(choose(rules, before, fewer)) >= rules.least:
                left = fewer
                break
        else:
            return left


def same_exception(one: Optional[Mapping[str, Any]], other: Optional[Mapping[str, Any]]) -> bool:
    """Whether two attempts failed of one exception at one place, or could not even be started for one reason."""
    first, second = _fingerprint(one), _fingerprint(other)
    return first is not None and first == second


def pause(attempts: Sequence[AgreedAttempt]) -> float:
    """Seconds to wait before the next attempt. It grows with each one in a row that did not last."""
    short = 0
    for one in reversed(attempts):
        if _lasted(one) >= STEADY_S:
            break
        short += 1
    return min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** max(0, short - 1))


def _lasted(attempt: AgreedAttempt) -> float:
    """Seconds, by the clocks of the leaders at its begin and end: good enough for a pause."""
    return 0.0 if attempt.ended is None else _seconds(attempt.ended) - _seconds(attempt.started)


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def _why_not(
    rules: Rules,
    attempts: Sequence[AgreedAttempt],
    cause: Optional[Mapping[str, Any]],
) -> Optional[str]:
    if attempts[-1].number > rules.restarts:
        times = "once" if rules.restarts == 1 else "%d times" % rules.restarts
        return "it was restarted %s before" % times if rules.restarts else "the job has no restarts"
    if len(attempts) > 1 and same_exception(attempts[-2].cause, cause):
        return "it failed at the same place twice in a row, so restarting will not help"
    return None


def too_few(rules: Rules, hosts: Sequence[str]) -> str:
    """Why it cannot continue on these hosts."""
    return "it needs %d hosts, and %d can be used" % (rules.least, len(hosts))


def _fingerprint(cause: Optional[Mapping[str, Any]]) -> Optional[Tuple[str, ...]]:
    if not cause:
        return None
    if cause.get("reason") == SPAWN_FAILED:
        return SPAWN_FAILED, str(cause.get("message"))
    trace = str(cause.get("traceback") or "")
    places = _PLACE.findall(trace)
    if cause.get("reason") != EXITED or not places:
        return None
    last = trace.rstrip().splitlines()[-1]
    file, line = places[-1]
    return EXITED, os.path.basename(file), line, last.split(":", 1)[0]  # each host has the code in a folder of its own


def _words(cause: Any) -> str:
    return "%s\n%s" % (cause.get("message") or "", cause.get("traceback") or "") if isinstance(cause, dict) else ""


def _own(end: Mapping[str, Any], host: str) -> bool:
    """Whether the cause that a host tells is its own: all tell the one that they have agreed on."""
    cause = end.get("cause")
    return isinstance(cause, dict) and cause.get("host") == host
