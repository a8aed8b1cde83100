"""Reads the load of each process's GPU from nvidia-smi. Not run on a GPU so far; the format is that of its manual."""

from __future__ import annotations

import math
import os
from typing import Dict, NamedTuple, Optional

from ddpctl_worker.facts.limits import GPU_USE_S
from ddpctl_worker.machine import tool

_APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
_USE = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits"]


class Use(NamedTuple):
    """A process's use of GPUs: ``percent`` of the last sampling period with work, and ``memory_mb`` of the process."""

    percent: Optional[float]
    memory_mb: Optional[float]


def by_pid() -> Dict[int, Use]:
    """Return the use of each process; empty without an NVIDIA GPU or without an answer in time."""
    if not os.path.exists("/dev/nvidiactl"):
        return {}
    said = [tool.run_if_installed(argv, GPU_USE_S) for argv in (_APPS, _USE)]
    texts = [result["stdout"] if result is not None and result["code"] == 0 else "" for result in said]
    return read(texts[0], texts[1])


def read(apps: str, use: str) -> Dict[int, Use]:
    """Return each process's use from the two tables: of its GPUs, the busiest one's percent and all memory."""
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
    """Return the number, or ``None`` for ``[N/A]`` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
