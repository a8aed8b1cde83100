"""The status verb: the records of the runs on this host, judged against the present state of the machine."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from ddpctl_worker.machine import fs, notes, processes
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.document import Document, Proposal
from ddpctl_worker.record.judgement import (
    HERE,
    Judgement,
    end_of,
    find_other_place,
    find_remaining_processes,
    judge,
    last_sign,
    read_owner_record,
    watchers,
)
from ddpctl_worker.record.lag import read_lag
from ddpctl_worker.record.limits import ANSWER_BYTES, FEW_STRANGERS, STALE_S
from ddpctl_worker.record.metrics import last_values, values_in_output
from ddpctl_worker.record.paths import RunPaths, base_of, job_id, known_runs, run_paths
from ddpctl_worker.record.ranks import read_rank_processes
from ddpctl_worker.record.runrecord import RunRecord, read_run, require_restart
from ddpctl_worker.wire import contract
from ddpctl_worker.wire.channel import Channel, WorkerError

LISTENERS = ("agent", "supervisor", "keeper")  # processes of a run with ports

Recorded = Tuple[Dict[str, Any], RunPaths]  # run.json and the paths of the run


def status(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Return the runs of this host that match the request, newest first.

    ``run`` is a run id. ``job`` is the name of a job, a run id, or the beginning of run ids. If the request names a run
    or a job, the newest run of each job comes with the last ``metrics`` of its ranks. ``left_out``: number of old runs
    that did not fit into one message.
    """
    base, host = base_of(request), request["host"]
    run, job = request.get("run"), request.get("job")
    if run:
        paths = run_paths(base, run, host)
        found = [one for one in [status_or_fault(paths)] if one is not None]
        return {"runs": _with_metrics(found, base, host)}
    listed = list(_records(base, host))
    if job is not None:
        listed = _meant(listed, str(job))
    listed.sort(key=lambda entry: str(entry[0].get("created")), reverse=True)
    states: List[Dict[str, Any]] = []
    jobs: Set[str] = set()
    for made, paths in listed:
        name, one = job_id(made), status_or_fault(paths)
        if one is None:
            continue
        # Without ``all``: live runs, and the newest run of every job (its other nodes may still run).
        if request.get("all") or name not in jobs or one["state"] not in contract.TERMINAL:
            states.append(one)
        jobs.add(name)
    states = _with_metrics(states, base, host) if job is not None else states
    sent = _within(states, ANSWER_BYTES)
    return {"runs": sent, "left_out": len(states) - len(sent)}


def _records(base: str, host: str) -> Iterator[Recorded]:
    for paths in known_runs(base, host):
        made = _readable(paths.run)
        if made is not None and made.get("host") == host:
            yield made, paths


def _meant(listed: List[Recorded], word: str) -> List[Recorded]:
    """Return the runs with the name or id ``word``, or else the runs whose id begins with it."""
    exact = [one for one in listed if word in (one[0].get("job"), one[0].get("run"))]
    return exact or [one for one in listed if contract.begins(str(one[0].get("run")), word)]


def unfinished(base: str, host: str) -> Iterator[Dict[str, Any]]:
    """Yield the NodeStatus of every live run of this host. An exit record is not opened: its run has ended."""
    for paths in known_runs(base, host):
        found = None if os.path.exists(paths.exit) else status_or_fault(paths)
        if found is not None and found["state"] not in contract.TERMINAL:
            yield found


def live_runs(base: str, host: str, job: str) -> List[str]:
    """Return the ids of the live runs of ``job`` (a ``job_id``) on this host."""
    return sorted(str(one["run"]) for one in unfinished(base, host) if job_id(one["record"]) == job)


def runs_at_work(base: str, host: str, job: str) -> List[str]:
    """Return the ids of the live runs of ``job`` (a ``job_id``) that have begun here, so that their ranks may write."""
    found = [one for one in unfinished(base, host) if job_id(one["record"]) == job]
    return sorted(str(one["run"]) for one in found if _is_at_work(base, one))


def _is_at_work(base: str, found: Dict[str, Any]) -> bool:
    """Return whether a live run may write files here.

    A run in line writes nothing. The state of a run stays stale or unreachable for ever after the loss of its record or
    of its machine: such a run counts while there is a recent sign of it, or a process.
    """
    if found["state"] not in contract.NODE_ONLY:
        return bool(found["state"] != contract.QUEUED)
    paths = run_paths(base, str(found["run"]), str(found["host"]))
    owner = read_owner_record(paths)
    recent = abs(time.time() - last_sign(paths)) < STALE_S
    return recent or bool(watchers(owner) or find_remaining_processes(paths, owner))


def _within(states: List[Dict[str, Any]], limit: int) -> List[Dict[str, Any]]:
    """Return the states that fit into ``limit`` bytes, in their order. Live runs come before ended runs."""
    keep: Set[int] = set()
    for one in sorted(states, key=lambda state: state["state"] in contract.TERMINAL):
        limit -= len(json.dumps(one))
        if limit < 0:
            break
        keep.add(id(one))
    return [one for one in states if id(one) in keep]


def _with_metrics(states: List[Dict[str, Any]], base: str, host: str) -> List[Dict[str, Any]]:
    """Add the last metrics to the newest run of each job: only that run is shown."""
    jobs: Set[str] = set()
    for one in states:
        if job_id(one["record"]) in jobs:
            continue
        jobs.add(job_id(one["record"]))
        paths = run_paths(base, str(one["run"]), host)
        if paths.attempts():  # a host outside the newest attempt has no metrics of it
            paths = paths.of_attempt(int(one.get("attempt") or 1))
        one["metrics"] = last_values(paths)
        one["printed"] = {} if one["metrics"] else values_in_output(paths)
    return states


def node_status(paths: RunPaths) -> Dict[str, Any]:
    """Return the NodeStatus of a run; writes nothing.

    Raises:
        WorkerError: NO_SUCH_RUN; or a record cannot be read.
    """
    run = read_run(paths)
    if run is None:
        raise WorkerError(contract.NO_SUCH_RUN, "there is no run in %s" % paths.node)
    if run.get("restart") and paths.attempt is None:
        return _with_attempts(paths, run)
    return _status(paths, run)


def _with_attempts(paths: RunPaths, run: RunRecord) -> Dict[str, Any]:
    """Return the NodeStatus of a run with restarts: the state of this host's newest attempt, and the document that the
    agents have ``agreed`` on (a Proposal of document.py). Between two attempts the state is starting."""
    own = _status(paths, run)
    agreed = fs.read_optional(paths.agreed).get("proposal")
    proposal = Proposal.from_json(agreed) if agreed else Proposal(1, 1, Document.first(require_restart(run)["first"]))
    value = proposal.document.to_json()
    last = value["attempts"][-1]
    numbers = [one["attempt"] for one in value["attempts"] if run["host"] in one["hosts"]]
    part = _readable_status(paths.of_attempt(numbers[-1])) if numbers else None
    if part is None:
        known = own["state"] if own["state"] in (*contract.TERMINAL, contract.QUEUED) else contract.PENDING
        part = dict(own, state=known, ranks=[])
    elif own["state"] == contract.LOST and part["state"] not in contract.TERMINAL:
        part.update(state=contract.STALE)  # the agent has died, and its lease has not ended yet
    elif own["state"] in contract.TERMINAL or own["state"] in contract.NODE_ONLY:
        part.update({name: own[name] for name in ("state", "cause", "ended", "note")})
    elif part["state"] in contract.TERMINAL and part["state"] != contract.SUCCEEDED:
        part.update(state=contract.STARTING, cause=None, ended=None)  # another attempt may follow
    said = fs.read_optional(paths.state).get("note")  # by the agent: the hosts that it waits for
    if said and own["state"] in (contract.STARTING, contract.RUNNING):
        part.update(note=said)
    return dict(
        part, attempt=last["attempt"], record=run, agreed=dict(value, term=proposal.term, version=proposal.version)
    )


def _readable_status(paths: RunPaths) -> Optional[Dict[str, Any]]:
    """Return the status of an attempt; ``None`` if it has not begun here."""
    run = read_run(paths)
    return None if run is None else _status(paths, run)


def _status(paths: RunPaths, run: RunRecord) -> Dict[str, Any]:
    end = fs.read_json(paths.exit)
    found = Judgement(str(end["state"])) if end else judge(paths, run)
    if found.outcome is not None:
        # The supervisor may have recorded the end just before its own end.
        end = fs.read_json(paths.exit) or end_of(found.outcome)
    state = fs.read_optional(paths.state)
    beat = record.read_heartbeat(paths.heartbeat)
    now = notes.boottime()
    beating = beat if beat and not end and find_other_place(paths, state) == HERE else None
    launcher = processes.identity_from_json(state.get("launcher"))
    started, keeper_ended = state.get("started"), state.get("keeper_ended")
    if not end:
        why = outcomes.cause(str(run.get("host")), contract.SUPERVISOR_LOST, found.trouble) if found.trouble else None
        end = {"state": found.state, "cause": why}
        if beat is not None:
            end.update(attempt=beat.attempt, dropped_lines=beat.dropped)
    return {
        "run": run.get("run"),
        "job": run.get("job"),
        "cluster": run.get("cluster"),
        "host": run.get("host"),
        "node_rank": run.get("node_rank"),
        "state": str(end["state"]),
        "pid": launcher.pid if launcher else None,
        "ranks": run.get("ranks") or sorted(read_rank_processes(paths)),
        "exit_code": end.get("exit_code"),
        "heartbeat_age_s": round(max(0.0, now - beating.at), 3) if beating else None,
        "attempt": max(int(end.get("attempt", 1)), record.attempt_of(run)),
        "started": started if isinstance(started, str) else None,
        "ended": end.get("ended"),
        "cause": end.get("cause"),
        "candidates": end.get("candidates") or [],
        "note": found.note,
        "lag": read_lag(paths.saved),
        "keeper_ended": keeper_ended if isinstance(keeper_ended, str) else None,
        **_doctors_report(paths),
        "last_output_age_s": round(max(0.0, now - beating.last_output), 3) if beating and beating.last_output else None,
        "dropped_lines": end.get("dropped_lines", 0),
        "survivors": end.get("survivors", []),
        "unfinished": end.get("unfinished", []),
        "strangers": _strangers(paths),
        "record": run,
    }


def _strangers(paths: RunPaths) -> Optional[Dict[str, Any]]:
    """Return the connections without a proof to all ports of the run on this host (``Tally``); ``None`` for a few
    connections: they come from a port scan."""
    read = (fs.read_optional(paths.strangers(process)) for process in LISTENERS)
    tallies = [tally for tally in read if tally]
    count = sum(int(tally["count"]) for tally in tallies)
    if count < FEW_STRANGERS:
        return None
    most: Dict[str, int] = {}
    for tally in tallies:
        for address, number in tally["most"].items():
            most[address] = most.get(address, 0) + int(number)
    last = max(str(tally["last"]) for tally in tallies)
    addresses = max(int(tally["addresses"]) for tally in tallies)
    return {"count": count, "addresses": addresses, "most": most, "last": last}


def _doctors_report(paths: RunPaths) -> Dict[str, Any]:
    """Return the doctor's report of the run.

    ``diagnosis``: why the run is stuck, or was stuck at its end; ``None`` if it moves. ``slow``: the slow ranks.
    ``reported``: time of the report, by the clock of the hub.
    """
    report = fs.read_optional(paths.diagnosis)
    found = report.get("diagnosis")
    slow, reported = report.get("slow"), report.get("reported")
    stuck = isinstance(found, dict) and bool(found.get("verdict")) and not found.get("over")
    names = ("verdict", "suspects", "since", "time")
    return {
        "diagnosis": {name: found.get(name) for name in names} if stuck and found else None,
        "slow": slow if isinstance(slow, list) else [],
        "reported": reported if isinstance(reported, str) else None,
    }


def _readable(path: str) -> Optional[Dict[str, Any]]:
    """Read run.json; ``None`` if it is damaged, so that one damaged record does not hide the other runs."""
    try:
        return fs.read_json(path)
    except (WorkerError, OSError) as error:
        notes.note("left out: %s" % error)
        return None


def status_or_fault(paths: RunPaths) -> Optional[Dict[str, Any]]:
    """Return ``node_status``. For a damaged record, return a status that names the damage and is not terminal."""
    try:
        return node_status(paths)
    except (WorkerError, OSError) as error:
        run = _readable(paths.run)
        if run is None:  # removed just now
            return None
        why = outcomes.cause(str(run.get("host")), contract.SUPERVISOR_LOST, "its record cannot be read: %s" % error)
        found = {key: run.get(key) for key in ("run", "job", "cluster", "host", "node_rank")}
        return dict(found, state=contract.STALE, ranks=run.get("ranks") or [], cause=why, record=run)
