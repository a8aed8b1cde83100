"""What outlives a supervisor: the line along which it says that it lives, and what is done after its death.

Along the line from a supervisor to its guardian (or to the deputy that took the guardian's place) goes what no disk may
hold up: a beat for every turn of the supervisor's loop, and what a guardian must know to clean up and to write down how
the run ended. A message is one JSON object a line; an empty line is a beat.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ddpctl_worker import notes, proc
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import notifying, processes, record
from ddpctl_worker.run.cgroup import of_record
from ddpctl_worker.run.lease import GUARDIAN, Lease
from ddpctl_worker.run.stopper import Stopper, reap, run_to_end

BEAT_S = 1.0
STILL_S = 20.0  # a loop that has not turned for so long will not
UP_S = 120.0  # nor will one that has never turned, unless the run may take longer to start
NAP_S = 5.0  # a listener that comes back later than this was itself asleep: a suspended machine
GRACE_S = 10.0
LOOK_S = 1.0
OVER_S = 1.0  # what a supervisor has to end the ranks when their lease is over; it takes a tenth of that
PAUSE_S = 10.0  # at most, between two attempts to clean up
RESTART_S = 5.0
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.run.cleanup import deputy; deputy()"


class Tether:
    """The supervisor's end: never waits, never raises."""

    def __init__(self, fd: int) -> None:
        self._words: Dict[str, Any] = {}
        self.attach(fd)

    def attach(self, fd: int) -> None:
        """Somebody new is at the other end, and must know everything."""
        os.set_blocking(fd, False)
        self._fd, self._out, self._beat_at = fd, b"", 0.0
        if self._words:
            self._send(self._words)

    def tell(self, **words: Any) -> None:
        """The newest value of each word counts."""
        self._words.update(words)
        self._send(words)

    def beat(self) -> None:
        """The loop has turned."""
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._out = self._out or b"\n"  # words that wait are a beat too, once they are heard
        self._flush()

    def _send(self, words: Dict[str, Any]) -> None:
        self._out += json.dumps(words).encode("ascii") + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                self._out = self._out[os.write(self._fd, self._out) :]
        except OSError:
            pass  # full: the listener is stopped; broken: it is gone, and another one will be attached


class TetherListener:
    """The other end: ``words`` is what it was told."""

    def __init__(self, fd: int, up: float = UP_S) -> None:
        self._fd = fd
        self._rest = b""
        self._beat: Optional[float] = None
        self._begun = self._listened = time.monotonic()
        self._up = up
        self.words: Dict[str, Any] = {}

    def listen(self, timeout: float) -> bool:
        """Wait for a message at most so long; False once the supervisor has let go of its end."""
        ready = select.select([self._fd], [], [], timeout)[0]
        now = time.monotonic()
        nap, self._listened = now - self._listened - timeout, now
        if nap > NAP_S:
            self._begun += nap
            self._beat = None if self._beat is None else self._beat + nap
        if not ready:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except ConnectionResetError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._beat = now
            if line:
                self.words.update(json.loads(line))
        return bool(data)

    def stands_still(self) -> bool:
        """Whether the supervisor's loop has stopped turning, or will never begin to: it may wait for a hung disk."""
        now = time.monotonic()
        return now - self._begun > self._up if self._beat is None else now - self._beat > STILL_S

    def how_still(self) -> str:
        if self._beat is not None:
            return "was stuck for %d s" % STILL_S
        return "could not start the launcher within %g s (is its folder or its Python on a disk that hangs?)" % (
            self._up
        )


class Leftovers:
    """How to find and end what a dead supervisor left: by cookie and by what was known of it; ``words`` are what it
    told its guardian. No disk is asked. ``lease``: for how many seconds they may still run.

    The supervisor itself may still be there: a process with a thread that waits for a hung disk cannot end.
    """

    def __init__(
        self,
        cookie: str,
        known: Sequence[Sequence[int]],
        roots: Sequence[int],
        supervisor: Optional[processes.ProcessId],
        words: Dict[str, Any],
        lease: float = GRACE_S,
    ) -> None:
        self.cookie, self.known, self.roots, self.supervisor = cookie, known, roots, supervisor
        self.launcher = processes.from_json(words.get("launcher"))
        self.grace = min(float(words.get("grace", GRACE_S)), GRACE_S, max(0.0, lease))
        self.end: Optional[Dict[str, Any]] = words.get("end")
        self.recorded = bool(words.get("recorded"))
        self._stuck = [processes.from_json(one) for one in words.get("stuck") or ()]  # not the job's: tool.py
        self.group = of_record(words.get("group"))
        self.proof = processes.Proof(self.group, subreaper=bool(roots), spare=self._spare)

    def _spare(self) -> List[int]:
        return processes.living(*(one for one in (self.supervisor, *self._stuck) if one is not None))

    def members(self) -> Dict[int, proc.Stat]:
        return processes.members(self.cookie, self.roots, [*self.roots, *self._spare()], self.known, self.group)


def wait_until_gone(
    listener: TetherListener, supervisor: Optional[processes.ProcessId], look: Callable[[], None], lease: Lease
) -> Optional[str]:
    """Until the supervisor is gone; one whose loop is stuck is killed, and one that has not ended all processes of the
    job by the end of their lease. Returns what to say of its end."""
    pause = LOOK_S
    while listener.listen(pause):
        left = lease.left() + OVER_S
        overdue = left <= 0 and not listener.words.get("ended")
        if (overdue or listener.stands_still()) and supervisor is not None:
            processes.send(supervisor, 9)
            how = "had not ended the ranks when their lease was over" if overdue else listener.how_still()
            return "the supervisor %s and was killed; the processes that it left were killed" % how
        pause = min(LOOK_S, left) if left > 0 else LOOK_S
        look()
    died = listener.words.get("died")
    return "the supervisor failed (%s); the processes that it left were killed" % died if died else None


def clean_up(paths: RunPaths, left: Leftovers, detail: Optional[str] = None) -> None:
    """After the supervisor's end: end whatever is left, and write the exit record unless the supervisor did.

    A fault that may pass (no memory, no descriptors, a disk that is away) ends neither: each is tried until it is done.
    """
    stopper, pause = None, 0.1
    while stopper is None:
        try:
            stopper = run_to_end(Stopper(left.members, left.launcher, left.grace, proof=left.proof), reap)
        except Exception as error:
            notes.note(notes.trace(error))
            time.sleep(pause)
            pause = min(PAUSE_S, pause * 2)
    ended = stopper
    if left.group is not None:
        left.group.remove()
    writer = record.ExitWriter(paths)
    while not left.recorded and not writer.wrote(lambda: _exit_record(paths, left, ended, detail)):
        time.sleep(max(0.0, writer.again_at - time.monotonic()))


def _exit_record(paths: RunPaths, left: Leftovers, stopper: Stopper, detail: Optional[str]) -> Dict[str, Any]:
    """What the supervisor said of the run's end; if it said nothing, the run is lost."""
    host = paths.host
    body = left.end or record.exit_record(record.lost(paths, host, detail))
    counts = {"signalled": stopper.signalled, "forced": stopper.forced}
    more = {name: int(body.get(name) or 0) + count for name, count in counts.items()}
    return dict(body, survivors=stopper.survivors, **more)


class Deputy:
    """The process that takes a dead guardian's place. Held by the supervisor; does nothing while the guardian lives."""

    def __init__(self, order: Dict[str, Any], tether: Tether, lease: Lease) -> None:
        self._order = {name: order.get(name) for name in ("top", "attempt", "cookie", "notify")}
        self._tether, self._lease = tether, lease
        self._code_path: str = order["code_path"]
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._start_at: Optional[float] = None  # when one is to be started; None: none is missing
        self._started_at = -RESTART_S
        self._trouble = ""

    def take_over(self) -> None:
        """Start (again) a deputy: the guardian, or the last deputy, is gone."""
        self._start_at = max(time.monotonic(), self._started_at + RESTART_S)
        self.look()

    def look(self) -> None:
        """Start the deputy that is missing, once it is due: one that dies at once must not be started in a loop."""
        if self._start_at is None or time.monotonic() < self._start_at:
            return
        self._started_at = time.monotonic()
        self._start_at = self._started_at + RESTART_S
        try:
            self._process = self._start()
        except OSError as error:
            if str(error) != self._trouble:
                notes.note("no deputy: %s" % error)
            self._trouble = str(error)
        else:
            self._start_at, self._trouble = None, ""

    def _start(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-I", "-c", _CODE, self._code_path]
        lease = self._lease.for_heir()
        own = [lease[GUARDIAN]] if lease else []
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, pass_fds=own)
        child.returncode = 0  # the supervisor reaps every child itself
        assert child.stdin is not None
        me = processes.identify(os.getpid())
        self._tether.attach(child.stdin.fileno())  # kept open: its end tells the deputy that the supervisor is gone
        self._tether.tell(order=dict(self._order, lease=lease, supervisor=me.to_json() if me else None))
        return child

    def ended(self, pid: int) -> bool:
        """Whether ``pid``, just reaped, was the deputy: the number may be another process's from now on."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process = None
        return True

    def pids(self) -> List[int]:
        """Never to be stopped with the job."""
        return [self._process.pid] if self._process is not None else []


def deputy() -> None:
    """The deputy's process."""
    os.umask(0o077)
    processes.set_name("ddpctl-deputy")
    listener = TetherListener(0)
    while "order" not in listener.words:
        if not listener.listen(1.0):
            return
    order = listener.words["order"]
    supervisor = processes.from_json(order["supervisor"])
    known: Set[Tuple[int, int]] = set()

    def look() -> None:
        nonlocal known
        found = None if supervisor is None else _note(order["cookie"], supervisor)
        known = known if found is None else found

    lease = Lease(order["lease"], GUARDIAN)
    detail = wait_until_gone(listener, supervisor, look, lease)
    paths = RunPaths(order["top"], order["attempt"])
    left = Leftovers(order["cookie"], sorted(known), (), supervisor, listener.words, lease.left())
    clean_up(paths, left, detail)
    notifying.at_end(paths, order["notify"])


def _note(cookie: str, supervisor: processes.ProcessId) -> Optional[Set[Tuple[int, int]]]:
    """Who belongs to the run; None when the supervisor died in between, and what was below it hangs nowhere now."""
    found = processes.members(cookie, [supervisor.pid], [supervisor.pid])
    return {(one.pid, one.start) for one in found.values()} if processes.is_alive(supervisor) else None
