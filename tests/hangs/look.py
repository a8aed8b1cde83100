"""What is seen of a job from outside, without ddpctl: its steps and its ranks' stacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.site import ranks
from tests.lab import Host, LabError

PY_SPY_S = 30.0


def py_spy() -> str | None:
    """The py-spy beside this interpreter, or on the PATH."""
    return shutil.which("py-spy", path=str(Path(sys.prefix, "bin"))) or shutil.which("py-spy")


def written_time(host: Host, job: str, name: object) -> float | None:
    """The time in the file `/tmp/JOB.NAME` of a host; None where there is none yet."""
    if host.init is None:
        raise LabError(f"{host.name} has no power")
    try:
        return float(Path(f"/proc/{host.init.pid}/root/tmp/{job}.{name}").read_text())
    except FileNotFoundError:
        return None


def last_progress(hosts: list[Host], job: str, world: int) -> float | None:
    """When any rank last finished a step, in seconds since the epoch; None before the first step."""
    per_host = world // len(hosts)
    times = [written_time(hosts[rank // per_host], job, rank) for rank in range(world)]
    return max((time for time in times if time is not None), default=None)


def stacks(tool: str, hosts: list[Host], run: str, script: str) -> dict[str, Any]:
    """The stack of every rank, in the shape that `ddpctl doctor --json` has: `stack[0]` is the script's innermost."""
    found: list[dict[str, Any]] = []
    for host in hosts:
        outer = dict(_outer_pids(host))
        for rank, process in sorted(ranks(host, run).items()):
            stack = _stack(tool, outer[process.pid], process.pid)
            own = [frame for frame in stack if Path(frame["file"]).name == script]
            found.append({"host": host.name, "rank": rank, "pid": process.pid, "state": process.state, "stack": own})
    return {"ranks": found}


def _stack(tool: str, pid: int, inner: int) -> list[dict[str, Any]]:
    """The main thread's frames, innermost first; [] where the process ended while we looked."""
    words = [tool, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PY_SPY_S, check=False)
    if done.returncode:
        print(f"py-spy of {pid}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return []
    threads = json.loads(done.stdout)
    main = next(one for one in threads if one["os_thread_id"] in (pid, inner))  # of either namespace
    return [{"file": frame["filename"], "line": frame["line"], "function": frame["name"]} for frame in main["frames"]]


def _outer_pids(host: Host) -> Iterator[tuple[int, int]]:
    """The pid in the host, and the pid on this machine."""
    for pid in host.outer_pids():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:  # it ended while we looked
            continue
        inner = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), None)
        if inner:
            yield int(inner), pid
