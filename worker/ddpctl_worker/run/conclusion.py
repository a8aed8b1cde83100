"""The last steps of a run on this node: leave the gang, run ``after``, empty the pipes, write the exit record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Optional

from ddpctl_worker.gang.base import Gang
from ddpctl_worker.machine import notes
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.logs import Writer
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.run import cause as causes
from ddpctl_worker.run.after import AfterCommand
from ddpctl_worker.run.cleanup import GuardianPipe
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.findings import Findings
from ddpctl_worker.run.keeping import KeeperHandle
from ddpctl_worker.run.limits import KILLED_KEEPER_LOOK_S, LAST_KEEPER_LOOK_S, LAST_OUTPUT_S, LOG_WRITTEN_S
from ddpctl_worker.run.recorder import Recorder
from ddpctl_worker.run.termination import Termination
from ddpctl_worker.wire.contract import FAILED, KILLED, SUCCEEDED

if TYPE_CHECKING:
    from ddpctl_worker.run.observer import Observer


class Conclusion:
    """Ends a run once no process of the job is left. Each turn of the supervisor's loop calls ``take_step``.

    A step may take as long as the disk is away. The other nodes do not wait for it.
    """

    def __init__(
        self,
        guardian: GuardianPipe,
        findings: Findings,
        roster: Roster,
        termination: Termination,
        drain: Drain,
        writer: Writer,
        recorder: Recorder,
        keeping: KeeperHandle,
        gang: Optional[Gang],
        after: AfterCommand,
    ) -> None:
        self._guardian, self._findings, self._roster, self._termination = guardian, findings, roster, termination
        self._drain, self._writer, self._recorder = drain, writer, recorder
        self._keeping, self._gang, self._after = keeping, gang, after
        self._drain_until: Optional[float] = None
        self._log_until: Optional[float] = None
        self._hurried = False

    def hurry(self) -> None:
        """Let no process stay for the checkpoints: systemd waits for the end of the run's unit."""
        self._hurried = True

    @property
    def over(self) -> bool:
        """Return whether the exit record is written, and the gang knows the end."""
        talking = self._gang is not None and self._gang.talking
        return self._recorder.ended and self._writer.over and not talking

    def take_step(self, outcome: Outcome, status: Optional[int], observer: Optional[Observer]) -> None:
        """Take the next step. ``status``: the launcher's wait status."""
        if self._drain_until is None:
            self._guardian.report(ended=True)  # the guardian ignores the lease from now on
        if self._gang:
            if outcome.state == SUCCEEDED and not self._keeping.has_met(self._gang.servers):
                return
            self._gang.leave(outcome)
        ran = self._after.running
        self._after.look(outcome, status is not None)  # the other hosts do not wait for it
        if self._after.running and not ran:
            self.tell_guardian(self._after.end_if_cut_short(outcome), status)
        if not self._after.over:
            return
        self._drain.close()
        self._drain_until = self._drain_until or time.monotonic() + LAST_OUTPUT_S
        if not self._drain.over and time.monotonic() < self._drain_until:
            return
        if observer and not observer.dumps_kept():
            return
        hurried = outcome.state == KILLED or self._hurried
        seconds = KILLED_KEEPER_LOOK_S if hurried else LAST_KEEPER_LOOK_S
        if not self._keeping.settled(outcome.state == SUCCEEDED, linger=not hurried, seconds=seconds):
            return
        if self._log_until is None:
            self._log_until = time.monotonic() + LOG_WRITTEN_S
            self._writer.close()
            self._note_outlived()
            self.tell_guardian(outcome, status)
        if self._writer.over or time.monotonic() >= self._log_until:
            self._recorder.end(self._exit_record(outcome, status))

    def tell_guardian(self, outcome: Outcome, status: Optional[int]) -> None:
        """Send the exit record to the guardian, which writes it if this process dies first."""
        self._guardian.report(end=self._exit_record(outcome, status))

    def _note_outlived(self) -> None:
        if self._termination.outlived:
            text = "%d processes that outlived the launcher were killed; timeouts.leftover gives them %g s"
            notes.note(text % (self._termination.outlived, self._termination.leftover_seconds))

    def _exit_record(self, outcome: Outcome, status: Optional[int]) -> Dict[str, Any]:
        others = self._findings.causes() + (self._gang.candidates() if self._gang else [])
        return record.exit_record(
            outcome,
            exit_code=self._exit_code(outcome, status),
            candidates=outcomes.list_candidates(outcome.cause, others) if outcome.state == FAILED else (),
            leftover=self._termination.outlived,
            signalled=self._termination.signalled,
            forced=self._termination.forced,
            survivors=self._termination.survivors,
            attempt=self._roster.attempt(),
            dropped_lines=self._writer.dropped,
            unfinished=self._keeping.unfinished,
        )

    def _exit_code(self, outcome: Outcome, status: Optional[int]) -> Optional[int]:
        """Return the exit code of the rank that failed here, else of the launcher. Negative: the signal."""
        code = self._findings.code() if outcome.state == FAILED else None
        return code if code is not None or status is None else causes.code_of(status)
