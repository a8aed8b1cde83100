"""Finds the hosts that hold up an attempt that is agreed on but has not begun. Pure.

While a host prepares, it counts up ``moved``: bytes that it hashed or fetched, and steps that are done. A host that
waits for another host says so, and is not at fault.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.agent.limits import HANGS_S, MOST_NAMED, PREPARED_S, STATUS_S
from ddpctl_worker.agent.state import Preparing, Report
from ddpctl_worker.machine import notes
from ddpctl_worker.record.document import AgreedAttempt


def find_hanging(
    before: Preparing,
    attempt: AgreedAttempt,
    reports: Mapping[str, Optional[Report]],
    reachable: Sequence[str],
    now: float,
    wall: float,
) -> Tuple[Preparing, Dict[str, str]]:
    """Return the new view, and the hosts that hang with a sentence about each.

    ``wall``: the time of day (Unix seconds).
    """
    if attempt.number != before.attempt:
        before = Preparing(attempt.number, now)
    moved: Dict[str, Tuple[int, float]] = {}
    words: Dict[str, str] = {}
    hang: Dict[str, str] = {}
    for host in attempt.hosts:
        report = reports.get(host)
        own = report if report is not None and report.attempt == attempt.number else Report(attempt.number, False)
        if own.ready or own.waits or host not in reachable:
            continue  # the end of its lease decides about a silent host
        count, since = before.moved.get(host, (own.moved, now))
        since = since if count == own.moved else now
        moved[host] = own.moved, since
        words[host] = _words(host, before.words.get(host, host), now - since, wall)
        if now - since > HANGS_S:
            hang[host] = "%s made no progress for %d s before attempt %d" % (host, HANGS_S, attempt.number)
    late = _waits_for(attempt.number, list(words.values())) if now - before.begun >= PREPARED_S else None
    return Preparing(attempt.number, before.begun, moved, words, late), hang


def _words(host: str, before: str, idle: float, wall: float) -> str:
    if idle < STATUS_S:
        return host
    return before if before != host else "%s (no progress since %s)" % (host, notes.iso(wall - idle))


def _waits_for(attempt: int, late: List[str]) -> Optional[str]:
    more = " and %d others" % (len(late) - MOST_NAMED) if len(late) > MOST_NAMED else ""
    return "attempt %d waits for %s%s" % (attempt, ", ".join(late[:MOST_NAMED]), more) if late else None
