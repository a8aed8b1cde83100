"""The supervisor: starts the launcher, watches the ranks, decides, signals, reaps.

The loop runs in the main thread: the kernel's death signal follows the thread that spawned the launcher. Once the
launcher runs, the loop touches no disk and no network. Each of these tasks has a thread of its own: the drain empties
the pipes, the log writer and the record writer write the files, the gang talks to the other hosts. So neither a slow
disk nor a slow network delays a rank or a decision.
"""

from __future__ import annotations

import os
import signal
import time
from threading import Thread
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ddpctl_worker.gang import join
from ddpctl_worker.machine import notes, proc, processes, tool
from ddpctl_worker.machine.strangers import TALLY
from ddpctl_worker.machine.wakeup import STOP, UNIT_STOP, SignalSender, Wakeup
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.logs import Writer
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.run import shutdown
from ddpctl_worker.run.after import AfterCommand
from ddpctl_worker.run.cleanup import GuardianPipe, ReplacementGuardian
from ddpctl_worker.run.conclusion import Conclusion
from ddpctl_worker.run.deadlines import Deadlines
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.ending import Ending
from ddpctl_worker.run.findings import Findings
from ddpctl_worker.run.keeping import KeeperHandle
from ddpctl_worker.run.launcher import Launching, has_way_in
from ddpctl_worker.run.lease import SUPERVISOR, Lease
from ddpctl_worker.run.limits import (
    LEASED_GRACE_S,
    SCAN_RUNNING_S,
    SCAN_STARTING_S,
    SCOPE_GRACE_S,
    TICK_S,
)
from ddpctl_worker.run.order import RunOrder
from ddpctl_worker.run.recorder import Look, Recorder
from ddpctl_worker.run.saving import Saving
from ddpctl_worker.run.stopper import reap
from ddpctl_worker.run.termination import Termination
from ddpctl_worker.slots import claims
from ddpctl_worker.wire.contract import (
    ENV_CHECKPOINT_DIR,
    EXITED,
    FAILED,
    NODE_LOST,
    RUNNING,
    SPAWN_FAILED,
    STARTING,
    STOPPING,
    SUCCEEDED,
)

if TYPE_CHECKING:
    from ddpctl_worker.run.observer import Observer

ONLY_OUTSIDE = (
    "doctor: the ranks here are only seen from outside, without their collectives: %s is on a disk that is full or "
    "mounted noexec, or has a colon in its name; set `base_dir:` to another place"
)
CUT_OFF = "%(host)s does not reach enough of the run's hosts any more, which may continue without it"
AGENT_GONE = (
    "ddpctl's agent on %(host)s has ended, and the other hosts may continue without it; was it killed, for lack of "
    "memory say (see dmesg there)? this run uses the host no more; `ddpctl restart %(job)s` does once the run has ended"
)
Reply = Callable[[Optional[str]], None]


class Supervisor:
    """One run on this node, from the launcher's start to the exit record.

    ``reply`` is called once: with ``None`` when the run is on record, or with the reason why it could not be started.
    """

    def __init__(self, order: RunOrder, guardian: processes.ProcessId, guardian_fd: int, reply: Reply) -> None:
        self.order, self.run = order, order["run"]
        self.host: str = self.run["host"]
        self.paths = RunPaths(order["top"], order.get("attempt"))
        self.guardian = guardian
        self.state = STARTING
        self.status: Optional[int] = None  # wait status of the launcher once it has ended
        self._reply: Optional[Reply] = reply
        self._stop_look: Optional[Look] = None
        self._scan_at = 0.0
        self._started = notes.now_iso()
        self._wakeup = Wakeup()
        self._launching = Launching(order, self.paths, guardian)
        self._at = notes.boottime()
        self._guardian_fd = guardian_fd
        self._guardian_pipe = GuardianPipe(guardian_fd)
        self._recorder = Recorder(self.paths, self.host, self._heartbeat, self._wakeup.wake)
        self._writer = Writer(self.paths.logs, resume=(self.paths.attempt or 1) > 1)
        self._roster = Roster(self.run, self._wakeup.watch)
        self._drain = Drain(self._writer, self._rank_of, self._wakeup.wake, record.attempt_of(self.run))
        self._findings = Findings(self.run, self._drain, self._roster, self._recorder)
        self._lease = Lease(order.get("lease"), SUPERVISOR)
        self._replacement = ReplacementGuardian(order, self._guardian_pipe, self._lease)
        self._keeping = KeeperHandle(order["keeper"], order["top"])
        self._termination = Termination(self.run, order["cookie"], self._launching, self._roster, guardian, self._spare)
        self._after = AfterCommand(order, self._termination)
        self._deadlines = Deadlines(self.run)
        self._gang = join(self.run, self.order.get("gang_key"), self._wakeup.wake)
        folder = order["env"].get(ENV_CHECKPOINT_DIR)
        self._saving = Saving(self.run, folder, self._roster, self._gang, self._wakeup.wake)
        self._conclusion = Conclusion(
            self._guardian_pipe,
            self._findings,
            self._roster,
            self._termination,
            self._drain,
            self._writer,
            self._recorder,
            self._keeping,
            self._gang,
            self._after,
        )
        self._ended_by: Optional[Outcome] = None  # set by a SIGTERM from outside; the ranks save first
        self._ending = Ending(self.host, self._findings, self._gang, self._tell_outcome, hung=self._hung)
        self._observer: Optional[Observer] = None
        self._stuck: List[int] = []  # programs that cannot be killed, as last sent to the guardian

    def start(self) -> None:
        """Spawn the launcher, and start the threads that read its output."""
        self._wakeup.catch_signals()
        processes.become_subreaper()
        self._wakeup.watch(self._guardian_fd, True)
        refused: Optional[str] = self.order.get("refused")
        try:
            self._launching.claim()
        except OSError as full:
            refused = refused or "the run cannot be claimed: %s" % (full.strerror or full)
        # If this process was delayed, another attempt may run elsewhere by now.
        if refused is None and not self._lease.is_over() and not self._stop_asked():
            refused = self._launching.start(self._drain)
            self._keeping.start()
            self._stop_asked()  # a stop in the meantime found no supervisor to signal
        grace = self._termination.grace_seconds
        if self.paths.attempt is not None:
            grace = min(grace, LEASED_GRACE_S)
        self._guardian_pipe.report(**self._launching.names(), grace=grace)
        notes.send_notes(self._recorder.note)
        self._after.prepare(self._drain)
        self._drain.start()
        self._writer.start()
        self._save_state()
        self._recorder.start()
        if self._gang:
            self._gang.start()
            TALLY.start(self.paths.strangers("supervisor"))
        if refused is not None:
            self._refuse(refused)

    @property
    def launcher(self) -> Optional[processes.ProcessId]:
        return self._launching.launcher

    @property
    def outcome(self) -> Optional[Outcome]:
        return self._ending.outcome

    def _stop_asked(self) -> bool:
        """Return whether the file of a stop is there; the loop then obeys it."""
        asked = os.path.lexists(self.paths.stop)
        if asked:
            self._wakeup.ask(STOP)
        return asked

    def _refuse(self, why: str) -> None:
        if self.outcome is None:
            self._ending.end_with(outcomes.failed(outcomes.cause(self.host, SPAWN_FAILED, why)))
        self._answer(why)

    def _answer(self, refused: Optional[str]) -> None:
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply(refused)

    def note_death(self, why: BaseException) -> None:
        """Report the fault that ends this process."""
        self._guardian_pipe.report(died=repr(why))  # first: the disk of supervisor.log may hang
        notes.send_notes(None)
        notes.note(notes.trace(why))

    def supervise(self) -> None:
        """Run the loop until no process of the job is left, the exit record is written, and the gang knows the end."""
        faults = notes.Faults()
        while not self._conclusion.over:
            faults.survive(self._turn)
        notes.send_notes(None)
        self._guardian_pipe.report(recorded=True)
        self._tell_stuck([*tool.started_tools(), *self._keeping.stuck()])
        self._launching.leave_group()
        self._answer(None)
        processes.send(self.guardian, signal.SIGCONT)  # a stopped guardian would stay forever

    def _turn(self) -> None:
        self._wait()
        self._collect()
        self._stand()
        self._keeping.report_death(self._roster.find_first_death(), self._roster.restarted())
        if self._over():
            self._conclude()
        else:
            self._look()
            self._decide()
        if self._gang:
            self._gang.note_turn(self._drain.last_output or None, self._roster.living())
            self._keeping.listen()
            self._gang.serve_checkpoints(self._keeping.port)
            self._keeping.connect_replicas(self._gang.servers)
        self._tell_stuck([*tool.stuck(), *self._keeping.stuck()])
        if self._recorder.ended and self.paths.attempt is None:
            self._leave_slots()
        self._guardian_pipe.beat()

    def _conclude(self) -> None:
        assert self.outcome is not None
        if self._after.running and (self._wakeup.asked(STOP) or self._shutdown_sender()):
            self._after.stop()
        self._conclusion.take_step(self.outcome, self.status, self._observer)
        if self._after.running and self.state != STOPPING:
            self.state = STOPPING
            self._save_state()
        if self._after.failure is not None and self.outcome.state == SUCCEEDED:
            self._ending.settle(self._after.failure)

    def _leave_slots(self) -> None:
        """Free the slots. No process of the job is left, while this process may still wait for a lost node."""
        if self.order["slots"]["fds"]:
            claims.leave(self.order["slots"], over=True)
            self._guardian_pipe.report(left=True)

    def _over(self) -> bool:
        """Return whether no process of the job is left, and the outcome is known."""
        if self.launcher is None:
            return self.outcome is not None
        if self.outcome is None or not self._termination.done:
            return False
        return self.status is not None or bool(self._termination.survivors)

    def _wait(self) -> None:
        now = time.monotonic()
        due = [now + min(1.0, max(TICK_S, self._lease.remaining()))]
        if not self._over():
            due.append(self._scan_at)
        if self.outcome is not None or self._termination.begun:
            due.append(now + TICK_S)
        for fd in self._wakeup.wait(min(due) - now):
            if fd == self._guardian_fd:
                self._wakeup.watch(fd, False)
                self._replacement.take_over()
            elif self._roster.owns(fd):
                self._roster.ended(fd)
                self._termination.rank_ended()
        self._at = notes.boottime()

    def _collect(self) -> None:
        """Note how the launcher ended before reaping it: so the guardian knows the end before the launcher is gone."""
        if self.launcher is not None and self.status is None:
            self.status = processes.has_ended(self.launcher.pid)
            if self.status == 0 and self._ending.known is None:
                self._ending.settle(Outcome(SUCCEEDED, None))
        ended = reap()
        for pid in ended:
            if self._keeping.ended(pid):
                self._save_state()
            self._after.note_ended(pid, ended[pid])
        if self.launcher is not None and self.status is None:
            self.status = ended.get(self.launcher.pid)
        if any(self._replacement.ended(pid) for pid in ended):
            self._replacement.take_over()

    def _look(self) -> None:
        """Watch ranks and the replacement guardian at each turn, and scan all processes every few seconds."""
        now = time.monotonic()
        self._roster.look()
        self._replacement.look()
        self._findings.watch()
        if now < self._scan_at or self.launcher is None:
            return
        self._scan_at = now + (SCAN_RUNNING_S if self._roster.all_started else SCAN_STARTING_S)
        if self.status is not None:
            return
        self._roster.scan(self.launcher.pid)
        if self._roster.any and self.state == STARTING:
            self.state = RUNNING
            self._save_state()
            Thread(target=self._observe, name="observe", daemon=True).start()
        if self.state != STARTING:
            listed = self._roster.changed([os.getpid(), *self._spare()])
            if listed is not None:
                self._recorder.put(self.paths.processes, listed, durable=False)

    def _observe(self) -> None:
        """Begin to watch GPUs and ranks. Runs in a thread: the imports read from a disk for 20 ms."""
        try:
            from ddpctl_worker.run.gpuwatch import GpuWatch

            gpus = GpuWatch(self.run["run"], self._save_gpus)
            gpus.start()
            if not self.run.get("doctor"):
                return
            from ddpctl_worker.run.observer import Observer

            if not has_way_in(self.paths):
                notes.note(ONLY_OUTSIDE % self.paths.node)
            parts = (self._roster, self._drain, self._recorder, self._gang, self._wakeup.wake)
            observer = Observer(self.order, self.paths, *parts, gpus=lambda: gpus.newest)
            observer.start()
            self._observer = observer
        except Exception as error:
            notes.note("doctor and GPUs: %s" % notes.trace(error))

    def _save_gpus(self, value: Dict[str, Any]) -> None:
        self._recorder.put(self.paths.gpus, value, durable=False)

    def _decide(self) -> None:
        self._take_orders()
        if self._lease.is_over():
            self._end_at_once()
        if self.outcome is None and self._recorder.lost is not None:
            self._ending.end_with(self._recorder.lost)
        self._ending.look(self.status, self._termination.begun, self._overdue)
        if self.outcome is not None or (self.status is not None and self._ending.candidate is not None):
            self._begin_stop()  # after the cause is known: ranks that are signalled earlier would be taken for it
        self._termination.look()

    def _stand(self) -> None:
        """Answer the start once the run's state is on the disk. A run that no command can find must not continue."""
        trouble = self._recorder.wrote.get(self.paths.state)
        if self._reply is None or trouble is None:
            return
        if trouble:
            self._refuse("the run's state cannot be written: %s" % trouble)
        else:
            self._answer(None)

    def _take_orders(self) -> None:
        sender = self._shutdown_sender()
        if sender is not None and self._ended_by is None:
            self._saving.begin()
            self._ended_by = outcomes.failed(shutdown.find_cause(self.host, sender))
            self._ending.blame(self._ended_by)
        if self._ended_by is not None and self._saving.over and self._ending.known is None:
            self._ending.propose(self._ended_by)
        if self._wakeup.asked(STOP):
            self._stop_look = self._recorder.look()
        if self._stop_look is not None and self._stop_look.over:
            request, self._stop_look = self._stop_look.stop, None
            self._obey(request)

    def _shutdown_sender(self) -> Optional[SignalSender]:
        """Return the sender of a signal that asks for the run's end, if there is a new signal."""
        sender = self._wakeup.shutdown_sender()
        if sender is None or not shutdown.asks_to_end(sender):
            return None
        if sender.number == UNIT_STOP:  # systemd kills the rest after SCOPE_STOP_S
            self._termination.ask_grace(min(self._termination.asked_seconds, SCOPE_GRACE_S))
            self._termination.shorten(SCOPE_GRACE_S)
            self._conclusion.hurry()
        return sender

    def _obey(self, request: Dict[str, Any]) -> None:
        """Stop as ``request`` says. It is empty if the disk took no file: then the signal alone asks for a stop."""
        self._ending.obey(str(request.get("by") or ""))
        grace = request.get("grace")
        self._termination.ask_grace(None if grace is None else float(grace))
        self._begin_stop()
        if grace is not None:
            allowed = self._termination.allow if request.get("longer") else self._termination.shorten
            allowed(float(grace))

    def _end_at_once(self) -> None:
        """Kill without grace: the other hosts may start the ranks of the next attempt from now on."""
        if self.outcome is None:
            text = AGENT_GONE if self._lease.abandoned else CUT_OFF
            why = text % {"host": self.host, "job": self.run["job"]}
            self._ending.end_with(outcomes.failed(outcomes.cause(self.host, NODE_LOST, why)))
        self._termination.ask_grace(0.0)
        self._begin_stop()
        self._termination.shorten(0.0)

    def _overdue(self) -> Optional[Outcome]:
        diagnosis = self._observer.diagnosis if self._observer else None
        return self._deadlines.overdue(self._roster, self._drain.last_output, self._gang, diagnosis)

    def _hung(self, known: Optional[Outcome]) -> Optional[Outcome]:
        """Return the failure of the rank that the other ranks waited for until they timed out, as the doctor saw it."""
        causes = [*(self._gang.candidates() if self._gang else []), *([known.cause or {}] if known else [])]
        found = self._observer.hung(causes) if self._observer else None
        if found is None:
            return None
        return outcomes.failed(outcomes.cause(found.host, EXITED, found.message, rank=found.rank), suspect=True)

    def _begin_stop(self) -> None:
        if self._termination.begun:
            return
        succeeded = self.outcome is not None and self.outcome.state == SUCCEEDED
        observer = None if succeeded or self._lease.is_over() else self._observer
        if observer and not observer.last_look(undecided=self.outcome is None):
            return  # asked again at the next turn
        tool.stop()
        if self.outcome is None or self.outcome.state == FAILED:
            self._findings.keep(self.status)  # before the signals of this stop add failures
        self._tell_outcome()
        self._termination.begin(self.status)
        if self.status is None:
            self.state = STOPPING
            self._save_state()

    def _spare(self) -> List[int]:
        """Return the children that are not the job's: replacement guardian, keeper, and helper programs."""
        return [*self._replacement.pids(), *self._keeping.pids(), *tool.started_tools()]

    def _tell_outcome(self) -> None:
        """Send the exit record to the guardian, which writes it if this process dies first."""
        known = self._ending.known
        if known is not None:
            self._conclusion.tell_guardian(known, self.status)

    def _tell_stuck(self, pids: List[int]) -> None:
        """Send ``pids`` to the guardian: it neither waits for these programs nor counts them among the job's."""
        if pids != self._stuck:
            self._stuck = pids
            identities = [processes.identify(pid) for pid in pids]
            self._guardian_pipe.report(stuck=[who.to_json() for who in identities if who is not None])

    def _heartbeat(self) -> record.Heartbeat:
        """Return a heartbeat with the time of the loop's last turn. Called in the record writer's thread."""
        living, attempt = self._roster.living(), self._roster.attempt()
        return record.Heartbeat(self._at, self._drain.last_output, self._writer.dropped, attempt, living)

    def _rank_of(self, local: int) -> Optional[int]:
        running = self.launcher if self.status is None else None
        return self._roster.rank_of(local, running.pid if running else None)

    def _save_state(self) -> None:
        value = {
            "state": self.state,
            "started": self._started,
            "boot": proc.boot_id(),
            "machine": proc.machine(),
            "cwd": self.order["cwd"],
            "keeper_ended": self._keeping.ended_at,
            **self._launching.names(),
        }
        self._recorder.put(self.paths.state, value)
