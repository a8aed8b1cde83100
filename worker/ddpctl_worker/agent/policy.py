"""Decides after an attempt: whether the run ends, or continues, and on which hosts. Pure.

A host is excluded only by evidence about that host. An exception of the script, a lack of memory, a full disk or a kill
is no evidence against a host.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import datetime
from typing import Any, Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.agent.limits import FIRST_PAUSE_S, MOST_PAUSE_S, STEADY_S
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.document import AgreedAttempt
from ddpctl_worker.wire.contract import (
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

# Messages of drivers and libraries about a broken GPU; NVIDIA's Xid 48, 63, 64, 74, 79, 94, 95 in words.
_BROKEN_GPU = re.compile(
    r"uncorrectable ECC|GPU (?:has fallen off the bus|is lost)|Unable to determine the device handle for GPU|"
    r"CUDA error: hardware stack error|row remapp\w+ fail",
    re.IGNORECASE,
)
_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.M)
Ends = Mapping[str, Optional[Mapping[str, Any]]]  # the exit record of each host; None: the host was lost


class Rules(NamedTuple):
    """The settings of a job. ``hosts``: spares included, in the order of the inventory."""

    hosts: Sequence[str]
    nodes: int  # hosts of an attempt, at most
    least: int  # and at least
    restarts: int


class NextStep(NamedTuple):
    """The decision after an attempt.

    ``over``: the run ends with this state and cause. Otherwise another attempt follows, on ``hosts`` if nothing
    changes.
    """

    cause: Optional[Dict[str, Any]]  # why the attempt ended
    set_aside: List[Dict[str, str]]  # hosts that take no part in the next attempt, and why
    unfit: Dict[str, str]  # hosts of ``set_aside`` that take no part in any later attempt, even if they answer
    over: Optional[Dict[str, Any]] = None


def choose_next_step(
    rules: Rules,
    attempts: Sequence[AgreedAttempt],
    ends: Ends,
    reachable: Sequence[str],
    set_aside: Mapping[str, str],
    wall: float,
) -> NextStep:
    """Return the decision after the last of ``attempts``, which is over.

    ``ends``: the exit record of each host of the last attempt; ``None`` for a lost host.
    ``reachable``: hosts that are reachable now.
    ``set_aside``: excluded hosts, and why. An excluded host of the last attempt hung, so that this attempt could not
    begin.
    ``wall``: the time of day (Unix seconds).
    """
    last = attempts[-1]
    hung = {host: set_aside[host] for host in last.hosts if host in set_aside}  # the attempt was called off for these
    ends = {**ends, **{host: _hung(host, why, wall) for host, why in hung.items()}}
    damaged = broken(ends)
    cause = cause_of(ends, wall)
    lost = {host: "it was not heard of any more" for host, end in ends.items() if end is None}
    stuck = {host: "it answers, and its part of the attempt does not end" for host in lost if host in reachable}
    unfit = {**stuck, **damaged, **hung}
    states = {str(end["state"]) for end in ends.values() if end is not None}
    if states == {SUCCEEDED} and not lost:
        return NextStep(None, [], {}, {"state": SUCCEEDED, "cause": None})
    if cause is not None and cause["reason"] == KILLED_BY_USER:
        return NextStep(cause, [], {}, {"state": KILLED, "cause": cause})
    left_out = [{"host": host, "why": why} for host, why in {**lost, **unfit}.items()]
    why_not = None if hung else _why_not(rules, attempts, cause)
    over = find_given_up(cause, why_not, last, wall) if why_not else None
    return NextStep(cause, left_out, unfit, over)


def find_given_up(cause: Optional[Mapping[str, Any]], why: str, attempt: AgreedAttempt, wall: float) -> Dict[str, Any]:
    """Return the end of a run that does not continue after this attempt, for the reason ``why``."""
    if cause is None:  # the attempt was called off before it began
        text = "attempt %d was stopped by ddpctl" % attempt.number
        cause = outcomes.cause(attempt.hosts[0], SPAWN_FAILED, text, when=wall)
    return {"state": FAILED, "cause": dict(cause, message="%s; not restarted: %s" % (cause["message"], why))}


def _hung(host: str, why: str, wall: float) -> Dict[str, Any]:
    return {"state": FAILED, "cause": outcomes.cause(host, SPAWN_FAILED, why, when=wall)}


def cause_of(ends: Ends, wall: float) -> Optional[Dict[str, Any]]:
    """Return the cause of an attempt's end; ``None`` if nothing has failed.

    - A kill by the user comes before everything.
    - Then comes the first failure in time that is not the loss of another host.
    - Then comes the report that a host was lost, preferably about a host without an exit record.
    """
    found = [dict(end["cause"]) for end in ends.values() if end is not None and end.get("cause")]
    killed = [one for one in found if one["reason"] == KILLED_BY_USER]
    culprits = killed or [one for one in found if one["reason"] != NODE_LOST]
    links = [one for one in culprits if one["reason"] == LINK_LOST]
    if links and all(one["reason"] in (LINK_LOST, RENDEZVOUS_TIMEOUT) for one in culprits):
        culprits = links  # a host that reports a lost link lives, so it was not lost itself
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
    """Return the hosts with broken hardware by their own messages, and the message."""
    found: Dict[str, str] = {}
    for host, end in ends.items():
        words = _BROKEN_GPU.search(_words(end.get("cause"))) if end is not None and _own(end, host) else None
        if words:
            found[host] = "its GPU is broken: %s" % words.group(0)
        if end is not None and end.get("left"):
            found[host] = "%d processes of the job there cannot be killed" % end["left"]
    return found


def choose(rules: Rules, before: Sequence[str], usable: Sequence[str]) -> List[str]:
    """Return the hosts of the next attempt, in the order of their node ranks. Hosts of the last attempt come first."""
    stay = [host for host in rules.hosts if host in usable and host in before]
    more = [host for host in rules.hosts if host in usable and host not in before]
    chosen = {*(stay + more)[: rules.nodes]}
    return [host for host in rules.hosts if host in chosen]


def connected_hosts(
    rules: Rules, before: Sequence[str], usable: Sequence[str], cut: Collection[FrozenSet[str]]
) -> List[str]:
    """Return the ``usable`` hosts without one end of each ``cut`` link, as far as enough hosts remain.

    No attempt can run on both ends. The end that is later in the list is left out. It is not at fault, and may be used
    again.
    """
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
    """Return whether two attempts failed at the same exception and line, or did not start for the same reason."""
    first, second = _fingerprint(one), _fingerprint(other)
    return first is not None and first == second


def pause(attempts: Sequence[AgreedAttempt]) -> float:
    """Return the seconds to wait before the next attempt. The pause grows with each short attempt in a row."""
    short = 0
    for one in reversed(attempts):
        if _lasted(one) >= STEADY_S:
            break
        short += 1
    return min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** max(0, short - 1))


def _lasted(attempt: AgreedAttempt) -> float:
    """Return the seconds that an attempt lasted, by the clocks of its leaders: exact enough for a pause."""
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
    """Return why the run cannot continue on these hosts."""
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
    """Return whether the cause in a host's record is about that host.

    After an agreement on the cause, all hosts record the same cause.
    """
    cause = end.get("cause")
    return isinstance(cause, dict) and cause.get("host") == host
