"""The supervisor: starts the launcher, empties its pipes, watches, stops, and writes down how it ended.

One loop in the main thread (the kernel's death signal follows the thread that spawned the launcher); the log writer
and the gang have threads of their own, so neither a slow disk nor a slow network holds up the ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import time
from typing import Any, Dict, List, Optional

from ddpctl_worker import cause as causes
from ddpctl_worker import outcome as outcomes
from ddpctl_worker import processes, ranks, record, spawn
from ddpctl_worker.contract import FAILED, RUNNING, STARTING, STOPPING
from ddpctl_worker.council import VICTIMS_S
from ddpctl_worker.deputy import Deputy
from ddpctl_worker.drain import Drain
from ddpctl_worker.faults import Faults
from ddpctl_worker.footing import Footing
from ddpctl_worker.gang import Gang, join
from ddpctl_worker.lines import STDERR, STDOUT
from ddpctl_worker.logs import Writer
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.roster import Roster
from ddpctl_worker.stopper import TICK_S, Stopper, reap
from ddpctl_worker.watch import Watch

LEFTOVER_S = 10.0  # what a launcher that has ended left running may go on for so long, unless the job says otherwise
LEFTOVER_GRACE_S = 3.0  # and then has this from SIGTERM to SIGKILL
LAUNCHER_S = 1.0  # how long a launcher may take to tell of a rank that has failed
VERDICT_S = 12.0  # how long a node that failed waits for the gang to agree on the cause
SCAN_STARTING_S, SCAN_RUNNING_S = 0.2, 3.0


class Supervisor:
    """One run on this node, from the launcher's start to the exit record."""

    def __init__(self, order: Dict[str, Any], guardian: processes.Identity, guardian_fd: int) -> None:
        self.order, self.run = order, order["run"]
        self.host: str = self.run["host"]
        self.paths = RunPaths(order["node"])
        self.guardian = guardian
        self.state = STARTING
        self.launcher: Optional[processes.Identity] = None
        self.status: Optional[int] = None  # wait status of the launcher once it has ended
        self.outcome: Optional[Outcome] = None
        self.candidate: Optional[Outcome] = None  # this node's own view, until the gang has agreed
        self._candidate_until = 0.0
        self._stopper: Optional[Stopper] = None
        self._scan_at = 0.0
        self._leftover: Optional[float] = None  # seconds for what outlived the launcher, once that has ended by itself
        self._unsaved = False  # the disk was full when the state changed
        self._started = record.now_iso()
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._orders = {signal.SIGUSR1: False, signal.SIGTERM: False}
        self._at = record.boottime()
        self._oom = ranks.OomHistory()
        self._found: List[causes.Verdict] = []  # what had failed here when this node began to stop
        self._closer_at = 0.0
        heartbeat = record.Heartbeat(self.paths.heartbeat)
        self._writer = Writer(self.paths.logs, lambda: heartbeat.beat(self._pulse()))
        self._roster = Roster(self.run, self._watch_fd)
        self._drain = Drain(self._writer, self._rank_of, self._watch_fd)
        self._deputy = Deputy(order, guardian_fd)
        self._watch = Watch(self.run)
        self._footing = Footing(self.paths, self.host)
        self._gang: Optional[Gang] = None

    def start(self) -> Optional[str]:
        """Spawn the launcher; returns None, or why it could not be."""
        self._catch_signals()
        self._orders[signal.SIGUSR1] = os.path.exists(self.paths.stop)  # asked for before anybody could be told
        processes.become_subreaper()
        for fd in (self._wake_r, self._deputy.guardian_fd):
            self._watch_fd(fd, True)
        refused: Optional[str] = self.order.get("refused")
        me = processes.identify(os.getpid())
        try:
            if not record.write_once(self.paths.claim, me.to_json() if me else {}, durable=False):
                raise SystemExit("the start of this run took too long and was given up")
        except OSError as full:
            refused = refused or "the run cannot be claimed: %s" % (full.strerror or full)
        if refused is None:
            refused = self._spawn()
        try:
            self._save_state()
        except OSError as full:  # a run that cannot be found again must not go on
            refused = refused or "the run's state cannot be written: %s" % (full.strerror or full)
        self._writer.start()
        self._gang = join(self.run, self.order.get("gang_key"), self._wake)
        if refused is not None:
            self._fail_to_spawn(refused)
        return refused

    def _spawn(self) -> Optional[str]:
        oom_score = spawn.protect_from_oom()
        if self.order.get("shim"):
            for local in range(int(self.run["nproc"])):
                self._drain.add(spawn.open_fifo(self.paths.fifo(local, "out")), local, STDOUT)
                self._drain.add(spawn.open_fifo(self.paths.fifo(local, "err")), local, STDERR)
        prepare = spawn.BeforeExec(oom_score, int(self.order["umask"]))
        try:
            child = spawn.spawn(self.order["argv"], self.order["cwd"], self.order["env"], prepare)
        except OSError as error:
            return "cannot start %s: %s" % (self.order["argv"][0], error.strerror or error)
        self.launcher = processes.identify(child.pid)
        self._drain.add(child.out, None, STDOUT)
        self._drain.add(child.err, None, STDERR)
        return None

    def _fail_to_spawn(self, why: str) -> None:
        found = outcomes.failed(outcomes.cause(self.host, "spawn_failed", why))
        self.outcome = found
        if self._gang:
            self._gang.down(found)
        if self.launcher is None:  # otherwise that is written once nothing is left of it
            self._writer.close()
            outcomes.write(self.paths, found)

    def _catch_signals(self) -> None:
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        for number in self._orders:
            signal.signal(number, lambda number, _: self._orders.__setitem__(signal.Signals(number), True))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def supervise(self) -> None:
        """Until the launcher has ended, nothing of it is left, and that is written down; then leave the gang."""
        if self.launcher is not None:
            faults = Faults()
            while not self._over():
                faults.survive(self._turn)
        try:
            if self.launcher is not None:
                self._conclude()
        finally:  # the other nodes need not suffer for a disk that takes no record
            if self._gang and self.outcome:
                self._gang.leave(self.outcome)
            processes.send(self.guardian, signal.SIGCONT)  # stopped by somebody, it would stay for ever

    def _turn(self) -> None:
        self._wait()
        self._collect()
        self._look()
        self._decide()

    def _over(self) -> bool:
        if self.outcome is None or self._stopper is None or not self._stopper.done:
            return False
        return self.status is not None or bool(self._stopper.survivors)

    def _wait(self) -> None:
        now = time.monotonic()
        due = [now + 1.0, self._scan_at]
        flush = self._drain.due()
        if flush is not None:
            due.append(flush)
        if self._stopper is not None:
            due.append(now + TICK_S)
        for key, _ in self._selector.select(max(0.0, min(due) - now)):
            if key.fd == self._wake_r:
                self._empty_wake_pipe()
            elif key.fd == self._deputy.guardian_fd:
                self._watch_fd(key.fd, False)
                self._deputy.take_over()
            elif self._roster.owns(key.fd):
                self._roster.ended(key.fd)
            else:
                self._drain.ready(key.fd)
        self._drain.flush()
        self._at = record.boottime()

    def _collect(self) -> None:
        """Reap; note how the launcher ended."""
        ended = reap()
        if self.launcher is not None and self.status is None:
            self.status = ended.get(self.launcher.pid)
        if any(self._deputy.ended(pid) for pid in ended):
            self._deputy.take_over()

    def _look(self) -> None:
        """See which ranks are there, once in a while."""
        now = time.monotonic()
        self._roster.look()
        self._deputy.look()
        self._oom.look()
        if now < self._scan_at or self.launcher is None:
            return
        self._scan_at = now + (SCAN_STARTING_S if self.state == STARTING else SCAN_RUNNING_S)
        if self.status is not None:
            return
        self._roster.scan(self.launcher.pid)
        if self._roster.any and self.state == STARTING:
            self.state, self._unsaved = RUNNING, True
        if self._unsaved:
            self._save_state()
        if self.state != STARTING:
            self._roster.save(self.paths, [os.getpid(), *self._deputy.pids()])

    def _decide(self) -> None:
        """What must end, and why."""
        self._take_orders()
        lost = self._footing.lost() if self.outcome is None else None
        if lost is not None:
            self._end_with(lost)
        if self.status is not None and self.outcome is None and self.candidate is None:
            self._launcher_ended()
        if self.outcome is None and self.candidate is None:
            self._rank_failed()
        self._look_closer()
        if self.outcome is None and self.candidate is None:
            self._check_deadlines()
        self._agree()
        if self.outcome is not None or self.status is not None:
            self._begin_stop()
        if self._stopper is not None:
            self._stopper.tick()
        if self._gang:
            self._gang.beat(self._drain.last_output or None)

    def _take_orders(self) -> None:
        if self._orders[signal.SIGTERM]:
            self._orders[signal.SIGTERM] = False
            if self.outcome is None:
                text = "the supervisor was told to end by SIGTERM: is the machine shutting down?"
                self._propose(outcomes.failed(outcomes.cause(self.host, "signaled", text, signal="SIGTERM")))
        if not self._orders[signal.SIGUSR1]:
            return
        self._orders[signal.SIGUSR1] = False
        request = record.read_optional(self.paths.stop)  # nothing: a disk that took no word, so the signal alone
        if self.outcome is None and (self.candidate is None or self.candidate.victim):
            self._end_with(outcomes.killed(self.host, str(request.get("by") or "")))
        elif self.outcome is None:
            self.outcome = self.candidate  # it had failed before; whoever stops it need not wait for the others' word
        grace = request.get("grace")
        self._begin_stop(None if grace is None else float(grace))
        if self._stopper is not None and grace is not None:
            self._stopper.shorten(float(grace))

    def _end_with(self, outcome: Outcome) -> None:
        """That is how it ends, whatever the other nodes think; they are told."""
        self.outcome = outcome
        if self._gang:
            self._gang.down(outcome)

    def _launcher_ended(self) -> None:
        assert self.status is not None
        if self.status == 0:
            self.outcome = outcomes.succeeded()
            return
        self._drain.finish(1.0)
        self._blame(self.status)

    def _rank_failed(self) -> None:
        """A rank has died, and its launcher takes its time to say so (torch before 2.1 may take minutes)."""
        since = self._roster.first_failure()
        if since is not None and time.monotonic() - since > LAUNCHER_S:
            self._drain.finish(1.0)
            self._blame(None)

    def _blame(self, status: Optional[int]) -> None:
        """Find out what happened here and propose it as the cause."""
        found = self._candidates(status)
        if found:
            self._propose(self._outcome_of(found[0]))

    def _look_closer(self) -> None:
        """While victims are all that is known of: a rank here may have failed and be slow to die, or hang in its exit
        (once a second)."""
        now = time.monotonic()
        asked = self._gang is not None and self._gang.asked and self.candidate is None
        victim = self.candidate is not None and self.candidate.victim
        if self.outcome or self._stopper or now < self._closer_at or not (asked or victim):
            return
        self._closer_at = now + 1.0
        first = next(iter(self._candidates(None)), None)
        if first is None or first.victim:
            return
        if first.code is None:
            self._propose(self._outcome_of(first))
        elif victim:  # otherwise a death is told of as ever
            self._drain.finish(1.0)
            self._blame(None)

    def _candidates(self, status: Optional[int]) -> List[causes.Verdict]:
        """What may have failed here, the likeliest first."""
        error_file = None
        with contextlib.suppress(Exception):  # torch's own file, written by the job: anything may be in it
            error_file = record.read_json(self.paths.error_file)
        seen = causes.Evidence(
            status,
            self._drain.tails(),
            self._roster.numbers(),
            error_file,
            time.time(),
            self._oom.rises(),
            {local: (death.status, death.at) for local, death in self._roster.deaths.items()},
            self._roster.of_now(self._drain.tracebacks()),
            self._drain.said(),
        )
        return causes.candidates(seen)

    def _outcome_of(self, told: causes.Verdict) -> Outcome:
        when = told.when or time.time()
        why = outcomes.cause(
            self.host,
            told.reason,
            told.message,
            rank=told.rank,
            exit_code=told.exit_code,
            signal=told.signal,
            traceback=told.traceback,
            when=when,
        )
        return outcomes.failed(why, victim=told.victim, when=when, suspect=told.suspect)

    def _check_deadlines(self) -> None:
        found = self._watch.overdue(self._roster.any, self._drain.last_output, self._gang)
        if found is not None:
            self._propose(found)

    def _propose(self, candidate: Outcome) -> None:
        """This node's view of a failure; with a gang all nodes agree on one cause first."""
        self.candidate = candidate
        self._candidate_until = time.monotonic() + VERDICT_S
        if self._gang:
            self._gang.down(candidate)

    def _agree(self) -> None:
        if self.outcome is not None:
            return
        verdict = self._gang.verdict if self._gang else None
        if verdict is not None:
            self.outcome = verdict
        elif self.candidate is not None and time.monotonic() >= self._candidate_until + self._patience():
            self.outcome = self.candidate

    def _patience(self) -> float:
        """How much longer than VERDICT_S there may be something to wait for."""
        if self._gang is not None:
            return self._gang.patience()
        alone = self.candidate is not None and self.candidate.victim and self.status is None
        return VICTIMS_S - VERDICT_S if alone else -math.inf

    def _begin_stop(self, grace: Optional[float] = None) -> None:
        if self._stopper is not None:
            return
        limits, patience = self.run.get("timeouts") or {}, 0.0
        if grace is None:
            grace = float(limits.get("stop") or 10.0)
            if self.status is not None:
                self._leftover = float(limits.get("leftover", LEFTOVER_S))
                patience = self._leftover if self.status == 0 else 0.0
                grace = min(grace, LEFTOVER_GRACE_S if patience else self._leftover)
        if self.outcome is None or self.outcome.state == FAILED:
            self._found = self._candidates(self.status)  # before its own signals blur it
        self._stopper = Stopper(self._members, self.launcher, grace, had_ranks=self._roster.any, patience=patience)
        if self.status is None:
            self.state = STOPPING
            self._save_state()

    def _members(self) -> Dict[int, processes.Stat]:
        keep = [os.getpid(), *processes.living(self.guardian), *self._deputy.pids()]
        return processes.members(self.order["cookie"], [os.getpid()], keep)

    def _conclude(self) -> None:
        """All is over: empty the pipes, close the log, write the exit record."""
        assert self.outcome is not None
        assert self._stopper is not None
        self._drain.finish()
        self._writer.close()
        leftover = self._stopper.signalled if self._leftover is not None else 0
        if leftover:
            text = "%d processes that outlived the launcher were ended; timeouts.leftover gives them %g s"
            record.note(text % (leftover, self._leftover or 0.0))
        why = [self._outcome_of(one).cause or {} for one in self._found] + (
            self._gang.candidates() if self._gang else []
        )
        outcomes.write(
            self.paths,
            self.outcome,
            exit_code=self._exit_code(),
            candidates=outcomes.others(self.outcome.cause, why) if self.outcome.state == FAILED else (),
            leftover=leftover,
            signalled=self._stopper.signalled,
            forced=self._stopper.forced,
            survivors=self._stopper.survivors,
            attempt=self._roster.attempt(),
            dropped_lines=self._writer.dropped,
        )

    def _exit_code(self) -> Optional[int]:
        """That of the rank that failed here; otherwise the launcher's. Negative for a signal."""
        assert self.outcome is not None
        if self.outcome.state == FAILED:
            for one in self._found:
                if one.rank is not None and one.code is not None:
                    return one.code
        return None if self.status is None else causes.code_of(self.status)

    def _pulse(self) -> record.Pulse:
        return record.Pulse(self._at, self._drain.last_output, self._writer.dropped, self._roster.attempt())

    def _rank_of(self, local: int) -> Optional[int]:
        """The rank behind a pipe; under an elastic rendezvous only the rank's own environment tells."""
        if self._roster.rank_of(local) is None and self.launcher is not None and self.status is None:
            self._roster.scan(self.launcher.pid)
        return self._roster.rank_of(local)

    def _save_state(self) -> None:
        me = processes.identify(os.getpid())
        value = {
            "state": self.state,
            "started": self._started,
            "boot": processes.boot_id(),
            "machine": processes.machine(),
            "supervisor": me.to_json() if me else None,
            "guardian": self.guardian.to_json(),
            "launcher": self.launcher.to_json() if self.launcher else None,
            "cookie": self.order["cookie"],
            "cwd": self.order["cwd"],
        }
        try:
            record.write_json(self.paths.state, value)
            self._unsaved = False
        except OSError as error:
            if self.state == STARTING:
                raise
            record.note("state not saved: %s" % error)
            self._unsaved = True

    def _watch_fd(self, fd: int, on: bool) -> None:
        if on:
            self._selector.register(fd, selectors.EVENT_READ)
        else:
            self._selector.unregister(fd)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"\0")

    def _empty_wake_pipe(self) -> None:
        try:
            while os.read(self._wake_r, 4096):
                pass
        except BlockingIOError:
            pass
