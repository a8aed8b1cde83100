"""This host's part of an attempt: its record, its start, and its end."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.agent.limits import MOST_TRACEBACK
from ddpctl_worker.agent.state import PartProgress
from ddpctl_worker.machine import fs, notes
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.document import CheckpointChoice
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.runrecord import RunRecord, require_restart
from ddpctl_worker.record.status import node_status
from ddpctl_worker.run import lease as leases
from ddpctl_worker.run.start import start_attempt
from ddpctl_worker.run.stop import stop_here
from ddpctl_worker.wire.contract import FAILED, KILLED, PLAIN, SPAWN_FAILED, TERMINAL

LAUNCHER_OPTIONS = 13  # words: python -m MODULE and five options with their values (planning.py of ddpctl)


def attempt_record(run: RunRecord, attempt: Mapping[str, Any], host: str) -> Dict[str, Any]:
    """Return the record of ``host``'s part of ``attempt``: the run's record with the values of the attempt."""
    members = {member["host"]: member for member in require_restart(run)["hosts"]}
    hosts: List[str] = list(attempt["hosts"])
    counts = [int(members[name]["nproc"]) for name in hosts]
    rank = hosts.index(host)
    first = sum(counts[:rank])
    return {
        **run,
        "attempt": attempt["attempt"],
        "hosts": hosts,
        "nnodes": len(hosts),
        "host_map": ",".join("%s:%d" % (name, int(members[name]["nproc"])) for name in hosts),
        "node_rank": rank,
        "nproc": counts[rank],
        "ranks": list(range(first, first + counts[rank])),
        "world_size": sum(counts),
        "master_addr": members[hosts[0]]["address"] if len(hosts) > 1 else "127.0.0.1",
        "master_port": attempt["master_port"],
        "gang": _gang(hosts, members, host, attempt["gang_port"]),
    }


def _gang(hosts: List[str], members: Mapping[str, Any], host: str, port: Any) -> Optional[Dict[str, Any]]:
    if len(hosts) < 2:
        return None
    hub = members[hosts[0]]
    return {"hub_host": hosts[0], "hub_addr": hub["address"], "port": port, "bind_addr": members[host]["address"]}


def attempt_argv(argv: List[str], part: Mapping[str, Any]) -> List[str]:
    """Return the launcher's command line for an attempt, made from the command line of another attempt."""
    if part.get("launcher") == PLAIN:
        return list(argv)
    values = {
        "--nnodes": part["nnodes"],
        "--node_rank": part["node_rank"],
        "--nproc_per_node": part["nproc"],
        "--master_addr": part["master_addr"],
        "--master_port": part["master_port"],
    }
    placed = list(argv)
    for at in range(3, min(LAUNCHER_OPTIONS, len(argv) - 1), 2):
        if argv[at] in values:
            placed[at + 1] = str(values[argv[at]])
    return placed


class CalledOff(Exception):
    """The part is not wanted any more: its preparation ends."""


class LocalPart:
    """This host's part of the attempt ``number``.

    The threads that work on the part set its fields, and the agent reads them (``progress``). ``end``: its exit record,
    once it has ended.
    """

    def __init__(self, top: str, number: int) -> None:
        self.paths = RunPaths(top, number)
        self.number = number
        self.started = False
        self.wanted = True  # False once the attempt is called off before its start
        self.moved = 0  # progress of the preparation, in bytes and steps
        self.reaches: Optional[Tuple[str, ...]] = None  # hosts outside the attempt from which it can resume
        self.choice: Optional[CheckpointChoice] = None  # for all hosts of the attempt, if this host chooses
        self.restored = False  # the checkpoints are in place
        self.called_off = False  # it is stopped because the attempt is over elsewhere
        self._lock = threading.Lock()
        self.end: Optional[Dict[str, Any]] = None
        self._pipes: List[int] = []

    @property
    def progress(self) -> PartProgress:
        """Return the progress, for the agent's decisions."""
        end = shorten_progress(self.end, self.called_off)
        return PartProgress(self.number, self.moved, self.reaches, self.choice, self.restored, end)

    def move(self, count: int = 1) -> None:
        """Count progress of the preparation: bytes that were read or fetched, or a finished step.

        Raises: CalledOff: the attempt is not wanted any more.
        """
        if not self.wanted:
            raise CalledOff("attempt %d is not wanted any more" % self.number)
        self.moved += count

    def start(
        self, request: Mapping[str, Any], base: str, attempt: Mapping[str, Any], umask: int, lease: float
    ) -> None:
        """Start the ranks of the part. ``attempt``: in the form of JSON (document.py).

        Raises: WorkerError: the start is refused. OSError: the disk refuses a file.
        """
        part = attempt_record(request["run"], attempt, self.paths.host)
        key = str(request.get("gang_key") or "")
        mine = dict(request, run=part, argv=attempt_argv(request["argv"], part), gang_key=attempt_key(key, self.number))
        mine["notify"] = None  # an attempt's end is not the run's
        self.started = True
        readers, self._pipes = leases.pipes()
        try:
            start_attempt(mine, base, self.paths, umask, dict(readers, until=lease))
        finally:
            for fd in readers.values():
                os.close(fd)

    def renew(self, until: float) -> None:
        """Let the part run until ``until`` (seconds since boot)."""
        with self._lock:
            if self.end is None:
                leases.send_lease(self._pipes, until)

    def look(self) -> None:
        """Read whether the part has ended."""
        if self.end is None and self.started:
            self.end = fs.read_json(self.paths.exit) or self._lost()
        if self.end is not None:
            self._close()

    def failed(self, why: str) -> None:
        """Record that the part could not be started."""
        self.end = record.exit_record(outcomes.failed(outcomes.cause(self.paths.host, SPAWN_FAILED, why)))
        self._close()

    def stop(self, grace: Optional[float], by: str) -> None:
        """End the part, and prove that nothing is left. Raises OSError: its records cannot be read now."""
        if not fs.is_gone(self.paths.run):
            stop_here(self.paths, grace, by)
        self.look()

    def call_off(self) -> None:
        """Start to end the part with the job's own grace, because the attempt is over on other hosts. Does not wait."""
        if not self.called_off:
            threading.Thread(target=self._stop_patiently, name="call-off", daemon=True).start()
            self.called_off = True

    def _stop_patiently(self) -> None:
        """Stop the part, however long its disk is away."""
        faults = notes.Faults(float("inf"))
        while not faults.survive(lambda: self.stop(None, "ddpctl")):
            pass

    def _close(self) -> None:
        with self._lock:
            while self._pipes:
                os.close(self._pipes.pop())

    def _lost(self) -> Optional[Dict[str, Any]]:
        """Return the end of a part without a living supervisor or guardian, as the records show it."""
        status = None
        with contextlib.suppress(Exception):
            status = node_status(self.paths)
        if status is None or status["state"] not in TERMINAL:
            return None
        return record.exit_record(Outcome(status["state"], status["cause"]), ended=status["ended"])


def attempt_key(run_key: str, attempt: int) -> str:
    """Return the gang's key of an attempt. A process that is left of another attempt cannot join with its own key."""
    return hmac.new(bytes.fromhex(run_key), b"ddpctl-attempt/%d" % attempt, hashlib.sha256).hexdigest()


def shorten_progress(end: Optional[Mapping[str, Any]], called_off: bool = False) -> Optional[Dict[str, Any]]:
    """Return the short form of an exit record, for the other hosts.

    A part that was ``called_off`` has no cause of its own.
    """
    if end is None:
        return None
    left = len(end.get("survivors") or ())
    if called_off and end["state"] == KILLED:
        return {"state": FAILED, "cause": None, "ended": end.get("ended"), "left": left}
    cause = end.get("cause")
    if cause:
        cause = dict(cause, traceback=(cause.get("traceback") or "")[-MOST_TRACEBACK:] or None)
    return {"state": end["state"], "cause": cause, "ended": end.get("ended"), "left": left}
