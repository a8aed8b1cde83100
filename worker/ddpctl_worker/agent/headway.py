"""Who holds up an attempt that was agreed on and has not begun.

A host counts up ``moved`` while it prepares: bytes that were hashed or fetched, and steps that are done. One that waits
for another host says so, and is not to blame.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker import notes
from ddpctl_worker.system import CLOCK, HostClock

HANGS_S = 120.0  # without progress; what is large may take hours
TELL_S = 20.0  # the same, when it is said
BEGIN_S = 10.0  # a preparation that is over by then is not spoken of
MOST_NAMED = 8


class Headway:
    """The leader's view of one attempt after the other; times are seconds since boot."""

    def __init__(self, clock: HostClock = CLOCK) -> None:
        self._clock = clock
        self._attempt = 0
        self._begun = 0.0
        self._last: Dict[str, Tuple[int, float]] = {}  # what each host had moved, and since when
        self._words: Dict[str, str] = {}  # for a host without progress: they stay the same, as they are written to disk
        self.waits: Optional[str] = None  # whom the attempt waits for, in words

    def look(
        self, attempt: Mapping[str, Any], reports: Mapping[str, Any], near: Sequence[str], now: float
    ) -> Dict[str, str]:
        """The hosts that hang, and the words for it."""
        if attempt["attempt"] != self._attempt:
            self._attempt, self._begun, self._last = int(attempt["attempt"]), now, {}
        late: List[str] = []
        hang: Dict[str, str] = {}
        for host in attempt["hosts"]:
            report = reports.get(host) or {}
            own = report if report.get("attempt") == self._attempt else {}
            if own.get("ready") == self._attempt or own.get("waits") or host not in near:
                self._last.pop(host, None)  # silent ones are given up by their lease
                continue
            moved = int(own.get("moved") or 0)
            before, since = self._last.get(host, (moved, now))
            since = since if moved == before else now
            self._last[host] = (moved, since)
            if now - since < TELL_S:
                self._words[host] = host
            elif self._words.get(host, host) == host:
                self._words[host] = "%s (no progress since %s)" % (host, notes.iso(self._clock.wall() - (now - since)))
            late.append(self._words[host])
            if now - since > HANGS_S:
                hang[host] = "%s made no progress for %d s before attempt %d" % (host, HANGS_S, self._attempt)
        more = " and %d others" % (len(late) - MOST_NAMED) if len(late) > MOST_NAMED else ""
        words = "attempt %d waits for %s%s" % (self._attempt, ", ".join(late[:MOST_NAMED]), more)
        self.waits = words if late and now - self._begun >= BEGIN_S else None
        return hang

    def over(self) -> None:
        """Nothing is prepared now, or another host leads."""
        self._attempt, self.waits = 0, None
