"""Runs helper programs that may hang."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ddpctl_worker.machine import proc
from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.limits import KILLED_TOOL_GONE_S, OUTPUT_BYTES

# The folders of administrators' tools, which PATH of a login over SSH often lacks.
ADMIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The folders of nvidia-smi in WSL2, and in containers of some clouds.
GPU_PATH = "/usr/lib/wsl/lib:/usr/local/nvidia/bin"


class _Running:
    """A program from before its fork until it is gone."""

    def __init__(self, argv: List[str], timeout: float) -> None:
        self.argv = argv
        self._late_at = time.monotonic() + timeout + KILLED_TOOL_GONE_S
        self._thread = threading.get_native_id()
        self.process: Optional[subprocess.Popen[bytes]] = None  # once it has been started
        self.start = -1  # its start time, since pids are reused
        self.over = False  # no call waits for it any more

    @property
    def late(self) -> bool:
        """Return whether it survives SIGKILL, or hangs in its start because of a hung disk."""
        return self.over or time.monotonic() > self._late_at

    def pids(self) -> List[int]:
        if self.process is not None:
            stat = proc.read_stat(self.process.pid)
            return [stat.pid] if stat is not None and stat.start == self.start and stat.alive else []
        if self.over:
            return []
        # Only the kernel knows a child before its exec is over. Orphans are children of the main thread only.
        return [int(word) for word in read_text("/proc/self/task/%d/children" % self._thread).split()]


_known: Set[_Running] = set()
_stopped = False


def started_tools() -> List[int]:
    """Return the pids of the programs that ``run`` has started and that still exist. They do not belong to the job."""
    return [pid for _, pids in _living() for pid in pids]


def stuck() -> List[int]:
    """Return the pids of the started programs that survive SIGKILL."""
    return sorted(pid for program, pids in _living() if program.late for pid in pids)


def stop() -> None:
    """Kill the programs that run, and start no more."""
    global _stopped
    _stopped = True
    for pid in started_tools():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _living() -> List[Tuple[_Running, List[int]]]:
    found = [(one, one.pids()) for one in list(_known)]
    for one, pids in found:
        if one.over and not pids:
            _known.discard(one)
            if one.process is not None:
                one.process.poll()
    return [(one, pids) for one, pids in found if pids]


def find(program: str) -> Optional[str]:
    """Return the program's full path, or ``None``."""
    return shutil.which(program) or shutil.which(program, path=ADMIN_PATH + ":" + GPU_PATH)


def run(
    argv: List[str],
    timeout: float,
    env: Optional[Dict[str, str]] = None,
    cwd: Optional[str] = None,
    replace_env: Optional[Dict[str, str]] = None,
    limit: int = OUTPUT_BYTES,
) -> Dict[str, Any]:
    """Run a program; return {"code" (``None``: it was killed), "stdout", "stderr", "timed_out", "seconds"}.

    ``env`` is added to this process's environment, ``replace_env`` replaces it. ``limit``: bytes kept of each stream.
    A program that is stuck in the kernel survives SIGKILL, and is left behind. While it exists, a call with the same
    ``argv`` times out at once. After ``stop`` every call does. ``stderr`` then says why.

    Raises:
        FileNotFoundError: there is no such program.
    """
    program = find(argv[0])
    if program is None:
        raise FileNotFoundError(argv[0])
    begun = time.monotonic()
    base = dict(os.environ, LC_ALL="C") if replace_env is None else replace_env
    one = _Running(argv, timeout)
    refused = _refusal(argv)
    _known.add(one)  # before ``_stopped`` is read, so ``stop`` misses no program
    try:
        if refused or _stopped:
            code, out, err = None, b"", (refused or "the run is being stopped").encode("utf-8", "replace")
        else:
            code, out, err = _run([program, *argv[1:]], timeout, dict(base, **(env or {})), cwd, one)
    finally:
        one.over = True
        _living()
    return {
        "code": code,
        "stdout": out[:limit].decode("utf-8", "replace"),
        "stderr": err[:limit].decode("utf-8", "replace"),
        "timed_out": code is None,
        "seconds": round(time.monotonic() - begun, 3),
    }


def _refusal(argv: List[str]) -> str:
    pid = next((pids[0] for one, pids in _living() if one.late and one.argv == argv), None)
    return "" if pid is None else "an earlier one (pid %d) does not end, not even when it is killed" % pid


def _run(
    argv: List[str], timeout: float, env: Dict[str, str], cwd: Optional[str], one: _Running
) -> Tuple[Optional[int], bytes, bytes]:
    """Return the exit code (``None``: it was late), stdout and stderr."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env, cwd=cwd)
    stat = proc.read_stat(process.pid)
    one.start = stat.start if stat is not None else -1  # the supervisor may have reaped it
    one.process = process
    if _stopped:
        process.kill()
    try:
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err
    except subprocess.TimeoutExpired as late:
        _give_up(process)
        return None, late.stdout or b"", late.stderr or b""


def _give_up(process: "subprocess.Popen[bytes]") -> None:
    """Kill the program and close its pipes, which a grandchild may hold open forever."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # a program that is stuck in the kernel stays
        process.wait(KILLED_TOOL_GONE_S)


def last_stderr_line(said: Dict[str, Any]) -> str:
    """Return the last line of an interpreter's stderr, or how the interpreter ended."""
    lines = [line for line in said["stderr"].splitlines() if line.strip()]
    return lines[-1] if lines else "the interpreter ended with status %s" % said["code"]


def run_if_installed(argv: List[str], timeout: float, **how: Any) -> Optional[Dict[str, Any]]:
    """Call ``run``; return ``None`` if the program is not installed."""
    try:
        return run(argv, timeout, **how)
    except FileNotFoundError:
        return None
