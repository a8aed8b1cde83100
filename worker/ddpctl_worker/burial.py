"""What is left to do after a supervisor's death: end its processes, write down how the run ended."""

from __future__ import annotations

import os
import time
import traceback
from typing import Dict, Optional, Sequence

from ddpctl_worker import outcome as outcomes
from ddpctl_worker import processes, record
from ddpctl_worker.contract import LOST, SUPERVISOR_LOST
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.stopper import Stopper, reap, run_to_end

GRACE_S = 10.0
PAUSES_S = (0.1, 1.0, 5.0, 10.0, 30.0)


class Burial:
    """How to find and end what a dead supervisor left: by cookie and by what was known of it."""

    def __init__(self, cookie: str, known: Sequence[Sequence[int]], roots: Sequence[int] = ()) -> None:
        self.cookie, self.known, self.roots = cookie, known, roots

    def members(self) -> Dict[int, processes.Stat]:
        return processes.members(self.cookie, self.roots, self.roots, self.known)


def bury_surely(paths: RunPaths, burial: Burial, detail: Optional[str] = None) -> None:
    """As ``bury``; a fault that may pass (no memory, no descriptors, a disk that is away) does not end the watch."""
    for pause in PAUSES_S:
        try:
            bury(paths, burial, detail)
        except Exception:
            record.note(traceback.format_exc())
            time.sleep(pause)
        else:
            break


def bury(paths: RunPaths, burial: Burial, detail: Optional[str] = None) -> None:
    """After the supervisor's end: end whatever is left, and write the exit record unless the supervisor did."""
    run = record.read_optional(paths.run)
    state = record.read_optional(paths.state)
    limit = float((run.get("timeouts") or {}).get("stop") or GRACE_S)
    launcher = processes.from_json(state.get("launcher"))
    stopper = Stopper(burial.members, launcher, min(limit, GRACE_S))
    run_to_end(stopper, _reap)
    if record.read_json(paths.exit) is None and os.path.isdir(paths.node):
        outcomes.write(
            paths,
            lost(paths, str(run.get("host")), detail),
            signalled=stopper.signalled,
            forced=stopper.forced,
            survivors=stopper.survivors,
        )


def _reap() -> None:
    reap()


def lost(paths: RunPaths, host: str, detail: Optional[str] = None, *, when: Optional[float] = None) -> Outcome:
    """How a run without a supervisor ended: as asked, if somebody had asked for its end, otherwise lost."""
    if os.path.lexists(paths.stop):
        return outcomes.killed(host, str(record.read_optional(paths.stop).get("by") or ""), when=when)
    text = detail or "the supervisor was killed; the processes that it left were ended"
    return Outcome(LOST, outcomes.cause(host, SUPERVISOR_LOST, text, when=when), when=when or 0.0)
