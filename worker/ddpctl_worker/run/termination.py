"""The end of a run's processes, as its supervisor wants it: the grace, the processes to end, and the counts.

stopper.py sends the signals.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Dict, List, Optional

from ddpctl_worker.machine import proc, processes
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run.launcher import Launching
from ddpctl_worker.run.limits import LEFTOVER_GRACE_S
from ddpctl_worker.run.stopper import Ranks, Stopper
from ddpctl_worker.wire.contract import PLAIN


class Termination:
    """Ends all processes of a run on this node, from the call of ``begin`` on.

    ``spare`` returns the supervisor's children that are not the job's.
    """

    def __init__(
        self,
        run: RunRecord,
        cookie: str,
        launching: Launching,
        roster: Roster,
        guardian: processes.ProcessId,
        spare: Callable[[], List[int]],
    ) -> None:
        self._run, self._cookie, self._launching, self._roster = run, cookie, launching, roster
        self._guardian, self._spare = guardian, spare
        self._stopper: Optional[Stopper] = None
        self._asked_grace: Optional[float] = None
        self._leftover: Optional[float] = None  # seconds for processes that outlive the launcher

    @property
    def begun(self) -> bool:
        return self._stopper is not None

    @property
    def done(self) -> bool:
        return self._stopper is not None and self._stopper.done

    @property
    def survivors(self) -> List[Dict[str, Any]]:
        """Return the processes that SIGKILL did not end."""
        return self._stopper.survivors if self._stopper else []

    @property
    def signalled(self) -> int:
        """Return how many processes were found."""
        return self._stopper.signalled if self._stopper else 0

    @property
    def forced(self) -> int:
        """Return how many processes needed SIGKILL."""
        return self._stopper.forced if self._stopper else 0

    @property
    def outlived(self) -> int:
        """Return how many processes outlived a launcher that had ended, and were killed."""
        return self.signalled if self._leftover is not None else 0

    @property
    def grace_seconds(self) -> float:
        """Return the time from SIGTERM to SIGKILL: the job's ``timeouts.stop``."""
        return float(self._run["timeouts"]["stop"])

    @property
    def asked_seconds(self) -> float:
        """Return the grace of the stop that was asked for: the job's own, unless the stop named another."""
        return self.grace_seconds if self._asked_grace is None else self._asked_grace

    @property
    def leftover_seconds(self) -> float:
        """Return how long processes may outlive the launcher: the job's ``timeouts.leftover``."""
        return float(self._run["timeouts"]["leftover"])

    def begin(self, status: Optional[int]) -> None:
        """Begin. ``status``: the launcher's wait status, once it has ended."""
        grace, patience = self._asked_grace, 0.0
        if grace is None:
            grace = self.grace_seconds
            if status is not None:
                self._leftover = self.leftover_seconds
                patience = self._leftover if status == 0 else 0.0
                grace = min(grace, LEFTOVER_GRACE_S if patience else self._leftover)
        self._stopper = Stopper(
            self._members,
            self._launching.launcher,
            grace,
            ranks=self._ranks,
            patience=patience,
            proof=processes.Proof(self._launching.group, subreaper=True, spare=self._spare),
        )

    def stopper_for_leftovers(self, grace: float) -> Stopper:
        """Return a stop of all processes of the job that are left, with ``grace`` seconds from SIGTERM to SIGKILL."""
        proof = processes.Proof(self._launching.group, subreaper=True, spare=self._spare)
        return Stopper(self._members, None, grace, proof=proof)

    def ask_grace(self, grace: Optional[float]) -> None:
        """Set the grace before the beginning; ``None``: the job's own."""
        self._asked_grace = grace

    def allow(self, grace: float) -> None:
        """Set the grace after the beginning to ``grace`` seconds from now."""
        if self._stopper is not None:
            self._stopper.allow(grace)

    def shorten(self, grace: float) -> None:
        """Shorten the grace after the beginning to ``grace`` seconds from now."""
        if self._stopper is not None:
            self._stopper.shorten(grace)

    def look(self) -> None:
        if self._stopper is not None:
            self._stopper.look()

    def rank_ended(self) -> None:
        if self._stopper is not None:
            self._stopper.rank_ended()

    def _ranks(self) -> Ranks:
        failed = any(death.status for _, death in self._roster.dead())
        any_rank = self._roster.any and self._run.get("launcher") != PLAIN  # without a launcher the rank is its own
        alive = {rank.pid for rank in self._roster.alive()}
        store = self._run["node_rank"] == 0 or self._run["rendezvous"] != "static"
        saves = store and any(proc.catches(pid, signal.SIGTERM) for pid in alive)
        return Ranks(alive, failed, saves, any_rank)

    def _members(self) -> Dict[int, proc.Stat]:
        keep = [os.getpid(), *processes.filter_alive(self._guardian), *self._spare()]
        found = processes.find_members(self._cookie, [os.getpid()], keep, group=self._launching.group)
        late = self._spare()  # started during the look
        return {pid: stat for pid, stat in found.items() if pid not in late}
