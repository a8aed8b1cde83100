"""Cleans up after a supervisor that has died: the pipe to its guardian, the clean-up, and the replacement guardian.

The supervisor sends messages to its guardian over a pipe, so no disk delays them: heartbeats while its loop turns, and
the facts that the guardian needs to clean up and to record the run's end. If the guardian dies, the supervisor starts a
replacement guardian, which reads the same messages.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ddpctl_worker.machine import child, notes, proc, processes
from ddpctl_worker.machine.cgroup import of_record
from ddpctl_worker.record import record
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run import notifying
from ddpctl_worker.run.lease import GUARDIAN, Lease
from ddpctl_worker.run.limits import (
    BEAT_S,
    CLEAN_UP_PAUSE_S,
    FIRST_TURN_S,
    GUARDIAN_LOOK_S,
    LEASE_OVER_S,
    LEFTOVERS_GRACE_S,
    LISTENER_ASLEEP_S,
    REPLACEMENT_PAUSE_S,
    STUCK_LOOP_S,
)
from ddpctl_worker.run.order import RunOrder
from ddpctl_worker.run.stopper import Stopper, reap, run_to_end
from ddpctl_worker.slots import claims


class GuardianPipe:
    """The supervisor's end of the pipe to its guardian. No method waits or raises."""

    def __init__(self, fd: int) -> None:
        self._facts: Dict[str, Any] = {}
        self.attach(fd)

    def attach(self, fd: int) -> None:
        """Send all facts to the new guardian that reads from ``fd``."""
        self._writer: Optional[child.MessageWriter] = child.MessageWriter(fd)
        self._beat_at = 0.0
        if self._facts:
            self._send(self._facts)

    def detach(self) -> None:
        """Send nothing until the next ``attach``: once ``fd`` is closed, another file may get its number."""
        self._writer = None

    def report(self, **facts: Any) -> None:
        """Send these facts. The newest value of each fact counts."""
        self._facts.update(facts)
        self._send(facts)

    def beat(self) -> None:
        """Send a heartbeat if its time has come, and the waiting messages."""
        if self._writer is None:
            return
        with contextlib.suppress(OSError):  # as in _send
            self._writer.flush()
            if time.monotonic() < self._beat_at:
                return
            self._beat_at = time.monotonic() + BEAT_S
            if not self._writer.waiting:  # a waiting message is a heartbeat too, once the guardian reads it
                self._writer.send({})

    def _send(self, facts: Dict[str, Any]) -> None:
        if self._writer is None:  # the next guardian gets all facts
            return
        with contextlib.suppress(OSError):  # the reader is gone, and a replacement will be attached
            self._writer.send(facts)


class SupervisorPipe:
    """The guardian's end of the pipe. ``facts``: the supervisor's facts, the newest value of each."""

    def __init__(self, fd: int, up: float = FIRST_TURN_S) -> None:
        self._reader = child.MessageReader(fd)
        self._beat: Optional[float] = None
        self._begun = self._listened = time.monotonic()
        self._up = up
        self.facts: Dict[str, Any] = {}

    def listen(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for messages; return False once the supervisor's end is closed.

        The time in which the machine was suspended does not count as silence.
        """
        messages = self._reader.receive(timeout)
        now = time.monotonic()
        nap, self._listened = now - self._listened - timeout, now
        if nap > LISTENER_ASLEEP_S:
            self._begun += nap
            self._beat = None if self._beat is None else self._beat + nap
        for message in messages:
            self._beat = now
            self.facts.update(message)
        return not self._reader.ended

    def is_stuck(self) -> bool:
        """Return whether the supervisor's loop is stuck, in a hung disk perhaps."""
        now = time.monotonic()
        return now - self._begun > self._up if self._beat is None else now - self._beat > STUCK_LOOP_S

    def describe_stuck(self) -> str:
        if self._beat is not None:
            return "was stuck for %d s" % STUCK_LOOP_S
        return "could not start the launcher within %g s (is its folder or its Python on a disk that hangs?)" % (
            self._up
        )


class Leftovers:
    """The processes that a dead supervisor left, and how to find them without a disk.

    ``known``: [pid, start] of processes seen earlier. ``facts``: the supervisor's facts. ``lease``: the seconds for
    which the processes may still run. The supervisor may still exist: a thread that waits for a hung disk keeps it.
    """

    def __init__(
        self,
        cookie: str,
        known: Sequence[Sequence[int]],
        roots: Sequence[int],
        supervisor: Optional[processes.ProcessId],
        facts: Dict[str, Any],
        lease: float = LEFTOVERS_GRACE_S,
    ) -> None:
        self.cookie, self.known, self.roots, self.supervisor = cookie, known, roots, supervisor
        self.launcher = processes.identity_from_json(facts.get("launcher"))
        self.grace = min(float(facts.get("grace", LEFTOVERS_GRACE_S)), LEFTOVERS_GRACE_S, max(0.0, lease))
        self.end: Optional[Dict[str, Any]] = facts.get("end")
        self.recorded = bool(facts.get("recorded"))
        self._stuck = [processes.identity_from_json(stuck) for stuck in facts.get("stuck") or ()]  # see tool.stuck
        self.group = of_record(facts.get("group"))
        self.proof = processes.Proof(self.group, subreaper=bool(roots), spare=self._spare)

    def _spare(self) -> List[int]:
        return processes.filter_alive(*(who for who in (self.supervisor, *self._stuck) if who is not None))

    def members(self) -> Dict[int, proc.Stat]:
        return processes.find_members(self.cookie, self.roots, [*self.roots, *self._spare()], self.known, self.group)


def wait_until_gone(
    listener: SupervisorPipe, supervisor: Optional[processes.ProcessId], look: Callable[[], None], lease: Lease
) -> Optional[str]:
    """Wait until the supervisor is gone; return the detail for the run's cause, or ``None``.

    A supervisor is killed if its loop is stuck, or if processes of the job outlive their lease. ``look`` is called
    about once a second.
    """
    pause = GUARDIAN_LOOK_S
    while listener.listen(pause):
        left = lease.remaining() + LEASE_OVER_S
        overdue = left <= 0 and not listener.facts.get("ended")
        if (overdue or listener.is_stuck()) and supervisor is not None:
            processes.send(supervisor, 9)
            how = "had not ended the ranks when their lease was over" if overdue else listener.describe_stuck()
            return "the supervisor %s and was killed; the processes that it left were killed" % how
        pause = min(GUARDIAN_LOOK_S, left) if left > 0 else GUARDIAN_LOOK_S
        look()
    died = listener.facts.get("died")
    return "the supervisor failed (%s); the processes that it left were killed" % died if died else None


def leave_slots(listener: SupervisorPipe, slots: Dict[str, Any]) -> None:
    """Leave the slots once the supervisor has left them: the run has ended on this node."""
    if listener.facts.get("left"):
        claims.leave(slots, over=False)


def clean_up(paths: RunPaths, left: Leftovers, detail: Optional[str] = None) -> None:
    """End the processes that are left, then write the exit record unless the supervisor has written it.

    Both steps are retried without limit: a lack of memory, descriptors or disk may pass.
    """
    stopper, pause = None, 0.1
    while stopper is None:
        try:
            stopper = run_to_end(Stopper(left.members, left.launcher, left.grace, proof=left.proof), reap)
        except Exception as error:
            notes.note(notes.trace(error))
            time.sleep(pause)
            pause = min(CLEAN_UP_PAUSE_S, pause * 2)
    ended = stopper
    if left.group is not None:
        left.group.remove()
    writer = record.ExitWriter(paths)
    while not left.recorded and not writer.wrote(lambda: _exit_record(paths, left, ended, detail)):
        time.sleep(max(0.0, writer.again_at - time.monotonic()))


def _exit_record(paths: RunPaths, left: Leftovers, stopper: Stopper, detail: Optional[str]) -> Dict[str, Any]:
    """Return the exit record that the supervisor sent; without it the run is lost."""
    host = paths.host
    body = left.end or record.exit_record(record.lost(paths, host, detail))
    counts = {"signalled": stopper.signalled, "forced": stopper.forced}
    more = {name: int(body.get(name) or 0) + count for name, count in counts.items()}
    return dict(body, survivors=stopper.survivors, **more)


class ReplacementGuardian:
    """The supervisor's handle on the replacement guardian: a process that takes a dead guardian's place."""

    def __init__(self, order: RunOrder, pipe: GuardianPipe, lease: Lease) -> None:
        self._order = {name: order.get(name) for name in ("top", "attempt", "cookie", "notify", "slots")}
        self._slots: Dict[str, Any] = order["slots"]
        self._guardian_pipe, self._lease = pipe, lease
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._start_at: Optional[float] = None  # when to start a replacement; None: no guardian is missing
        self._started_at = -REPLACEMENT_PAUSE_S
        self._trouble = ""

    def take_over(self) -> None:
        """Start a replacement: the guardian, or the last replacement, is gone."""
        self._start_at = max(time.monotonic(), self._started_at + REPLACEMENT_PAUSE_S)
        self.look()

    def look(self) -> None:
        """Start the missing replacement once it is due.

        A pause lies between two starts, since a replacement may die at once.
        """
        if self._start_at is None or time.monotonic() < self._start_at:
            return
        self._started_at = time.monotonic()
        self._start_at = self._started_at + REPLACEMENT_PAUSE_S
        try:
            self._process = self._start()
        except OSError as error:
            if str(error) != self._trouble:
                notes.note("no replacement guardian: %s" % error)
            self._trouble = str(error)
        else:
            self._start_at, self._trouble = None, ""

    def _start(self) -> "subprocess.Popen[bytes]":
        lease = self._lease.for_replacement()
        own = [*([lease[GUARDIAN]] if lease else []), *self._slots["fds"]]
        process = subprocess.Popen(child.command(__name__), stdin=subprocess.PIPE, start_new_session=True, pass_fds=own)
        process.returncode = 0  # the supervisor reaps every child itself
        assert process.stdin is not None
        me = processes.identify(os.getpid())
        self._guardian_pipe.attach(process.stdin.fileno())  # its end shows that the supervisor is gone
        self._guardian_pipe.report(order=dict(self._order, lease=lease, supervisor=me.to_json() if me else None))
        return process

    def ended(self, pid: int) -> bool:
        """Forget the replacement if ``pid``, which was just reaped, is its pid; return whether it was."""
        if self._process is None or self._process.pid != pid:
            return False
        self._guardian_pipe.detach()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None
        return True

    def pids(self) -> List[int]:
        """Return the pid of the replacement, which a stop of the job spares."""
        return [self._process.pid] if self._process is not None else []


def main() -> None:
    """Run the replacement guardian's process."""
    os.umask(0o077)
    processes.set_name("ddpctl-standby")
    listener = SupervisorPipe(0)
    while "order" not in listener.facts:
        if not listener.listen(1.0):
            return
    order = listener.facts["order"]
    claims.keep_private(order["slots"])
    supervisor = processes.identity_from_json(order["supervisor"])
    known: Set[Tuple[int, int]] = set()

    def look() -> None:
        nonlocal known
        leave_slots(listener, order["slots"])
        found = None if supervisor is None else _note(order["cookie"], supervisor)
        known = known if found is None else found

    lease = Lease(order["lease"], GUARDIAN)
    detail = wait_until_gone(listener, supervisor, look, lease)
    paths = RunPaths(order["top"], order["attempt"])
    left = Leftovers(order["cookie"], sorted(known), (), supervisor, listener.facts, lease.remaining())
    clean_up(paths, left, detail)
    claims.leave(order["slots"], over=order["attempt"] is None)
    notifying.at_end(paths, order["notify"])


def _note(cookie: str, supervisor: processes.ProcessId) -> Optional[Set[Tuple[int, int]]]:
    """Return (pid, start) of each process of the run.

    ``None``: the supervisor died during the look, so its descendants may have been missed.
    """
    found = processes.find_members(cookie, [supervisor.pid], [supervisor.pid])
    return {(stat.pid, stat.start) for stat in found.values()} if processes.is_alive(supervisor) else None
