"""The deadlines of a run.

Four faults have a deadline: ranks that do not start, nodes that cannot watch each other, ranks without output, and a
launcher that outlives its ranks.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ddpctl_worker.gang.base import Gang
from ddpctl_worker.machine.system import CLOCK, HostClock
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run.limits import EXIT_BARRIER_S, HUB_FIRST_S, LONE_LAUNCHER_S, LOOP_ASLEEP_S
from ddpctl_worker.wire.contract import EXITED, LINK_LOST, RENDEZVOUS_TIMEOUT, SILENCE, SUPERVISOR_LOST


class Deadlines:
    """The clocks of one run on one node."""

    def __init__(self, run: RunRecord, clock: HostClock = CLOCK) -> None:
        self._clock = clock
        limits = run["timeouts"]
        self._host: str = run["host"]
        self._start: float = limits["start"]
        self._silence: Optional[float] = limits["silence"] if limits["silence_enforced"] else None
        self._linger = EXIT_BARRIER_S if int(run["nnodes"]) > 1 else LONE_LAUNCHER_S
        self._begun = self._looked = self._clock.boot()
        self._alone_since: Optional[float] = None  # when all ranks had ended

    def overdue(
        self, ranks: Roster, last_output: float, gang: Optional[Gang], diagnosis: Optional[Dict[str, Any]] = None
    ) -> Optional[Outcome]:
        """Return the failure if a deadline has passed.

        ``last_output``: seconds since boot, 0.0 before the first output. ``diagnosis``: the doctor's, for a stuck run.
        """
        now = self._clock.boot()
        nap, self._looked = now - self._looked, now
        if nap > LOOP_ASLEEP_S:  # the machine was suspended, which counts for no deadline
            self._begun = now if ranks.any else self._begun + nap
            self._alone_since = None
        stuck = self._stuck(gang)
        if stuck is not None or not ranks.any:
            return stuck or self._not_started(gang)
        return self._left_alone(ranks, now) or self._not_watched(gang) or self._silent(last_output, gang, diagnosis)

    def _stuck(self, gang: Optional[Gang]) -> Optional[Outcome]:
        if gang is None or not gang.stuck:
            return None
        text = "the thread on %s that watches the other nodes is stuck" % self._host
        return outcomes.failed(outcomes.cause(self._host, SUPERVISOR_LOST, text))

    def _left_alone(self, ranks: Roster, now: float) -> Optional[Outcome]:
        if not ranks.all_ended():
            self._alone_since = None
            return None
        self._alone_since = self._alone_since or now
        if now - self._alone_since < self._linger:
            return None
        text = "every rank on %s has ended%s, but the launcher kept running for %g s without them: it hangs" % (
            self._host,
            "" if any(death.status is None for death in ranks.deaths.values()) else " with exit code 0",
            self._linger,
        )
        return outcomes.failed(outcomes.cause(self._host, EXITED, text))

    def _not_started(self, gang: Optional[Gang]) -> Optional[Outcome]:
        if not self._start_is_over(gang):
            return None
        head = "the ranks did not start within %g s" % self._start
        missing = gang.missing() if gang else []
        if gang is not None and gang.unanswered:
            return self._apart(gang, head)
        if missing:
            host, text = missing[0], "%s: %s never joined" % (head, ", ".join(missing))
        else:
            host, text = self._host, "%s: the launcher still waits for the other nodes on the master port" % head
        return outcomes.failed(outcomes.cause(host, RENDEZVOUS_TIMEOUT, text))

    def _not_watched(self, gang: Optional[Gang]) -> Optional[Outcome]:
        """Return a failure if the nodes cannot watch each other: the loss of a node would go unnoticed."""
        missing: List[str] = gang.missing() if gang is not None and gang.talking else []
        if gang is None or not missing or not self._start_is_over(gang):
            return None
        if gang.unanswered:
            return self._apart(gang, "%s runs its ranks, and nobody can watch it" % self._host)
        who = ", ".join(missing) if gang.is_hub else self._host
        text = "the nodes cannot watch each other: no connection from %s to port %d of %s within %g s" % (
            who,
            gang.address[1],
            gang.hub_host,
            self._start,
        )
        why = gang.trouble or "is there a firewall between them, or has a node lost power?"
        return outcomes.failed(outcomes.cause(missing[0], RENDEZVOUS_TIMEOUT, "%s: %s" % (text, why)))

    def _apart(self, gang: Gang, head: str) -> Outcome:
        """Return the failure of a node that never got an answer from the hub's host."""
        text = (
            "%s: no connection of %s to port %d of %s was answered for %g s: check the switch, cable and firewall "
            "between them, and whether %s is up"
        ) % (head, self._host, gang.address[1], gang.hub_host, self._start, gang.hub_host)
        return outcomes.failed(outcomes.cause(self._host, LINK_LOST, text, peer=gang.hub_host))

    def _start_is_over(self, gang: Optional[Gang]) -> bool:
        limit = self._start + (HUB_FIRST_S if gang is not None and not gang.is_hub else 0.0)
        return self._clock.boot() - self._begun >= limit

    def _silent(
        self, last_output: float, gang: Optional[Gang], diagnosis: Optional[Dict[str, Any]]
    ) -> Optional[Outcome]:
        if self._silence is None or (gang is not None and not gang.is_hub):
            return None
        quiet = self._clock.boot() - max(last_output, self._begun)
        if gang is not None:
            quiet = min(quiet, gang.quiet())
        if quiet < self._silence:
            return None
        text = "no rank on any node wrote a line for %g s" % self._silence
        host, rank = self._host, None
        if diagnosis is not None:
            text = "%s: %s" % (text, diagnosis["verdict"])
            for suspect in (diagnosis.get("suspects") or ())[:1]:
                host, rank = suspect["host"], suspect["rank"]
        return outcomes.failed(outcomes.cause(host, SILENCE, text, rank=rank))
