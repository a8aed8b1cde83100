"""The job's ``after`` on this host: shell text that runs once no rank is left, before the end is on record."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Dict, Optional

from ddpctl_worker.machine import child
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.lines import STDERR, STDOUT
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.run.cause import code_of
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.launcher import enlarge_pipe
from ddpctl_worker.run.limits import LEFTOVER_GRACE_S
from ddpctl_worker.run.order import RunOrder
from ddpctl_worker.run.shelltext import run_after
from ddpctl_worker.run.stopper import Stopper
from ddpctl_worker.run.termination import Termination
from ddpctl_worker.wire.contract import EXITED, FAILED, KILLED, SUCCEEDED, SUPERVISOR_LOST


class AfterCommand:
    """``after`` of a run, from its start to the end of its last process.

    With restarts a failed attempt has no ``after``: another attempt may follow. ``failure``: why a run that had
    succeeded has failed. With restarts that would start another attempt, so the failure is only a line of the output.
    """

    def __init__(self, order: RunOrder, termination: Termination) -> None:
        self._run, self._termination = order["run"], termination
        self._command = order["run"].get("after") or ""
        self._env, self._cwd = order["env"], order["cwd"]  # the order loses its secrets
        self._umask, self._own_names = order["umask"], order["own_names"]
        self._fds: Dict[str, int] = {}
        self._pid: Optional[int] = None
        self._status: Optional[int] = None
        self._seconds = self._until = 0.0
        self._stopper: Optional[Stopper] = None
        self._stopped = False
        self.failure: Optional[Outcome] = None
        self.over = not self._command

    @property
    def running(self) -> bool:
        return self._pid is not None and not self.over

    def end_if_cut_short(self, outcome: Outcome) -> Outcome:
        """Return how a run with this outcome ends if the supervisor dies while ``after`` runs."""
        if outcome.state != SUCCEEDED or self._run.get("restart"):
            return outcome
        text = "`after` was cut short: the supervisor of the run died"
        return outcomes.failed(outcomes.cause(str(self._run["host"]), SUPERVISOR_LOST, text))

    def prepare(self, drain: Drain) -> None:
        """Make the pipes of its output; called before the drain starts."""
        for stream in () if self.over else (STDOUT, STDERR):
            reader, self._fds[stream] = os.pipe()
            os.set_blocking(reader, False)
            enlarge_pipe(reader)
            drain.add(reader, None, stream)

    def look(self, outcome: Outcome, started: bool) -> None:
        """Start it, or see whether it has ended. ``outcome``: the run's. ``started``: whether a launcher was."""
        if self.over:
            return
        if self._pid is None:
            restarts = bool(self._run.get("restart")) and outcome.state == FAILED
            if self._stopped or not started or restarts:
                self._finish()
                return
            try:
                self._start(outcome)
            except OSError as error:
                self._fail("cannot be started: %s" % (error.strerror or error))
                self._finish()
                return
        if self._stopper is None and self._status is None and time.monotonic() >= self._until:
            self._fail("did not end within %g s" % self._seconds)
            self._end()
        elif self._stopper is None and self._status is not None:
            if self._status:
                self._fail(_ending(self._status))
            self._end()
        if self._stopper is not None and self._stopper.look():
            self._finish()

    def note_ended(self, pid: int, status: int) -> None:
        """Take the wait status of a child of the supervisor, if it is this command's."""
        if pid == self._pid:
            self._status = status

    def stop(self) -> None:
        """End it, or leave it out: a user ends the run, or the machine shuts down."""
        self._stopped = True
        if self._pid is not None and self._stopper is None:
            self._fail("was ended before it was done")
            self._end()

    def _start(self, outcome: Outcome) -> None:
        argv = run_after(self._command, [*self._own_names, "DDPCTL_STATE"])
        argv = child.command("ddpctl_worker.run.shelltext", str(self._umask), str(os.getpid()), *argv)
        self._seconds = float(self._run["timeouts"]["after"])
        if outcome.state == KILLED:  # a kill waits for no longer
            self._seconds = min(self._seconds, self._termination.asked_seconds)
        self._until = time.monotonic() + self._seconds
        process = subprocess.Popen(
            argv,
            cwd=self._cwd,
            env=dict(self._env, DDPCTL_STATE=outcome.state),
            stdin=subprocess.DEVNULL,
            stdout=self._fds[STDOUT],
            stderr=self._fds[STDERR],
            start_new_session=True,
        )
        process.returncode = 0  # the supervisor reaps every child itself
        self._pid = process.pid

    def _finish(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])
        self.over = True

    def _end(self) -> None:
        """End what is left of it: the shell, and programs in its background."""
        self._stopper = self._termination.stopper_for_leftovers(LEFTOVER_GRACE_S)

    def _fail(self, how: str) -> None:
        text = "`after` %s" % how
        os.write(self._fds[STDERR], ("ddpctl: %s\n" % text).encode())
        if self._run.get("restart"):
            return
        code = code_of(self._status) if self._status else None
        exit_code = code if code is not None and code >= 0 else None
        self.failure = outcomes.failed(outcomes.cause(str(self._run["host"]), EXITED, text, exit_code=exit_code))


def _ending(status: int) -> str:
    code = code_of(status)
    return "was killed by signal %d" % -code if code < 0 else "exited with code %d" % code
