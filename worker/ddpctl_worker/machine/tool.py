"""Run a helper program that may hang."""

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

# Where administrators' tools live; a login over SSH often lacks them in PATH.
ADMIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where nvidia-smi is in WSL2, and in containers of some clouds.
GPU_PATH = "/usr/lib/wsl/lib:/usr/local/nvidia/bin"


class _Running:
    """A program from before its fork until it is gone."""

    def __init__(self, argv: List[str], timeout: float) -> None:
        self.argv = argv
        self._late_at = time.monotonic() + timeout + KILLED_TOOL_GONE_S
        self._thread = threading.get_native_id()
        self.process: Optional[subprocess.Popen[bytes]] = None  # once it has been started
        self.start = -1  # its start time: its number may be another process's later
        self.over = False  # nobody waits for it any more

    @property
    def late(self) -> bool:
        """Whether it does not end although it was killed, or cannot be started as its disk hangs."""
        return self.over or time.monotonic() > self._late_at

    def pids(self) -> List[int]:
        if self.process is not None:
            stat = proc.read_stat(self.process.pid)
            return [stat.pid] if stat is not None and stat.start == self.start and stat.alive else []
        if self.over:
            return []
        # Of a child whose exec is not over yet only the kernel knows; orphans go to the main thread.
        return [int(word) for word in read_text("/proc/self/task/%d/children" % self._thread).split()]


_known: Set[_Running] = set()
_stopped = False


def started() -> List[int]:
    """The programs that this process has started here and that are not gone: never to be taken for anything else."""
    return [pid for _, pids in _living() for pid in pids]


def stuck() -> List[int]:
    """Those of them that cannot be ended."""
    return sorted(pid for one, pids in _living() if one.late for pid in pids)


def stop() -> None:
    """Start no more, and kill those that run."""
    global _stopped
    _stopped = True
    for pid in started():
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
    """The program's full path, or None."""
    return shutil.which(program) or shutil.which(program, path=ADMIN_PATH + ":" + GPU_PATH)


def run(
    argv: List[str],
    timeout: float,
    env: Optional[Dict[str, str]] = None,
    cwd: Optional[str] = None,
    replace_env: Optional[Dict[str, str]] = None,
    limit: int = OUTPUT_BYTES,
) -> Dict[str, Any]:
    """The program's ``code`` (None when it had to be killed), ``stdout``, ``stderr``, ``timed_out`` and ``seconds``.

    ``env`` is added to ours, ``replace_env`` stands in its place; ``limit``: bytes kept of either stream. A program
    that is stuck in the kernel survives SIGKILL; it is left behind, never waited for. While it is there, the same
    ``argv`` counts as timed out at once, and so does any after ``stop``; ``stderr`` says why.
    Raises FileNotFoundError where there is no such program.
    """
    program = find(argv[0])
    if program is None:
        raise FileNotFoundError(argv[0])
    begun = time.monotonic()
    base = dict(os.environ, LC_ALL="C") if replace_env is None else replace_env
    one = _Running(argv, timeout)
    refused = _refusal(argv)
    _known.add(one)  # before the last look at _stopped: ``stop`` sees whatever gets past that
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
    """Why this is not to be run; empty where it may be."""
    pid = next((pids[0] for one, pids in _living() if one.late and one.argv == argv), None)
    return "" if pid is None else "an earlier one (pid %d) does not end, not even when it is killed" % pid


def _run(
    argv: List[str], timeout: float, env: Dict[str, str], cwd: Optional[str], one: _Running
) -> Tuple[Optional[int], bytes, bytes]:
    """Exit code (None: it was late), stdout, stderr."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env, cwd=cwd)
    stat = proc.read_stat(process.pid)
    one.start = stat.start if stat is not None else -1  # the supervisor may have collected it already
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
    """Kill it and let go of its output; a grandchild may hold that open for ever."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that is stuck in the kernel stays
        process.wait(KILLED_TOOL_GONE_S)


def last_words(said: Dict[str, Any]) -> str:
    """The last line that an interpreter said on stderr before it ended, or how it ended."""
    lines = [line for line in said["stderr"].splitlines() if line.strip()]
    return lines[-1] if lines else "the interpreter ended with status %s" % said["code"]


def tool(argv: List[str], timeout: float, **how: Any) -> Optional[Dict[str, Any]]:
    """Like ``run``, but None where the program is not installed."""
    try:
        return run(argv, timeout, **how)
    except FileNotFoundError:
        return None
