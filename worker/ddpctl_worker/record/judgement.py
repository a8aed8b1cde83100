"""The judgement of a run without an exit record: where its processes are, whether they live, and what that means.

Reading writes nothing. A lost run is judged again at every question, with the same result each time: its records do not
change any more. Only ``settle``, for verbs that act, writes the judgement down.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional

from ddpctl_worker.machine import fs, notes, proc, processes
from ddpctl_worker.machine.cgroup import of_record
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.limits import STALE_S
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.runrecord import RunRecord, read_run
from ddpctl_worker.wire import contract
from ddpctl_worker.wire.channel import WorkerError

HERE, BEFORE, ELSEWHERE = "here", "before", "elsewhere"  # on this boot, on an earlier boot, on another machine


class Judgement(NamedTuple):
    """The state of a run without an exit record.

    ``outcome``: the end to record, if the run is over. ``trouble``: how the record is damaged. ``note``: why the run
    cannot be judged from here.
    """

    state: str
    outcome: Optional[Outcome] = None
    trouble: Optional[str] = None
    note: Optional[str] = None


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
