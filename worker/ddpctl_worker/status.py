"""The status verb: what the records say, judged against the machine as it is now."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set

from ddpctl_worker import outcome as outcomes
from ddpctl_worker import processes, record
from ddpctl_worker.burial import lost
from ddpctl_worker.contract import (
    FAILED,
    LOST,
    NODE_REBOOTED,
    SPAWN_FAILED,
    STALE,
    STARTING,
    SUPERVISOR_LOST,
    TERMINAL,
)
from ddpctl_worker.link import Link, WorkerError
from ddpctl_worker.metrics import last_values
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths, base_of, known_runs, run_paths
from ddpctl_worker.processes import Identity

STALE_S = 15.0  # a heartbeat older than this: the supervisor hangs


def status(request: Dict[str, Any], link: Link) -> Dict[str, Any]:
    """The verb: every run of this host that was asked for (``run``, or ``job``: a name or a run id), newest first.

    The newest comes with the last ``metrics`` of its ranks where a run or job was named.
    """
    base, host = base_of(request), request["host"]
    run, job = request.get("run"), request.get("job")
    if run:
        paths = run_paths(base, run, host)
        found = [node_status(paths)] if record.read_json(paths.run) else []
        return {"runs": _with_metrics(found, base, host)}
    listed = []
    for paths in known_runs(base, host):
        made = _readable(paths.run)
        if made is not None and made.get("host") == host and job in (None, made.get("job"), made.get("run")):
            listed.append((str(made.get("created")), str(made.get("job")), paths))
    listed.sort(key=lambda entry: entry[0], reverse=True)
    states: List[Dict[str, Any]] = []
    jobs: Set[str] = set()
    for name, paths in ((made[1], made[2]) for made in listed):
        one = _status_or_fault(paths)
        if one is None:
            continue
        # Without ``all``: what runs, and the newest run of every job (its other nodes may still run).
        if request.get("all") or name not in jobs or one["state"] not in TERMINAL:
            states.append(one)
        jobs.add(name)
    return {"runs": _with_metrics(states, base, host) if job is not None else states}


def _with_metrics(states: List[Dict[str, Any]], base: str, host: str) -> List[Dict[str, Any]]:
    """Only the newest run is worth reading files of a job's own: that is the one that is shown."""
    if states:
        states[0]["metrics"] = last_values(run_paths(base, str(states[0]["run"]), host))
    return states


def node_status(paths: RunPaths) -> Dict[str, Any]:
    """NodeStatus of a run that is there; may write the exit record of one that is found lost."""
    run = record.read_json(paths.run)
    if run is None:
        raise WorkerError("no_such_run", "there is no run in %s" % paths.node)
    state = record.read_json(paths.state) or {}
    end = record.read_json(paths.exit)
    pulse = record.read_heartbeat(paths.heartbeat)
    now_state = end["state"] if end else judge(paths, run, state, pulse)
    if end is None and now_state in TERMINAL:
        end = record.read_json(paths.exit)
        now_state = end["state"] if end else now_state
    same_boot = state.get("boot") == processes.boot_id()
    now = record.boottime()
    live = pulse is not None and same_boot
    launcher = processes.from_json(state.get("launcher"))
    shown = record.read_json(paths.processes) or {}
    return {
        "run": run.get("run"),
        "job": run.get("job"),
        "cluster": run.get("cluster"),
        "host": run.get("host"),
        "node_rank": run.get("node_rank"),
        "state": now_state,
        "pid": launcher.pid if launcher else None,
        "ranks": run.get("ranks") or sorted(int(rank) for rank in shown.get("ranks") or {}),
        "exit_code": end.get("exit_code") if end else None,
        "heartbeat_age_s": round(max(0.0, now - pulse.at), 3) if pulse and live and not end else None,
        "attempt": end.get("attempt", 1) if end else pulse.attempt if pulse else 1,
        "started": state.get("started"),
        "ended": end.get("ended") if end else None,
        "cause": end.get("cause") if end else None,
        "candidates": end.get("candidates") or [] if end else [],
        "last_output_age_s": round(max(0.0, now - pulse.last_output), 3)
        if pulse and live and pulse.last_output
        else None,
        "dropped_lines": end.get("dropped_lines", 0) if end else pulse.dropped if pulse else 0,
        "survivors": end.get("survivors", []) if end else [],
        "record": run,
    }


def _readable(path: str) -> Optional[Dict[str, Any]]:
    """One spoilt record must not hide the other runs: without its run.json a folder is no run."""
    try:
        return record.read_json(path)
    except (WorkerError, OSError) as error:
        record.note("left out: %s" % error)
        return None


def _status_or_fault(paths: RunPaths) -> Optional[Dict[str, Any]]:
    """``node_status``, or where a record is spoilt a status that says so; it is not called over."""
    try:
        return node_status(paths)
    except (WorkerError, OSError) as error:
        run = _readable(paths.run)
        if run is None:  # removed just now
            return None
        why = outcomes.cause(str(run.get("host")), SUPERVISOR_LOST, "its record cannot be read: %s" % error)
        found = {key: run.get(key) for key in ("run", "job", "cluster", "host", "node_rank")}
        return dict(found, state=STALE, ranks=run.get("ranks") or [], cause=why, record=run)


def judge(paths: RunPaths, run: Dict[str, Any], state: Dict[str, Any], pulse: Optional[record.Pulse]) -> str:
    """The state of a run without an exit record."""
    host = str(run.get("host"))
    starter = processes.from_json(state.get("starter"))
    supervisor = processes.from_json(state.get("supervisor"))
    guardian = processes.from_json(state.get("guardian"))
    if state.get("boot") not in (None, processes.boot_id()):
        why = outcomes.cause(host, NODE_REBOOTED, "the node was rebooted while the job ran")
        return _end(paths, Outcome(LOST, why))
    if processes.is_alive(supervisor):
        age = record.boottime() - pulse.at if pulse else 0.0
        return STALE if age > STALE_S else str(state.get("state") or STARTING)
    if supervisor is None:
        if processes.is_alive(starter):
            return STARTING
        # The starter is dead. Its supervisor may still be on its way up: the claim decides, once and for all.
        if not cut_off(paths) and processes.is_alive(processes.from_json(record.read_json(paths.claim))):
            return STARTING
        why = outcomes.cause(host, SPAWN_FAILED, "the start was interrupted before the launcher ran; start it again")
        return _end(paths, Outcome(FAILED, why))
    if processes.is_alive(guardian) or remains(paths, state):
        return STALE  # being cleaned up, or running on without anybody to watch it: kill ends it
    text = "supervisor and guardian were killed; no process of the job is left"
    return _end(paths, lost(paths, host, text))


def remains(paths: RunPaths, state: Dict[str, Any]) -> Dict[int, processes.Stat]:
    """Living processes of a run whose supervisor is gone."""
    shown = record.read_json(paths.processes) or {}
    keep = [who.pid for who in watchers(state)]
    return processes.members(str(state.get("cookie") or ""), (), keep, shown.get("tree") or ())


def watchers(state: Dict[str, Any]) -> List[Identity]:
    """Supervisor and guardian, as far as they live."""
    found = (processes.from_json(state.get(name)) for name in ("supervisor", "guardian"))
    return [who for who in found if who is not None and processes.is_alive(who)]


def cut_off(paths: RunPaths) -> bool:
    """Whether this call has taken the claim: a supervisor that is still on its way up finds that and ends."""
    try:
        return record.write_once(paths.claim, {}, durable=False)
    except OSError as error:  # a full or read-only disk
        record.note("the claim could not be taken: %s" % error)
        return False


def _end(paths: RunPaths, outcome: Outcome) -> str:
    """Write it down where the disk takes it; whoever looks next will find the same otherwise."""
    try:
        outcomes.write(paths, outcome, patience=0.0)
    except OSError as error:
        record.note("the run's end could not be written down: %s" % error)
    end = record.read_json(paths.exit)
    return str(end["state"]) if end else outcome.state
