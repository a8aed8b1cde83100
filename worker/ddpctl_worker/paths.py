"""Where everything of a run lies on a node. No path is spelt anywhere else.

    <base_dir>/runs/<run>/<host>/      one node's folder of one run (base_dir may be a home shared by all nodes)
        run.json        what was asked for; never changes
        state.json      what runs now: state, and the identities of guardian, supervisor and launcher
        exit.json       how it ended; written once
        claim.json      the supervisor that took the run on, or word that it came too late; written once
        stop.json       somebody asked for a stop
        heartbeat       36 bytes, rewritten in place every second
        processes.json  the ranks and the process tree as last seen
        reserve         room kept free so that exit.json can be written on a full disk, and stop.reserve for stop.json
        logs/           segments of the run's log        pipes/   a FIFO for each rank's stdout and stderr
        code/           the unpacked code archive        output/  DDPCTL_OUTPUT_DIR
        metrics/        what each rank writes to its DDPCTL_METRICS
        doctor/         what lets the doctor see the ranks: boot/ is first on their PYTHONPATH, PID.sock torch's
                        debug server in a rank, PID.stack what a rank writes of its own stack, desk.sock the
                        supervisor's, nccl/rank_RANK torch's dump of NCCL's record
        diagnosis.json  why the run was or is stuck, and which ranks are slow
        last_look.json  where each rank stood before the run's end
    <base_dir>/checkpoints/<job>/<host>/   DDPCTL_CHECKPOINT_DIR: outlives the job's runs, and gc leaves it alone

Everything is 0700 / 0600; symlinks and foreign owners below base_dir are refused (UNSAFE_PATH).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List

from ddpctl_worker.channel import WorkerError
from ddpctl_worker.contract import BAD_REQUEST

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class RunPaths:
    """The files of one run on one node; ``node`` is that node's folder."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.host = os.path.basename(node)
        self.run = os.path.join(node, "run.json")
        self.state = os.path.join(node, "state.json")
        self.exit = os.path.join(node, "exit.json")
        self.claim = os.path.join(node, "claim.json")
        self.stop = os.path.join(node, "stop.json")
        self.heartbeat = os.path.join(node, "heartbeat")
        self.processes = os.path.join(node, "processes.json")
        self.reserve = os.path.join(node, "reserve")
        self.stop_reserve = os.path.join(node, "stop.reserve")
        self.logs = os.path.join(node, "logs")
        self.pipes = os.path.join(node, "pipes")
        self.code = os.path.join(node, "code")
        self.output = os.path.join(node, "output")
        self.metrics = os.path.join(node, "metrics")
        self.doctor = os.path.join(node, "doctor")
        self.doctor_boot = os.path.join(self.doctor, "boot")
        self.doctor_socket = os.path.join(self.doctor, "desk.sock")
        self.dumps = os.path.join(self.doctor, "nccl")
        self.diagnosis = os.path.join(node, "diagnosis.json")
        self.last_look = os.path.join(node, "last_look.json")
        self.shim = os.path.join(node, "python")
        self.error_file = os.path.join(node, "error.json")
        self.debug_log = os.path.join(node, "supervisor.log")

    def fifo(self, local_rank: int, stream: str) -> str:
        """The FIFO of a rank's ``stream`` (``out`` or ``err``)."""
        return os.path.join(self.pipes, "%d.%s" % (local_rank, stream))


def name(value: Any, what: str) -> str:
    """``value`` when it is a plain name that cannot leave its folder."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise WorkerError(BAD_REQUEST, "%r is not a %s" % (value, what))
    return value


def base_of(request: Dict[str, Any]) -> str:
    """The request's base_dir, ``~`` expanded."""
    base = os.path.expanduser(str(request.get("base_dir") or ""))
    if not os.path.isabs(base):
        raise WorkerError(BAD_REQUEST, "base_dir must be an absolute path, not %r" % (request.get("base_dir"),))
    return os.path.normpath(base)


def runs_dir(base: str) -> str:
    return os.path.join(base, "runs")


def run_paths(base: str, run: str, host: str) -> RunPaths:
    """The files of ``run`` on ``host``; nothing is created."""
    return RunPaths(os.path.join(runs_dir(base), name(run, "run id"), name(host, "host name")))


def checkpoint_dir(base: str, job: str, host: str) -> str:
    """The folder for the checkpoints of ``job`` on ``host``; nothing is created."""
    return os.path.join(base, "checkpoints", name(job, "job name"), name(host, "host name"))


def known_runs(base: str, host: str) -> List[RunPaths]:
    """Every run that has a folder for ``host`` below ``base``, in no order."""
    found = []
    root = runs_dir(base)
    try:
        runs = os.listdir(root)
    except FileNotFoundError:
        return []
    for run in runs:
        paths = RunPaths(os.path.join(root, run, name(host, "host name")))
        if _NAME.match(run) and os.path.exists(paths.run):
            found.append(paths)
    return found
