"""Run a helper program that may hang."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional

# Where administrators' tools live; a login over SSH often lacks them in PATH.
ADMIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where nvidia-smi is in WSL2, and in containers of some clouds.
GPU_PATH = "/usr/lib/wsl/lib:/usr/local/nvidia/bin"
OUTPUT_LIMIT = 256 * 1024
GONE_S = 0.5  # how long a killed program may take to go


def find(program: str) -> Optional[str]:
    """The program's full path, or None."""
    return shutil.which(program) or shutil.which(program, path=ADMIN_PATH + ":" + GPU_PATH)


def run(
    argv: List[str],
    timeout: float,
    env: Optional[Dict[str, str]] = None,
    cwd: Optional[str] = None,
    replace_env: Optional[Dict[str, str]] = None,
    limit: int = OUTPUT_LIMIT,
) -> Dict[str, Any]:
    """The program's ``code`` (None when it had to be killed), ``stdout``, ``stderr``, ``timed_out`` and ``seconds``.

    ``env`` is added to ours, ``replace_env`` stands in its place; ``limit``: bytes kept of either stream. A program
    that is stuck in the kernel survives SIGKILL; it is left behind, never waited for.
    Raises FileNotFoundError where there is no such program.
    """
    program = find(argv[0])
    if program is None:
        raise FileNotFoundError(argv[0])
    started = time.monotonic()
    base = dict(os.environ, LC_ALL="C") if replace_env is None else replace_env
    process = subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(base, **(env or {})),
        cwd=cwd,
    )
    timed_out = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        timed_out = True
        out, err = late.stdout or b"", late.stderr or b""
        _give_up(process)
    return {
        "code": None if timed_out else process.returncode,
        "stdout": out[:limit].decode("utf-8", "replace"),
        "stderr": err[:limit].decode("utf-8", "replace"),
        "timed_out": timed_out,
        "seconds": round(time.monotonic() - started, 3),
    }


def _give_up(process: "subprocess.Popen[bytes]") -> None:
    """Kill it and let go of its output; a grandchild may hold that open for ever."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that is stuck in the kernel stays
        process.wait(GONE_S)


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
