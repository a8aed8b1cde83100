"""How busy the GPU of a process is, as nvidia-smi tells. Not run on a GPU so far; the format is that of its manual."""

from __future__ import annotations

import math
import os
from typing import Dict, NamedTuple, Optional

from ddpctl_worker.facts.limits import GPU_USE_S
from ddpctl_worker.machine import tool

_APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
_USE = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits"]


class Use(NamedTuple):
    """``percent`` of the last sampling period in which the GPU had work; ``memory_mb`` that the process has there."""

    percent: Optional[float]
    memory_mb: Optional[float]


def by_pid() -> Dict[int, Use]:
    """What each process uses; empty without an NVIDIA GPU, and where nvidia-smi gives no answer in time."""
    if not os.path.exists("/dev/nvidiactl"):
        return {}
    said = [tool.tool(argv, GPU_USE_S) for argv in (_APPS, _USE)]
    texts = [one["stdout"] if one is not None and one["code"] == 0 else "" for one in said]
    return read(texts[0], texts[1])


def read(apps: str, use: str) -> Dict[int, Use]:
    """From the two tables. A process on several GPUs has the busiest of them, and the memory of all."""
    percent = {row[0]: number(row[1]) for row in rows(use, 2)}
    found: Dict[int, Use] = {}
    for uuid, pid, memory in rows(apps, 3):
        if not pid.isdigit():
            continue
        before = found.get(int(pid), Use(None, None))
        known = [one for one in (before.percent, percent.get(uuid)) if one is not None]
        sizes = [one for one in (before.memory_mb, number(memory)) if one is not None]
        found[int(pid)] = Use(max(known) if known else None, sum(sizes) if sizes else None)
    return found


def rows(text: str, fields: int) -> "list[list[str]]":
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == fields]


def number(text: str) -> Optional[float]:
    """None for ``[N/A]`` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
