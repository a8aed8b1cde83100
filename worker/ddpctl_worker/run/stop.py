"""The stop verb: ends a run on this node. When it answers, no process of the run is left.

A run without a folder on this node gets an exit record too. A start that is still on its way (a slow link, a busy disk)
finds the record and does not start the run after its stop.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import threading
import time
from typing import Any, Callable, Dict, Optional

from ddpctl_worker.machine import fs, notes, processes
from ddpctl_worker.machine.cgroup import of_record
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.judgement import (
    HERE,
    find_other_place,
    find_remaining_processes,
    is_cut_off,
    read_owner_record,
    refuse_elsewhere,
    settle,
    watchers,
)
from ddpctl_worker.record.limits import STALE_S
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths, base_of, checkpoint_dir, job_id, run_paths
from ddpctl_worker.record.runrecord import RunRecord, read_run
from ddpctl_worker.record.status import node_status
from ddpctl_worker.run.growing import GrowingFiles
from ddpctl_worker.run.limits import (
    HUNG_SUPERVISOR_S,
    STOP_LOOK_S,
    STOP_REPORT_S,
    STOP_WRITE_S,
    UNKILLABLE_S,
    WATCHERS_END_S,
)
from ddpctl_worker.run.stopper import Stopper, run_to_end
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import NO_SUCH_RUN, QUEUED, STOP_GRACE_S, STOPPING, TERMINAL


def stop(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"signalled", "forced", "survivors", "status"}. It signals nothing if the run has ended."""
    paths = run_paths(base_of(request), request["run"], request["host"])
    grace = request.get("grace")
    by, longer = str(request.get("by") or ""), request.get("longer") is True
    run = read_run(paths)
    if run is None and _forestall(paths, str(request["host"]), by):
        raise WorkerError(NO_SUCH_RUN, "run %s is not on this node" % request["run"])
    seconds = None if grace is None else float(grace)
    if longer and os.path.exists(paths.stop):
        _allow(paths, {"grace": seconds, "by": by, "longer": True})
    growth = _growth(base_of(request), run) if run else None

    def tell(left: float) -> None:
        found = growth.look() if growth is not None else None
        if found is not None:
            channel.send({"growing": {"path": found[0], "size": found[1], "left": round(max(0.0, left), 1)}})

    told = stop_here(paths, seconds, by, longer, tell)
    for attempt in paths.attempts():  # the agent has ended the newest attempt; any leftovers end here
        if _has_something(attempt):
            more = stop_here(attempt, seconds, by, longer, tell)
            counts = {name: told[name] + more[name] for name in ("signalled", "forced", "survivors")}
            told = dict(told, **counts)
    return told


def _has_something(attempt: RunPaths) -> bool:
    state = read_owner_record(attempt)
    return bool(watchers(state) or find_remaining_processes(attempt, state))


def _growth(base: str, run: RunRecord) -> Optional[GrowingFiles]:
    """Return the watch over the job's checkpoints; ``None`` if a damaged record does not name them."""
    try:
        return GrowingFiles(checkpoint_dir(base, job_id(run), str(run.get("host"))))
    except WorkerError as error:
        notes.note("no look at files that grow: %s" % error)
        return None


def _allow(paths: RunPaths, word: Dict[str, Any]) -> None:
    """Give the new grace to the stop that is under way in the attempts of a run with restarts."""
    for attempt in paths.attempts():
        supervisor = processes.identity_from_json(read_owner_record(attempt).get("supervisor"))
        if supervisor is not None and fs.read_json(attempt.exit) is None:
            _leave_word(attempt, dict(word, time=notes.now_iso()))
            processes.send(supervisor, signal.SIGUSR1)


def _own_grace(run: Optional[RunRecord]) -> float:
    """Seconds from SIGTERM to SIGKILL, by the job's ``timeouts.stop``; a damaged record may not have it."""
    limits = run.get("timeouts") if run else None
    seconds = limits.get("stop") if limits else None
    return STOP_GRACE_S if seconds is None else float(seconds)


def stop_here(
    paths: RunPaths,
    grace: Optional[float],
    by: str,
    longer: bool = False,
    tell: Callable[[float], None] = lambda left: None,
) -> Dict[str, Any]:
    """Stop a run, or an attempt, that has a folder on this node.

    ``grace`` None: the job's own. ``longer``: a stop that is under way gets this grace from now on, be it more or less.
    ``tell`` is called every STOP_REPORT_S with the rest of the grace in seconds.
    """
    run = read_run(paths)
    grace = _own_grace(run) if grace is None else max(0.0, grace)
    refuse_elsewhere(paths)
    settle(paths)  # this stop did not kill a run that was lost, or ended by a reboot, before
    before = fs.read_json(paths.exit)
    if before is None:
        if not read_owner_record(paths).get("supervisor"):
            fs.read_json(paths.state)  # raises if it cannot be read: that proves no end
        word = {"grace": grace, "by": by, "longer": longer, "time": notes.now_iso()}
        _leave_word(paths, word)
        if not _cut_off(paths):
            _ask_supervisor(paths, word, tell)
    own = _sweep(paths, grace)
    _wake(paths)
    end = fs.read_json(paths.exit)
    if end is None:
        # The supervisor was gone already, or did not answer and was killed. So this process writes the record.
        end = {}
        if not _only_writes(paths):
            _write_end(paths, outcomes.killed(paths.host, by), own)
    _let_watchers_end(paths)
    counted = end if before is None else {}
    status = node_status(paths)
    if not own.survivors and status["state"] not in TERMINAL:
        status["state"] = STOPPING  # no process is left; only the exit record waits for the disk
    return {
        "signalled": int(counted.get("signalled", 0)) + own.signalled,
        "forced": int(counted.get("forced", 0)) + own.forced,
        "survivors": own.survivors,
        "status": status,
    }


def _forestall(paths: RunPaths, host: str, by: str) -> bool:
    """Put an exit record in the place of the run's folder; return False if a start has made the folder meanwhile.

    A disk that refuses the record refuses a start too, so that is no error.
    """
    parent = os.path.dirname(paths.node)
    aside = RunPaths(os.path.join(parent, ".%s.%s" % (host, secrets.token_hex(6))))
    try:
        runs = os.path.dirname(parent)
        fs.own_folder(os.path.dirname(runs), os.path.basename(runs), os.path.basename(parent))
        os.mkdir(aside.node, 0o700)
        record.write(aside, outcomes.killed(host, by), patience=0.0)
        os.rename(aside.node, paths.node)
        fs.sync_folder(parent)
    except OSError:
        shutil.rmtree(aside.node, ignore_errors=True)
    return read_run(paths) is None


def _ask_supervisor(paths: RunPaths, word: Dict[str, Any], tell: Callable[[float], None]) -> None:
    """Have the supervisor stop the run, and wait for its exit record while it is alive.

    Another stop may change the grace meanwhile. A supervisor that exceeds the grace and some seconds is killed.
    """
    beat = record.read_heartbeat(paths.heartbeat)
    hangs = beat is not None and notes.boottime() - beat.at > STALE_S
    beyond = HUNG_SUPERVISOR_S if hangs else UNKILLABLE_S + 5.0
    deadline = time.monotonic() + word["grace"] + beyond
    told, tell_at = None, time.monotonic() + STOP_REPORT_S
    while time.monotonic() < deadline:
        if fs.read_json(paths.exit) is not None:
            return
        if time.monotonic() >= tell_at:
            newest = fs.read_optional(paths.stop) or word
            if newest.get("longer") and newest != word:
                word, deadline = newest, time.monotonic() + float(newest.get("grace") or 0.0) + beyond
            tell(deadline - beyond - time.monotonic())
            tell_at = time.monotonic() + STOP_REPORT_S
        state = read_owner_record(paths)
        alive = watchers(state)
        supervisor = processes.identity_from_json(state.get("supervisor"))
        if supervisor in alive and supervisor is not None:
            if told != supervisor:
                processes.send(supervisor, signal.SIGUSR1)
                _wake(paths)
                told = supervisor
        elif not alive and not processes.is_alive(processes.identity_from_json(state.get("starter"))):
            return
        time.sleep(STOP_LOOK_S)
    if _only_writes(paths):
        return
    for who in watchers(read_owner_record(paths)):
        processes.send(who, signal.SIGKILL)  # it hangs, and must not start a process any more


def _only_writes(paths: RunPaths) -> bool:
    """Return whether the supervisor or guardian is alive only to write the exit record, which the disk refuses now."""
    state = read_owner_record(paths)
    launcher = processes.identity_from_json(state.get("launcher"))
    if launcher is None or processes.is_alive(launcher) or not watchers(state):
        return False
    return not find_remaining_processes(paths, state)


def _leave_word(paths: RunPaths, word: Dict[str, Any]) -> None:
    """Write the file of the stop. Without the file (a full or hung disk) the signal stops with the run's own grace."""
    writer = threading.Thread(target=_write_word, args=(paths, word), daemon=True)
    writer.start()
    writer.join(STOP_WRITE_S)


def _write_word(paths: RunPaths, word: Dict[str, Any]) -> None:
    try:
        fs.write_json(paths.stop, word)
    except OSError as full:
        try:
            record.write_reserved(paths.stop_reserve, paths.stop, word)
        except OSError:
            notes.note("the stop could not be recorded: %s" % full)


def _wake(paths: RunPaths) -> None:
    """Continue a supervisor and a guardian that are stopped by SIGSTOP: they could not end otherwise."""
    for who in watchers(read_owner_record(paths)):
        processes.send(who, signal.SIGCONT)


def _let_watchers_end(paths: RunPaths) -> None:
    """Wait until ddpctl's own processes of the run have ended too, and a waiter has left the line."""
    state = read_owner_record(paths)
    deadline = time.monotonic() + WATCHERS_END_S
    while (watchers(state) or _is_in_line(state)) and time.monotonic() < deadline:
        time.sleep(STOP_LOOK_S)


def _is_in_line(state: Dict[str, Any]) -> bool:
    waits = state.get("state") == QUEUED and processes.is_alive(processes.identity_from_json(state.get("starter")))
    return waits and os.path.exists(str(state.get("claim") or ""))


def _cut_off(paths: RunPaths) -> bool:
    """Return whether the run has no supervisor and will have none: a late supervisor finds the claim taken and ends."""
    return fs.read_optional(paths.state).get("supervisor") is None and is_cut_off(paths)


def _sweep(paths: RunPaths, grace: float) -> Stopper:
    """End the processes that are left: by cookie, by the last known tree, and by the run's control group."""
    state = read_owner_record(paths)
    launcher = processes.identity_from_json(state.get("launcher"))
    if find_other_place(paths, state) != HERE:
        return run_to_end(Stopper(dict, launcher, grace))
    group = of_record(state.get("group"))
    done = run_to_end(
        Stopper(lambda: find_remaining_processes(paths, state), launcher, grace, proof=processes.Proof(group))
    )
    if group is not None and not watchers(state):
        group.remove()
    return done


def _write_end(paths: RunPaths, outcome: Outcome, own: Stopper) -> None:
    try:
        record.write(paths, outcome, signalled=own.signalled, forced=own.forced, survivors=own.survivors, patience=2.0)
    except OSError as error:
        notes.note("the run's end could not be recorded: %s" % error)
