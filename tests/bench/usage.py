"""CPU and memory of one ddpctl process, as the kernel counted them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DDPCTL = Path(sys.prefix) / "bin" / "ddpctl"


@dataclass(frozen=True)
class Usage:
    """A finished process: seconds by the clock and of CPU, peak resident memory in MB, and its output."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    stdout: str
    returncode: int


def run(args: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Usage:
    """Run a command to its end and count it with wait4."""
    with tempfile.TemporaryFile() as out:
        begun = time.perf_counter()
        process = subprocess.Popen(args, stdout=out, stdin=subprocess.DEVNULL, env=dict(env or os.environ), cwd=cwd)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
    return Usage(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, text, process.returncode)


def ddpctl(*args: str, home: Path, cwd: Path | None = None, fine: Sequence[int] = (0,)) -> Usage:
    """The installed command with a home of its own; raises when it ends in another way."""
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "NO_COLOR": "1"}
    used = run([str(DDPCTL), *args], env=env, cwd=cwd)
    if used.returncode not in fine:
        raise RuntimeError(f"ddpctl {' '.join(args)} exited with {used.returncode}: {used.stdout[-2000:]}")
    return used
