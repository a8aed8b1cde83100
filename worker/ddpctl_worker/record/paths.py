"""Where everything of a run lies on a node. No path is spelt anywhere else.

    <base_dir>/runs/<run>/<host>/      one node's folder of one run (base_dir may be a home shared by all nodes)
        run.json        what was asked for; never changes
        network.json    what preflight measured between the hosts, for a report
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
        gpus.json       how busy the GPUs were, for a report
        saved.json      how far the checkpoints with all of their copies are behind the saves (checkpoint/lag.py)
        last_look.json  where each rank stood before the run's end
        attempts/N/     a run with restarts: what is here of code/, logs/, output/ and supervisor.log belongs
                        to all attempts, everything else of the Nth attempt is in its own folder
        peers.json      ... where the agents of the other hosts are; agreed.json what they have agreed on,
                        with agreed.reserve for its next change
        notified-EVENT-ATTEMPT.json  the claim of who notifies of that, written before anybody is notified
        strangers-PROCESS.json  connections to the ports of agent, supervisor or keeper that proved nothing
        notify.log      what became of each notifier
    <base_dir>/.names.lock             held by a start that may be the only one of its name
    <base_dir>/checkpoints/<cluster>/<project>/<job>/<host>/
                        DDPCTL_CHECKPOINT_DIR: outlives the job's runs, and gc leaves it alone. That of another host
                        holds copies of what that host wrote
        .ddpctl/        a manifest for each checkpoint (checkpoint/manifest.py)
        ../.<host>.starts   the last runs that were started with this folder (checkpoint/starts.py)

Everything is 0700 / 0600; symlinks and foreign owners below base_dir are refused (UNSAFE_PATH).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional

from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class RunPaths:
    """The files of one run on one node, or of one attempt: ``node`` is its folder, ``top`` that of the run."""

    def __init__(self, top: str, attempt: Optional[int] = None) -> None:
        self.top, self.attempt = top, attempt
        self.node = node = top if attempt is None else os.path.join(top, "attempts", str(attempt))
        self.host = os.path.basename(top)
        self.run = os.path.join(node, "run.json")
        self.network = os.path.join(top, "network.json")
        self.state = os.path.join(node, "state.json")
        self.exit = os.path.join(node, "exit.json")
        self.claim = os.path.join(node, "claim.json")
        self.stop = os.path.join(node, "stop.json")
        self.heartbeat = os.path.join(node, "heartbeat")
        self.processes = os.path.join(node, "processes.json")
        self.reserve = os.path.join(node, "reserve")
        self.stop_reserve = os.path.join(node, "stop.reserve")
        self.logs = os.path.join(top, "logs")
        self.pipes = os.path.join(node, "pipes")
        self.code = os.path.join(top, "code")
        self.output = os.path.join(top, "output")
        self.metrics = os.path.join(node, "metrics")
        self.doctor = os.path.join(node, "doctor")
        self.doctor_boot = os.path.join(self.doctor, "boot")
        self.doctor_socket = os.path.join(self.doctor, "desk.sock")
        self.dumps = os.path.join(self.doctor, "nccl")
        self.diagnosis = os.path.join(node, "diagnosis.json")
        self.gpus = os.path.join(node, "gpus.json")
        self.saved = os.path.join(node, "saved.json")
        self.last_look = os.path.join(node, "last_look.json")
        self.notify_log = os.path.join(node, "notify.log")
        self.shim = os.path.join(node, "python")
        self.error_file = os.path.join(node, "error.json")
        self.debug_log = os.path.join(top, "supervisor.log")
        self.peers = os.path.join(top, "peers.json")
        self.agreed = os.path.join(top, "agreed.json")
        self.agreed_reserve = os.path.join(top, "agreed.reserve")

    def of_attempt(self, number: int) -> RunPaths:
        """The files of an attempt, the first one being 1."""
        return RunPaths(self.top, number)

    def newest(self) -> RunPaths:
        """The files of the newest attempt that this host took part in; of the run itself where it has none."""
        return [self, *self.attempts()][-1]

    def attempts(self) -> List[RunPaths]:
        """Those that this host took part in, the oldest first; none of a run without restarts."""
        try:
            names = os.listdir(os.path.join(self.top, "attempts"))
        except OSError:
            return []
        return [self.of_attempt(number) for number in sorted(int(name) for name in names if name.isdigit())]

    def strangers(self, process: str) -> str:
        """How many strangers have connected to this process of the run (strangers.py)."""
        return os.path.join(self.top, "strangers-%s.json" % process)

    def fifo(self, local_rank: int, stream: str) -> str:
        """The FIFO of a rank's ``stream`` (``out`` or ``err``)."""
        return os.path.join(self.pipes, "%d.%s" % (local_rank, stream))

    def notified(self, event: str, attempt: int) -> str:
        """The claim that comes before the notifiers of ``event``."""
        return os.path.join(self.node, "notified-%s-%d.json" % (event, attempt))


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


def job_id(run: Mapping[str, Any]) -> str:
    """The identity of a run's job, ``CLUSTER/PROJECT/JOB``: many projects have a job ``train``."""
    return "/".join(str(run.get(key) or "") for key in ("cluster", "project", "job"))


def checkpoints_dir(base: str, job: str) -> str:
    """The folder for all checkpoints of ``job`` (a ``job_id``) on this machine: one folder in it for each host that
    wrote some."""
    parts = str(job).split("/")
    if len(parts) != 3:
        raise WorkerError(BAD_REQUEST, "%r is not CLUSTER/PROJECT/JOB" % (job,))
    return os.path.join(base, "checkpoints", *(name(part, "name of a job, project or cluster") for part in parts))


def checkpoint_dir(base: str, job: str, host: str) -> str:
    """The folder for the checkpoints of ``job`` (a ``job_id``) that ``host`` wrote; nothing is created."""
    return os.path.join(checkpoints_dir(base, job), name(host, "host name"))


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
