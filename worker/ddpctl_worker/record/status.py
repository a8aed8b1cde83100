"""The status verb: the records of a run, judged against the present state of the machine.

Reading writes nothing. A lost run is judged again at every question, with the same result each time: its records do not
change any more. Only ``settle``, for verbs that act, writes the judgement down.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.machine import fs, notes, proc, processes
from ddpctl_worker.machine.cgroup import of_record
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.document import Document, Proposal
from ddpctl_worker.record.lag import read_lag
from ddpctl_worker.record.limits import ANSWER_BYTES, FEW_STRANGERS, STALE_S
from ddpctl_worker.record.metrics import last_values, values_in_output
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths, base_of, job_id, known_runs, run_paths
from ddpctl_worker.record.ranks import read_rank_processes
from ddpctl_worker.record.runrecord import RunRecord, read_run, require_restart
from ddpctl_worker.wire import contract
from ddpctl_worker.wire.channel import Channel, WorkerError

LISTENERS = ("agent", "supervisor", "keeper")  # processes of a run with ports
HERE, BEFORE, ELSEWHERE = "here", "before", "elsewhere"  # on this boot, on an earlier boot, on another machine

Recorded = Tuple[Dict[str, Any], RunPaths]  # run.json and the paths of the run


class Judgement(NamedTuple):
    """The state of a run without an exit record.

    ``outcome``: the end to record, if the run is over. ``trouble``: how the record is damaged. ``note``: why the run
    cannot be judged from here.
    """

    state: str
    outcome: Optional[Outcome] = None
    trouble: Optional[str] = None
    note: Optional[str] = None


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


def judge(paths: RunPaths, run: RunRecord) -> Judgement:
    """Judge a run without an exit record."""
    try:
        state = fs.read_json(paths.state) or {}
    except (WorkerError, OSError) as error:
        return Judgement(contract.STALE, trouble="its record cannot be read: %s" % error)
    host = str(run.get("host"))
    supervisor = processes.identity_from_json(state.get("supervisor"))
    guardian = processes.identity_from_json(state.get("guardian"))
    place, when = find_other_place(paths, state), last_sign(paths)
    if place == ELSEWHERE:
        return Judgement(contract.UNREACHABLE, note=_elsewhere(state))
    if place == BEFORE:
        why = outcomes.cause(host, contract.NODE_REBOOTED, "the node was rebooted while the job ran", when=when)
        return Judgement(contract.LOST, Outcome(contract.LOST, why, when=when))
    if processes.is_alive(supervisor):
        beat = record.read_heartbeat(paths.heartbeat)
        age = notes.boottime() - beat.at if beat else 0.0
        live = [one for one in (contract.STARTING, contract.RUNNING, contract.STOPPING) if one == state.get("state")]
        return Judgement(contract.STALE if age > STALE_S else live[0] if live else contract.STARTING)
    if supervisor is None:
        return _without_supervisor(paths, host, processes.identity_from_json(state.get("starter")), when)
    if processes.is_alive(guardian) or find_remaining_processes(paths, state):
        return Judgement(contract.STALE)  # being cleaned up, or running without a supervisor: kill ends it
    outcome = record.lost(paths, host, _describe_loss(state), when=when)
    return Judgement(outcome.state, outcome)


def _describe_loss(state: Dict[str, Any]) -> str:
    """Return why a run without any process is lost."""
    manager = processes.identity_from_json(state.get("manager"))
    if manager is not None and not processes.is_alive(manager):
        return "the user's own systemd (user@%d.service), which had the run's processes, was ended" % os.getuid()
    return "supervisor and guardian were killed; no process of the job is left"


def _without_supervisor(paths: RunPaths, host: str, starter: Optional[processes.ProcessId], when: float) -> Judgement:
    """Judge a run whose supervisor has not recorded itself yet. The starter starts the guardian, which starts the
    supervisor. So once neither starter nor guardian lives, no supervisor will come. The starter is checked first,
    because it hands over to the guardian."""
    if starter is None:
        return Judgement(contract.STALE, trouble="%s does not say who runs it" % paths.state)
    if processes.is_alive(starter) or _coming(paths, host):
        state = fs.read_optional(paths.state)
        return Judgement(
            contract.QUEUED if state.get("state") == contract.QUEUED else contract.STARTING, note=state.get("note")
        )
    if find_remaining_processes(paths, read_owner_record(paths)):
        return Judgement(contract.STALE)
    if fs.read_optional(paths.state).get("supervisor"):  # it has come and gone meanwhile: the next look judges that
        return Judgement(contract.STARTING)
    text = "the start was interrupted before the launcher ran; start it again"
    if fs.read_optional(paths.state).get("state") == contract.QUEUED:
        text = "the process that kept the run's place in line was killed; start it again"
    why = outcomes.cause(host, contract.SPAWN_FAILED, text, when=when)
    return Judgement(contract.FAILED, outcomes.failed(why, when=when))


def _coming(paths: RunPaths, host: str) -> bool:
    claimed = processes.identity_from_json(fs.read_optional(paths.claim).get("supervisor"))
    # Twice: the guardian forks once while it starts, and a look during the fork finds neither parent nor child.
    return processes.is_alive(claimed) or any(processes.guardians(paths.run_id, host) for _ in range(2))


def settle(paths: RunPaths) -> None:
    """Record the end of a run that is over and has no process left to do so, if the disk takes it.

    Verbs that only read do not call this function: in a shared base_dir, or after a change of clock or host name, a
    judgement may be wrong.
    """
    run = read_run(paths)
    if run is None or fs.read_json(paths.exit) is not None or judge(paths, run).outcome is None:
        return
    if processes.identity_from_json(fs.read_optional(paths.state).get("supervisor")) is None:
        is_cut_off(paths)
    outcome = judge(paths, run).outcome  # the claim may have been lost to a supervisor
    try:
        if outcome is not None:
            record.write(paths, outcome, ended=notes.iso(outcome.when), patience=0.0)
    except OSError as error:
        notes.note("the run's end could not be recorded: %s" % error)


def end_of(outcome: Outcome) -> Dict[str, Any]:
    """Return a judgement in the form of an exit record."""
    return {"state": outcome.state, "cause": outcome.cause, "ended": notes.iso(outcome.when)}


def last_sign(paths: RunPaths) -> float:
    """Return the wall-clock time of the last write of the run here: about the end of a lost run."""
    found = 0.0
    for path in (paths.state, paths.heartbeat):
        try:
            found = max(found, os.stat(path).st_mtime)
        except OSError:
            continue
    return found


def find_other_place(paths: RunPaths, state: Dict[str, Any]) -> str:
    """Return where the run's processes are: HERE, BEFORE (they ended with an earlier boot) or ELSEWHERE.

    A restarted container keeps the boot id of its machine and loses its pids: that counts as a reboot. A heartbeat
    whose process cannot be seen here comes from another machine, even if id and name are equal.
    """
    now, known = proc.machine(), _machine(state)
    if state.get("boot") in (None, now["boot"]) and known.get("pids", now["pids"]) == now["pids"]:
        return HERE
    return ELSEWHERE if _is_other(state) or abs(time.time() - last_sign(paths)) < STALE_S else BEFORE


def _machine(state: Dict[str, Any]) -> Dict[str, Any]:
    made = state.get("machine")
    return made if isinstance(made, dict) else {}


def _is_other(state: Dict[str, Any]) -> bool:
    """Whether machine id or name differ from the machine of the run."""
    now, known = proc.machine(), _machine(state)
    return any(known.get(key, now[key]) != now[key] for key in ("id", "name"))


def refuse_elsewhere(paths: RunPaths) -> None:
    """Return only on the run's own machine.

    A restarted machine looks like another machine of the same image, until its old heartbeat has become stale.

    Raises:
        WorkerError: OTHER_MACHINE.
    """
    state = fs.read_optional(paths.state)
    first = last_sign(paths)
    while not os.path.exists(paths.exit) and find_other_place(paths, state) == ELSEWHERE:
        if _is_other(state) or last_sign(paths) > first:
            raise WorkerError(
                contract.OTHER_MACHINE, _elsewhere(state), "correct the host's `address:` in the inventory"
            )
        time.sleep(0.5)


def _elsewhere(state: Dict[str, Any]) -> str:
    name, here = _machine(state).get("name"), os.uname().nodename
    if not _is_other(state):
        return (
            "%s was restarted just now, or two machines of this name share one base_dir; ask again in a moment" % here
        )
    return "the run was started on %s and this is %s, with the same base_dir" % (name or "another machine", here)


def read_owner_record(paths: RunPaths) -> Dict[str, Any]:
    """Return state.json, or the claim before the supervisor has saved its state: the processes that run the part."""
    return {**fs.read_optional(paths.claim), **fs.read_optional(paths.state)}


def find_remaining_processes(paths: RunPaths, state: Dict[str, Any]) -> Dict[int, proc.Stat]:
    """Return the living processes of a run whose supervisor has died."""
    keep = [who.pid for who in watchers(state)]
    group = of_record(state.get("group"))
    return processes.find_members(str(state.get("cookie") or ""), (), keep, _tree_seen(paths, state), group)


def _tree_seen(paths: RunPaths, state: Dict[str, Any]) -> List[List[int]]:
    tree = fs.read_optional(paths.processes).get("tree") if state.get("boot") == proc.boot_id() else None
    pairs = [one for one in tree if isinstance(one, list) and len(one) == 2] if isinstance(tree, list) else []
    return [pair for pair in pairs if all(isinstance(number, int) for number in pair)]


def watchers(state: Dict[str, Any]) -> List[processes.ProcessId]:
    """Return supervisor and guardian, if they live."""
    found = (processes.identity_from_json(state.get(name)) for name in ("supervisor", "guardian"))
    return [who for who in found if who is not None and processes.is_alive(who)]


def is_cut_off(paths: RunPaths) -> bool:
    """Take the claim; return whether this call took it. A supervisor that starts later finds the claim and ends."""
    try:
        return fs.write_once(paths.claim, {}, durable=False)
    except OSError as error:  # a full or read-only disk
        notes.note("the claim could not be taken: %s" % error)
        return False
