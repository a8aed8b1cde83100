"""Every path of a run on a node. No other module spells a path.

    <base_dir>/runs/<run>/<host>/      one node's folder of one run (base_dir may be a home shared by all nodes)
        run.json        the order; changes only when a queued run starts, which may need other ports
        network.json    links as preflight measured them, for a report
        state.json      the present state, and the identities of guardian, supervisor and launcher
        exit.json       the end; written once
        claim.json      the supervisor of the run, or {} where a stop came first; written once
        NAME.claim/     of a file that is written once, on a file system without hard links (machine/fs.py)
        stop.json       a user asked for a stop
        heartbeat       36 bytes, rewritten in place every second
        processes.json  the ranks and the process tree as last seen
        reserve         bytes kept free so that exit.json can be written on a full disk; stop.reserve for stop.json
        logs/           segments of the run's log        pipes/   a FIFO for each rank's stdout and stderr
        code/           the unpacked code archive        output/  DDPCTL_OUTPUT_DIR
        metrics/        DDPCTL_METRICS of each rank
        doctor/         boot/ is first on the PYTHONPATH of the ranks, PID.sock is torch's debug server in a rank,
                        PID.stack the stack that a rank writes of itself, answers.sock the supervisor's server,
                        nccl/rank_RANK torch's dump of NCCL's record, turn the lock of the rank whose server starts
        diagnosis.json  why the run was or is stuck, and which ranks are slow
        gpus.json       use of the GPUs over time, for a report
        saved.json      how far the checkpoints with all copies are behind the saves (lag.py)
        last_look.json  where each rank stood before the run's end
        attempts/N/     the Nth attempt of a run with restarts: every file above except code/, logs/, output/ and
                        supervisor.log, which belong to all attempts
        line.json       of a run that waits for slots: addresses of the other waiters, and the order of the hosts
        peers.json      with restarts: addresses of the other agents
        agreed.json     with restarts: the document of the agents; agreed.reserve is kept free for its next change
        notified-EVENT-ATTEMPT.json  the claim of a notification, written before any notifier starts
        strangers-PROCESS.json  connections to the ports of agent, supervisor or keeper without a proof
        notify.log      the end of each notifier
    <base_dir>/.names.lock             held by a start that must be the only start of its name
    <base_dir>/checkpoints/<cluster>/<project>/<job>/<host>/
                        DDPCTL_CHECKPOINT_DIR: outlives the job's runs, and gc leaves it alone. The folder of another
                        host holds copies of that host's files
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
_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}\Z")


class RunPaths:
    """The files of one run on one node, or of one attempt. ``node`` is the folder, ``top`` the folder of the run."""

    def __init__(self, top: str, attempt: Optional[int] = None) -> None:
        self.top, self.attempt = top, attempt
        self.node = node = top if attempt is None else os.path.join(top, "attempts", str(attempt))
        self.run_id, self.host = os.path.basename(os.path.dirname(top)), os.path.basename(top)
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
        self.doctor_socket = os.path.join(self.doctor, "answers.sock")
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
        self.line = os.path.join(top, "line.json")
        self.agreed = os.path.join(top, "agreed.json")
        self.agreed_reserve = os.path.join(top, "agreed.reserve")

    def of_attempt(self, number: int) -> RunPaths:
        """Return the files of attempt ``number``, from 1 on."""
        return RunPaths(self.top, number)

    def newest(self) -> RunPaths:
        """Return the files of this host's newest attempt, or of the run itself if it has no attempts."""
        return [self, *self.attempts()][-1]

    def attempts(self) -> List[RunPaths]:
        """Return the files of each attempt of this host, oldest first; [] for a run without restarts."""
        try:
            names = os.listdir(os.path.join(self.top, "attempts"))
        except OSError:
            return []
        return [self.of_attempt(number) for number in sorted(int(name) for name in names if _ATTEMPT.match(name))]

    def strangers(self, process: str) -> str:
        """Return the file that counts connections by strangers to ``process`` (machine/strangers.py)."""
        return os.path.join(self.top, "strangers-%s.json" % process)

    def fifo(self, local_rank: int, stream: str) -> str:
        """Return the FIFO of a rank's ``stream`` (``out`` or ``err``)."""
        return os.path.join(self.pipes, "%d.%s" % (local_rank, stream))

    def notified(self, event: str, attempt: int) -> str:
        """Return the claim that is written before the notifiers of ``event`` start."""
        return os.path.join(self.node, "notified-%s-%d.json" % (event, attempt))


def name(value: Any, what: str) -> str:
    """Return ``value`` if it is a plain name that cannot leave its folder.

    Raises:
        WorkerError: it is not.
    """
    if not isinstance(value, str) or not _NAME.match(value):
        raise WorkerError(BAD_REQUEST, "%r is not a %s" % (value, what))
    return value


def base_of(request: Dict[str, Any]) -> str:
    """Return the request's base_dir with ``~`` expanded.

    Raises:
        WorkerError: it is not an absolute path.
    """
    base = os.path.expanduser(str(request.get("base_dir") or ""))
    if not os.path.isabs(base):
        raise WorkerError(BAD_REQUEST, "base_dir must be an absolute path, not %r" % (request.get("base_dir"),))
    return os.path.normpath(base)


def runs_dir(base: str) -> str:
    return os.path.join(base, "runs")


def run_paths(base: str, run: str, host: str) -> RunPaths:
    """Return the files of ``run`` on ``host``; creates nothing."""
    return RunPaths(os.path.join(runs_dir(base), name(run, "run id"), name(host, "host name")))


def job_id(run: Mapping[str, Any]) -> str:
    """Return the identity of a run's job, ``CLUSTER/PROJECT/JOB``: many projects have a job ``train``."""
    return "/".join(str(run.get(key) or "") for key in ("cluster", "project", "job"))


def checkpoints_dir(base: str, job: str) -> str:
    """Return the folder for all checkpoints of ``job`` (a ``job_id``) on this machine. Each host that wrote checkpoints
    has a folder in it."""
    parts = str(job).split("/")
    if len(parts) != 3:
        raise WorkerError(BAD_REQUEST, "%r is not CLUSTER/PROJECT/JOB" % (job,))
    return os.path.join(base, "checkpoints", *(name(part, "name of a job, project or cluster") for part in parts))


def checkpoint_dir(base: str, job: str, host: str) -> str:
    """Return the folder for the checkpoints of ``job`` (a ``job_id``) by ``host``; creates nothing."""
    return os.path.join(checkpoints_dir(base, job), name(host, "host name"))


def known_runs(base: str, host: str) -> List[RunPaths]:
    """Return every run with a folder for ``host`` below ``base``, in no order."""
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
