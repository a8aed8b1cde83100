"""What is left to do after a supervisor's death: end its processes, write down how the run ended."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from ddpctl_worker import outcome as outcomes
from ddpctl_worker import processes, record
from ddpctl_worker.cgroup import of_record
from ddpctl_worker.contract import LOST, SUPERVISOR_LOST
from ddpctl_worker.faults import trace
from ddpctl_worker.outcome import Outcome, Pen
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.processes import ProcessId
from ddpctl_worker.proof import Proof
from ddpctl_worker.stopper import Stopper, reap, run_to_end
from ddpctl_worker.tether import TetherListener

GRACE_S = 10.0
LOOK_S = 1.0
PAUSE_S = 10.0  # at most, between two attempts to clean up


class Leftovers:
    """How to find and end what a dead supervisor left: by cookie and by what was known of it; ``words`` are what it
    told its guardian. No disk is asked.

    The supervisor itself may still be there: a process with a thread that waits for a hung disk cannot end.
    """

    def __init__(
        self,
        cookie: str,
        known: Sequence[Sequence[int]],
        roots: Sequence[int],
        supervisor: Optional[ProcessId],
        words: Dict[str, Any],
    ) -> None:
        self.cookie, self.known, self.roots, self.supervisor = cookie, known, roots, supervisor
        self.launcher = processes.from_json(words.get("launcher"))
        self.grace = min(float(words.get("grace") or GRACE_S), GRACE_S)
        self.end: Optional[Dict[str, Any]] = words.get("end")
        self.recorded = bool(words.get("recorded"))
        self.group = of_record(words.get("group"))
        self.proof = Proof(self.group, subreaper=bool(roots), spare=self._spare)

    def _spare(self) -> List[int]:
        return processes.living(self.supervisor) if self.supervisor is not None else []

    def members(self) -> Dict[int, processes.Stat]:
        found = processes.members(self.cookie, self.roots, self.roots, self.known, self.group)
        me = self.supervisor
        return {pid: one for pid, one in found.items() if me is None or (pid, one.start) != (me.pid, me.start)}


def wait_until_gone(
    listener: TetherListener, supervisor: Optional[ProcessId], look: Callable[[], None]
) -> Optional[str]:
    """Until the supervisor is gone; one whose loop stands still is killed. What is to be said of its end."""
    while listener.listen(LOOK_S):
        if listener.stands_still() and supervisor is not None:
            processes.send(supervisor, 9)
            return "the supervisor %s and was killed; the processes that it left were ended" % listener.how_still()
        look()
    died = listener.words.get("died")
    return "the supervisor failed (%s); the processes that it left were ended" % died if died else None


def clean_up(paths: RunPaths, burial: Leftovers, detail: Optional[str] = None) -> None:
    """After the supervisor's end: end whatever is left, and write the exit record unless the supervisor did.

    A fault that may pass (no memory, no descriptors, a disk that is away) ends neither: each is tried until it is done.
    """
    stopper, pause = None, 0.1
    while stopper is None:
        try:
            stopper = run_to_end(Stopper(burial.members, burial.launcher, burial.grace, proof=burial.proof), _reap)
        except Exception as error:
            record.note(trace(error))
            time.sleep(pause)
            pause = min(PAUSE_S, pause * 2)
    ended = stopper
    if burial.group is not None:
        burial.group.remove()
    pen = Pen(paths)
    while not burial.recorded and not pen.wrote(lambda: _exit_record(paths, burial, ended, detail)):
        time.sleep(max(0.0, pen.again_at - time.monotonic()))


def _exit_record(paths: RunPaths, burial: Leftovers, stopper: Stopper, detail: Optional[str]) -> Dict[str, Any]:
    """What the supervisor said of the run's end; without a word of its own the run is lost."""
    host = paths.host
    body = burial.end or outcomes.exit_record(lost(paths, host, detail))
    counts = {"signalled": stopper.signalled, "forced": stopper.forced}
    more = {name: int(body.get(name) or 0) + count for name, count in counts.items()}
    return dict(body, survivors=stopper.survivors, **more)


def _reap() -> None:
    reap()


def lost(paths: RunPaths, host: str, detail: Optional[str] = None, *, when: Optional[float] = None) -> Outcome:
    """How a run without a supervisor ended: as asked, if somebody had asked for its end, otherwise lost."""
    if os.path.lexists(paths.stop):
        return outcomes.killed(host, str(record.read_optional(paths.stop).get("by") or ""), when=when)
    text = detail or "the supervisor was killed; the processes that it left were ended"
    return Outcome(LOST, outcomes.cause(host, SUPERVISOR_LOST, text, when=when), when=when or 0.0)
