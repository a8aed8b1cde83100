"""Decides how a run ends on this node: by this node's own failure, or by the verdict of all nodes."""

from __future__ import annotations

import math
from typing import Callable, Optional

from ddpctl_worker.gang.base import Gang
from ddpctl_worker.gang.limits import VICTIMS_S
from ddpctl_worker.machine.system import CLOCK, HostClock
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.run.findings import Findings
from ddpctl_worker.run.limits import SENDER_S, VERDICT_S
from ddpctl_worker.wire.contract import SUCCEEDED

GOT_SIGTERM = "got signal: 15"  # the words of torch's launcher


class Ending:
    """``outcome``: the final outcome. ``candidate``: this node's own view until the gang has agreed.

    ``tell`` sends both to the guardian, before any disk write. ``hung`` takes this node's view and returns
    the failure of the rank that the victims waited for, once that rank is found.
    """

    def __init__(
        self,
        host: str,
        findings: Findings,
        gang: Optional[Gang],
        tell: Callable[[], None],
        clock: HostClock = CLOCK,
        hung: Callable[[Optional[Outcome]], Optional[Outcome]] = lambda known: None,
    ) -> None:
        self._clock, self._hung = clock, hung
        self._host, self._findings, self._gang, self._tell = host, findings, gang, tell
        self.outcome: Optional[Outcome] = None
        self.candidate: Optional[Outcome] = None
        self._candidate_until = 0.0
        self._closer_at = 0.0
        self._from_outside: Optional[Outcome] = None
        self._signalled_until = 0.0

    @property
    def known(self) -> Optional[Outcome]:
        return self.outcome or self.candidate

    def settle(self, outcome: Outcome) -> None:
        """Make ``outcome`` final."""
        self.outcome = outcome
        self._tell()

    def end_with(self, outcome: Outcome) -> None:
        """Make ``outcome`` final without the other nodes' consent, and send it to them."""
        self.settle(outcome)
        if self._gang:
            self._gang.report_failure(outcome)

    def propose(self, candidate: Outcome) -> None:
        """Set this node's view of the failure. With a gang, all nodes first agree on one cause."""
        self.candidate = candidate
        self._candidate_until = self._clock.now() + VERDICT_S
        self._tell()
        if self._gang:
            self._gang.report_failure(candidate)

    def blame(self, outside: Outcome) -> None:
        """Take ``outside`` as the cause of every failure that this node finds from now on.

        The sender of that signal also ended the launcher and the ranks: their deaths are consequences.
        """
        self._from_outside = outside

    def obey(self, by: str) -> None:
        """End the run as killed by user ``by``, unless a rank here had failed before. Does not wait for a verdict."""
        if self.outcome is None:
            own = self.candidate
            if own is None or own.victim or own.early:  # a rank that ended with 0 is no failure of its own
                self.end_with(outcomes.killed(self._host, by))
            else:
                self.outcome = own

    def look(self, status: Optional[int], stopping: bool, overdue: Callable[[], Optional[Outcome]]) -> None:
        """Look for failures and for the gang's verdict.

        ``status``: the launcher's wait status, once it has ended. ``stopping``: signals are being sent, so a death here
        proves no failure. ``overdue``: called while no failure is known.
        """
        if self.known is None:
            self._find_failure(status)
        if self.outcome is None and not stopping:
            self._look_closer()
            self._look_finally(status)
        if self.outcome is None:
            self._name_hung()  # during a stop too: the rank may be on another node
        if self.known is None:
            found = overdue()
            if found is not None:
                self.propose(found)
        self._agree(status)

    def _find_failure(self, status: Optional[int]) -> None:
        if status == 0:
            self.outcome = Outcome(SUCCEEDED, None)
            return
        found = self._findings.failure(status)
        if found is None or self._may_be_signalled(found):
            return
        self.propose(self._from_outside or found)

    def _may_be_signalled(self, found: Outcome) -> bool:
        """Return whether to wait: a sender that ended ranks or launcher with SIGTERM may signal this process next."""
        why = found.cause or {}
        by_sigterm = why.get("signal") == "SIGTERM" or GOT_SIGTERM in str(why.get("message"))
        if self._from_outside is not None or not by_sigterm:
            return False
        now = self._clock.now()
        self._signalled_until = self._signalled_until or now + SENDER_S
        return now < self._signalled_until

    @property
    def _only_victims(self) -> bool:
        """Return whether all failures that this node knows are victims of a peer's failure."""
        if self.candidate is None:
            return self._gang is not None and self._gang.asked
        return self.candidate.victim or self.candidate.early

    def _name_hung(self) -> None:
        found = self._hung(self.candidate) if self._only_victims else None
        if found is not None:
            self.propose(found)

    def _look_closer(self) -> None:
        now = self._clock.now()
        if now < self._closer_at or not self._only_victims:
            return
        self._closer_at = now + 1.0
        found = self._findings.find_slow_rank(self.candidate)
        if found is not None:
            self.propose(found)

    def _look_finally(self, status: Optional[int]) -> None:
        """Look again after the launcher has ended, if this node's view is a victim.

        The launcher's report may name the culprit. No rank can fail any more, so a rank that ended early counts.
        """
        if not status or self.candidate is None or not self.candidate.victim:
            return
        found = self._findings.likeliest_failure(status)
        if found is not None and not found.victim:
            self.propose(found)

    def _agree(self, status: Optional[int]) -> None:
        if self.outcome is not None:
            return
        verdict = self._gang.verdict if self._gang else None
        if verdict is not None:
            self.settle(verdict)
        elif self.candidate is not None and self._clock.now() >= self._candidate_until + self._patience(status):
            self.outcome = self.candidate

    def _patience(self, status: Optional[int]) -> float:
        """Return the seconds beyond VERDICT_S for which the verdict, or a culprit, may still come."""
        if self._gang is not None:
            return self._gang.patience()
        alone = self.candidate is not None and self.candidate.victim and status is None
        return VICTIMS_S - VERDICT_S if alone else -math.inf
