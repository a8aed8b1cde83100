"""The stop verb: ends a run on this node and proves it: nothing of it is left when it answers.

A run that has not come here yet is given an exit record all the same, so that a start that is still under way (a slow
link, a busy disk) finds the run over instead of starting it after it was stopped.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import threading
import time
from typing import Any, Callable, Dict, Optional

from ddpctl_worker import fs, notes
from ddpctl_worker import outcome as outcomes
from ddpctl_worker.channel import Channel, WorkerError
from ddpctl_worker.contract import NO_SUCH_RUN, STOP_GRACE_S, STOPPING, TERMINAL
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths, base_of, checkpoint_dir, job_id, run_paths
from ddpctl_worker.run import processes, record
from ddpctl_worker.run.cgroup import of_record
from ddpctl_worker.run.growing import GrowingFiles
from ddpctl_worker.run.status import (
    HERE,
    STALE_S,
    cut_off,
    holders,
    node_status,
    refuse_elsewhere,
    remains,
    settle,
    watchers,
    whereabouts,
)
from ddpctl_worker.run.stopper import GIVE_UP_S, Stopper, run_to_end

LOOK_S = 0.02
TELL_S = 2.0  # how often a stop looks for files that grow, and whether another stop gives more time
WORD_S = 2.0  # for the disk to take the word of a stop
FAREWELL_S = 2.0  # for supervisor and guardian to end once the run has; with a node cut off they stay a little longer
HANGS_S = 2.0  # a supervisor without a heartbeat gets this much beyond the grace


def stop(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"signalled", "forced", "survivors", "status"}. On a run that has ended it only looks."""
    paths = run_paths(base_of(request), request["run"], request["host"])
    grace = request.get("grace")
    by, longer = str(request.get("by") or ""), request.get("longer") is True
    run = fs.read_json(paths.run)
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
    for attempt in paths.attempts():  # the agent has ended the newest; what is left of any is ended here
        if _has_something(attempt):
            more = stop_here(attempt, seconds, by, longer, tell)
            counts = {name: told[name] + more[name] for name in ("signalled", "forced", "survivors")}
            told = dict(told, **counts)
    return told


def _has_something(attempt: RunPaths) -> bool:
    state = holders(attempt)
    return bool(watchers(state) or remains(attempt, state))


def _growth(base: str, run: Dict[str, Any]) -> Optional[GrowingFiles]:
    """The job's checkpoints on this host; None where a damaged record does not name them: a stop works all the same."""
    try:
        return GrowingFiles(checkpoint_dir(base, job_id(run), str(run.get("host"))))
    except WorkerError as error:
        notes.note("no look at files that grow: %s" % error)
        return None


def _allow(paths: RunPaths, word: Dict[str, Any]) -> None:
    """A stop is under way in the attempts of a run with restarts, whose agent waits for it: they get the new grace."""
    for attempt in paths.attempts():
        supervisor = processes.from_json(holders(attempt).get("supervisor"))
        if supervisor is not None and fs.read_json(attempt.exit) is None:
            _leave_word(attempt, dict(word, time=notes.now_iso()))
            processes.send(supervisor, signal.SIGUSR1)


def _own_grace(run: Dict[str, Any]) -> float:
    """Seconds from SIGTERM to SIGKILL, by the job's ``timeouts.stop``; a damaged record may not have it."""
    seconds = (run.get("timeouts") or {}).get("stop")
    return STOP_GRACE_S if seconds is None else float(seconds)


def stop_here(
    paths: RunPaths,
    grace: Optional[float],
    by: str,
    longer: bool = False,
    tell: Callable[[float], None] = lambda left: None,
) -> Dict[str, Any]:
    """The same for a run, or an attempt, that is on this node.

    ``grace`` None: the job's own. ``longer``: a stop that is under way gets this grace from now on, be it more or less.
    ``tell`` is called once in a while with the seconds that are left of it.
    """
    run = fs.read_json(paths.run) or {}
    grace = _own_grace(run) if grace is None else max(0.0, grace)
    refuse_elsewhere(paths)
    settle(paths)  # a run that was lost or rebooted away before this stop is told as that, not as killed
    before = fs.read_json(paths.exit)
    if before is None:
        if not holders(paths).get("supervisor"):
            fs.read_json(paths.state)  # one that cannot be read proves nothing
        word = {"grace": grace, "by": by, "longer": longer, "time": notes.now_iso()}
        _leave_word(paths, word)
        if not _cut_off(paths):
            _ask_supervisor(paths, word, tell)
    own = _sweep(paths, grace)
    _wake(paths)
    end = fs.read_json(paths.exit)
    if end is None:
        # Nobody is left to write it: the supervisor was gone already, or did not answer and was ended.
        end = {}
        if not _only_writes(paths):
            _write_end(paths, outcomes.killed(run["host"], by), own)
    _let_watchers_end(paths)
    counted = end if before is None else {}
    status = node_status(paths)
    if not own.survivors and status["state"] not in TERMINAL:
        status["state"] = STOPPING  # nothing of it runs: only its end waits for the disk
    return {
        "signalled": int(counted.get("signalled", 0)) + own.signalled,
        "forced": int(counted.get("forced", 0)) + own.forced,
        "survivors": own.survivors,
        "status": status,
    }


def _forestall(paths: RunPaths, host: str, by: str) -> bool:
    """Put an exit record where the run's folder would be; False when a start has made the folder meanwhile.

    A disk that takes nothing takes no start either, so that is no error.
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
    return fs.read_json(paths.run) is None


def _ask_supervisor(paths: RunPaths, word: Dict[str, Any], tell: Callable[[float], None]) -> None:
    """Have the supervisor stop the run, and wait for its exit record while it is alive. Another stop may come meanwhile
    and give it more time."""
    beat = record.read_heartbeat(paths.heartbeat)
    hangs = beat is not None and notes.boottime() - beat.at > STALE_S
    beyond = HANGS_S if hangs else GIVE_UP_S + 5.0
    deadline = time.monotonic() + word["grace"] + beyond
    told, tell_at = None, time.monotonic() + TELL_S
    while time.monotonic() < deadline:
        if fs.read_json(paths.exit) is not None:
            return
        if time.monotonic() >= tell_at:
            newest = fs.read_optional(paths.stop) or word
            if newest.get("longer") and newest != word:
                word, deadline = newest, time.monotonic() + float(newest.get("grace") or 0.0) + beyond
            tell(deadline - beyond - time.monotonic())
            tell_at = time.monotonic() + TELL_S
        state = holders(paths)
        alive = watchers(state)
        supervisor = processes.from_json(state.get("supervisor"))
        if supervisor in alive and supervisor is not None:
            if told != supervisor:
                processes.send(supervisor, signal.SIGUSR1)
                _wake(paths)
                told = supervisor
        elif not alive and not processes.is_alive(processes.from_json(state.get("starter"))):
            return
        time.sleep(LOOK_S)
    if _only_writes(paths):
        return
    for who in watchers(holders(paths)):
        processes.send(who, signal.SIGKILL)  # hangs: nothing else can end it, and it must not start anything now


def _only_writes(paths: RunPaths) -> bool:
    """Whether the run is over and its supervisor or guardian is there only because the disk does not take its end: they
    know how it ended, and write it once they can."""
    state = holders(paths)
    launcher = processes.from_json(state.get("launcher"))
    if launcher is None or processes.is_alive(launcher) or not watchers(state):
        return False
    return not remains(paths, state)


def _leave_word(paths: RunPaths, word: Dict[str, Any]) -> None:
    """Write down what is wanted; where the disk takes nothing, or hangs, the signal alone says it, with the run's own
    grace."""
    writer = threading.Thread(target=_write_word, args=(paths, word), daemon=True)
    writer.start()
    writer.join(WORD_S)


def _write_word(paths: RunPaths, word: Dict[str, Any]) -> None:
    try:
        fs.write_json(paths.stop, word)
    except OSError as full:
        try:
            record.write_reserved(paths.stop_reserve, paths.stop, word)
        except OSError:
            notes.note("the stop could not be recorded: %s" % full)


def _wake(paths: RunPaths) -> None:
    """Continue a supervisor and a guardian that SIGSTOP holds: they could not end otherwise."""
    for who in watchers(holders(paths)):
        processes.send(who, signal.SIGCONT)


def _let_watchers_end(paths: RunPaths) -> None:
    """Nothing of the run is left when this answers, ddpctl's own processes included."""
    state = holders(paths)
    deadline = time.monotonic() + FAREWELL_S
    while watchers(state) and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _cut_off(paths: RunPaths) -> bool:
    """Whether no supervisor is there and none will ever be: one that is on its way finds the claim taken and ends."""
    return fs.read_optional(paths.state).get("supervisor") is None and cut_off(paths)


def _sweep(paths: RunPaths, grace: float) -> Stopper:
    """Look for what is left, by cookie, by the last known tree and in the run's control group, and end it."""
    state = holders(paths)
    launcher = processes.from_json(state.get("launcher"))
    if whereabouts(paths, state) != HERE:
        return run_to_end(Stopper(dict, launcher, grace))
    group = of_record(state.get("group"))
    done = run_to_end(Stopper(lambda: remains(paths, state), launcher, grace, proof=processes.Proof(group)))
    if group is not None and not watchers(state):
        group.remove()
    return done


def _write_end(paths: RunPaths, outcome: Outcome, own: Stopper) -> None:
    try:
        record.write(paths, outcome, signalled=own.signalled, forced=own.forced, survivors=own.survivors, patience=2.0)
    except OSError as error:
        notes.note("the run's end could not be recorded: %s" % error)
