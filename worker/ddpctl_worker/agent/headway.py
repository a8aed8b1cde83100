"""Who holds up an attempt that was agreed on and has not begun. Pure.

A host counts up ``moved`` while it prepares: bytes that were hashed or fetched, and steps that are done. A host that
waits for another host says so, and is not to blame.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.agent.limits import HANGS_S, MOST_NAMED, PREPARED_S, TELL_S
from ddpctl_worker.agent.state import Headway, Report
from ddpctl_worker.machine import notes
from ddpctl_worker.record.document import AgreedAttempt


def look(
    before: Headway,
    attempt: AgreedAttempt,
    reports: Mapping[str, Optional[Report]],
    near: Sequence[str],
    now: float,
    wall: float,
) -> Tuple[Headway, Dict[str, str]]:
    """The next view; and the hosts that hang, with the words for it. ``wall``: the time of day (Unix seconds)."""
    if attempt.number != before.attempt:
        before = Headway(attempt.number, now)
    moved: Dict[str, Tuple[int, float]] = {}
    words: Dict[str, str] = {}
    hang: Dict[str, str] = {}
    for host in attempt.hosts:
        report = reports.get(host)
        own = report if report is not None and report.attempt == attempt.number else Report(attempt.number, False)
        if own.ready or own.waits or host not in near:
            continue  # a silent host is given up by its lease
        count, since = before.moved.get(host, (own.moved, now))
        since = since if count == own.moved else now
        moved[host] = own.moved, since
        words[host] = _words(host, before.words.get(host, host), now - since, wall)
        if now - since > HANGS_S:
            hang[host] = "%s made no progress for %d s before attempt %d" % (host, HANGS_S, attempt.number)
    told = _waits_for(attempt.number, list(words.values())) if now - before.begun >= PREPARED_S else None
    return Headway(attempt.number, before.begun, moved, words, told), hang


def _words(host: str, before: str, idle: float, wall: float) -> str:
    if idle < TELL_S:
        return host
    return before if before != host else "%s (no progress since %s)" % (host, notes.iso(wall - idle))


def _waits_for(attempt: int, late: List[str]) -> Optional[str]:
    more = " and %d others" % (len(late) - MOST_NAMED) if len(late) > MOST_NAMED else ""
    return "attempt %d waits for %s%s" % (attempt, ", ".join(late[:MOST_NAMED]), more) if late else None
