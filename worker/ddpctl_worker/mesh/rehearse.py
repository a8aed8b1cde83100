"""The rehearsal: the job's own launcher and interpreter run a small test of the process group.

It is no run: it has no record and no supervisor. All its processes stay below this worker (a child subreaper) and end
with it. They work in a temporary folder, which is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional, Set

from ddpctl_worker.doctor import look
from ddpctl_worker.doctor.look import Subject, Tools
from ddpctl_worker.machine import proc, processes
from ddpctl_worker.machine.net import CONNECTED, LISTENING, tcp_sockets
from ddpctl_worker.mesh.limits import CLOSED_PAUSE_S, CONNECTED_LOOK_S, GRACE_S, MAX_S, NCCL_LINES, SELECT_S, TAIL_LINES
from ddpctl_worker.record import ranks
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.rules import phrases, rank_view
from ddpctl_worker.run.launcher import BeforeExec, environment, expand_home, login_environment, make_shim
from ddpctl_worker.run.stopper import Stopper, reap, run_to_end
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, SPAWN_FAILED

_ENTERS = re.compile(r"rank (\d+): (\w+)\s*$")
_NCCL = re.compile(r"NCCL INFO (.*)")
_NETWORK = re.compile(r"Using network|Bootstrap : Using|NET/|GPU Direct RDMA|NCCL_\w+ set")
_STARTS = re.compile(r"pid \d+ rank (\d+) of \d+ ")


def rehearse(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Run ``argv`` beside ``script`` (text, saved as ``name``), and return the result.

    The run ends by itself, after ``deadline`` seconds, or when ddpctl closes the standard input because the other nodes
    have ended.

    Returns:
        {"exit_code": ``None`` if it had to be stopped, "timed_out", "seconds",
        "ranks": {rank: {"phase", "report"}},
        "where": {rank: its place when it had to be stopped},
        "tail": the last lines without a report,
        "nccl": NCCL's lines about its network, each once and without its prefix,
        "met": whether the launcher ever had a connection on ``port``,
        "survivors"}
    """
    folder = tempfile.mkdtemp(prefix="ddpctl-rehearsal-")
    try:
        return _Rehearsal(request, folder, channel).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Rehearsal:
    """A launcher, its output, and its end."""

    def __init__(self, request: Dict[str, Any], folder: str, channel: Channel) -> None:
        name = str(request["name"])
        if os.path.basename(name) != name or name.startswith("."):
            raise WorkerError(BAD_REQUEST, "%r is not the name of a script" % (name,))
        self._paths = RunPaths(folder)
        self._request = request
        self._argv = expand_home(request["argv"])
        self._channel = channel
        self._deadline = min(float(request["deadline"]), MAX_S)
        self._umask = channel.login_umask
        self._buffer = b""
        self.ranks: Dict[str, Dict[str, Any]] = {}
        self.tail: List[str] = []
        self.nccl: List[str] = []
        self.met = False
        for path in (self._paths.code, self._paths.output):
            os.mkdir(path, 0o700)
        with open(os.path.join(self._paths.code, name), "w", encoding="utf-8") as file:
            file.write(str(request["script"]))

    def run(self) -> Dict[str, Any]:
        started = time.monotonic()
        processes.become_subreaper()
        try:
            child = self._start()
        except OSError as error:
            raise WorkerError(SPAWN_FAILED, "%s: %s" % (self._argv[0], error.strerror)) from None
        status = self._follow(child, started + self._deadline)
        where = self._where(child.pid) if status is None else {}
        stopper = self._stop(child.pid)
        return {
            "exit_code": status,
            "timed_out": status is None,
            "seconds": round(time.monotonic() - started, 2),
            "ranks": self.ranks,
            "where": where,
            "tail": self.tail[-TAIL_LINES:],
            "nccl": self.nccl,
            "met": self.met or status is not None,
            "survivors": stopper.survivors,
        }

    def _start(self) -> "subprocess.Popen[bytes]":
        run = {"job": "rehearsal", "run": "rehearsal-" + secrets.token_hex(4), "host": self._request["host"]}
        request = dict(self._request, run=run)
        env = environment(request, login_environment(), self._paths, self._paths.output, secrets.token_hex(16))
        # The shim lets the doctor see the ranks. They get no pipes (0 ranks): their output comes with the launcher's.
        if make_shim(self._paths, self._argv[0], env, 0, doctor=True):
            env["PYTHON_EXEC"] = self._paths.shim
        return subprocess.Popen(
            self._argv,
            cwd=self._paths.code,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=BeforeExec(None, self._umask),
        )

    def _follow(self, child: "subprocess.Popen[bytes]", until: float) -> Optional[int]:
        """Read until the launcher ends, and return its exit code.

        ``None``: the time is up, or ddpctl has closed the connection.
        """
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        look = time.monotonic() + CONNECTED_LOOK_S
        while time.monotonic() < until and not self._channel.closed.is_set():
            if select.select([child.stdout], [], [], SELECT_S)[0]:
                data = child.stdout.read(1 << 16)
                self._take(data or b"")
                if data == b"":
                    time.sleep(CLOSED_PAUSE_S)
            if child.poll() is not None:
                self._take(child.stdout.read() or b"")
                return child.returncode
            if not self.met and time.monotonic() >= look:
                # Not at the end only: when a node gives up, the connections of the other nodes are gone too.
                self.met = self._connected()
                look = time.monotonic() + CONNECTED_LOOK_S
        return None

    def _where(self, launcher: int) -> Dict[str, str]:
        living = [Subject(rank.rank, rank.local_rank, rank.pid) for rank in ranks.find_ranks(launcher, {})]
        looks = look.look(living, Tools(self._paths.doctor, None, asked=True), interval=0.0)
        return {str(each["rank"]): phrases.place_text(rank_view.read_looks(each)) for each in looks}

    def _take(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8", "replace").rstrip())

    def _line(self, line: str) -> None:
        """Note the phase or the report of a rank; keep any other line for the user."""
        report = _report(line)
        if report is not None:
            self.ranks.setdefault(str(report["rank"]), {"phase": None, "report": None})["report"] = report
            return
        nccl = _NCCL.search(line)
        if nccl:
            text = nccl.group(1)[:300]
            if _NETWORK.search(text) and text not in self.nccl and len(self.nccl) < NCCL_LINES:
                self.nccl.append(text)
            return
        enters, starts = _ENTERS.match(line), _STARTS.match(line)
        if enters:
            self.ranks.setdefault(enters.group(1), {"phase": None, "report": None})["phase"] = enters.group(2)
        elif starts:
            self.ranks.setdefault(starts.group(1), {"phase": "import", "report": None})
        elif line:
            self.tail = [*self.tail[-TAIL_LINES:], line[:500]]

    def _connected(self) -> bool:
        """Return whether a process of the rehearsal is connected to the master port, or listens on it."""
        own = proc.descendants([os.getpid()], proc.snapshot())
        inodes: Set[int] = set()
        for pid in own:
            with contextlib.suppress(OSError):  # the process ended meanwhile
                inodes |= proc.sockets(pid)
        port = int(self._request["port"])
        used = (row for row in tcp_sockets() if row.state in (CONNECTED, LISTENING) and row.inode in inodes)
        return any(port in (row.port, row.far) for row in used)

    def _stop(self, launcher: int) -> Stopper:
        """End all processes that are left of the launcher and its ranks."""

        def left() -> Dict[int, proc.Stat]:
            reap()
            among = proc.snapshot()
            own = proc.descendants([os.getpid()], among)
            return {pid: among[pid] for pid in own if among[pid].alive}

        return run_to_end(Stopper(left, processes.identify(launcher), GRACE_S))


def _report(line: str) -> Optional[Dict[str, Any]]:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "rank" in value and "phase" in value else None
