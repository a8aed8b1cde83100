"""The stop verb: ends a run on this node and proves it: nothing of it is left when it answers."""

from __future__ import annotations

import signal
import time
from typing import Any, Dict

from ddpctl_worker import outcome as outcomes
from ddpctl_worker import processes, record
from ddpctl_worker.contract import NO_SUCH_RUN
from ddpctl_worker.link import Link, WorkerError
from ddpctl_worker.paths import RunPaths, base_of, run_paths
from ddpctl_worker.status import STALE_S, judge, node_status, remains, watchers
from ddpctl_worker.stopper import GIVE_UP_S, Stopper, run_to_end

LOOK_S = 0.02
HANGS_S = 2.0  # a supervisor without a heartbeat gets this much beyond the grace


def stop(request: Dict[str, Any], link: Link) -> Dict[str, Any]:
    """The verb: {"signalled", "forced", "survivors", "status"}. On a run that has ended it only looks."""
    paths = run_paths(base_of(request), request["run"], request["host"])
    run = record.read_json(paths.run)
    if run is None:
        raise WorkerError(NO_SUCH_RUN, "run %s is not on this node" % request["run"])
    limits = run.get("timeouts") or {}
    grace = request.get("grace")
    grace = float(limits.get("stop") or 10.0) if grace is None else max(0.0, float(grace))
    before = record.read_json(paths.exit)
    if before is None:
        _ask_supervisor(paths, grace, str(request.get("by") or ""))
    own = _sweep(paths, grace)
    end = record.read_json(paths.exit)
    if end is None:
        # Nobody is left to write it: the supervisor was gone already, or did not answer and was ended.
        outcomes.write(
            paths,
            outcomes.killed(run["host"], str(request.get("by") or "")),
            signalled=own.signalled,
            forced=own.forced,
            survivors=own.survivors,
        )
        end = {}
    counted = end if before is None else {}
    return {
        "signalled": int(counted.get("signalled", 0)) + own.signalled,
        "forced": int(counted.get("forced", 0)) + own.forced,
        "survivors": own.survivors,
        "status": node_status(paths),
    }


def _ask_supervisor(paths: RunPaths, grace: float, by: str) -> None:
    """Have the supervisor stop the run, and wait for its exit record while it is alive."""
    record.write_json(paths.stop, {"grace": grace, "by": by, "time": record.now_iso()})
    pulse = record.read_heartbeat(paths.heartbeat)
    hangs = pulse is not None and record.boottime() - pulse.at > STALE_S
    deadline = time.monotonic() + grace + (HANGS_S if hangs else GIVE_UP_S + 5.0)
    told = None
    while time.monotonic() < deadline:
        if record.read_json(paths.exit) is not None:
            return
        state = record.read_json(paths.state) or {}
        alive = watchers(state)
        supervisor = processes.from_json(state.get("supervisor"))
        if supervisor in alive and supervisor is not None:
            if told != supervisor:
                processes.send(supervisor, signal.SIGUSR1)
                told = supervisor
        elif not alive and not processes.is_alive(processes.from_json(state.get("starter"))):
            return
        time.sleep(LOOK_S)
    for who in watchers(record.read_json(paths.state) or {}):
        processes.send(who, signal.SIGKILL)  # hangs: nothing else can end it, and it must not start anything now


def _sweep(paths: RunPaths, grace: float) -> Stopper:
    """Look for what is left by cookie and by the last known tree, and end it; two empty looks are the proof."""
    run = record.read_json(paths.run) or {}
    state = record.read_json(paths.state) or {}
    same_boot = state.get("boot") in (None, processes.boot_id())
    if same_boot and record.read_json(paths.exit) is None:
        judge(paths, run, state, record.read_heartbeat(paths.heartbeat))
    launcher = processes.from_json(state.get("launcher"))
    find = (lambda: remains(paths, state)) if same_boot else dict
    return run_to_end(Stopper(find, launcher, grace))
