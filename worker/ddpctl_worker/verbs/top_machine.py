"""Load, processors and memory of the machine, from /proc."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Tuple

from ddpctl_worker.facts.host import memory
from ddpctl_worker.machine.fs import read_text

_IDLE = (3, 4)  # idle and iowait, of the first line of /proc/stat
_OWN = 8  # the fields after these are guests, and already counted in the first fields


class Machine:
    """The machine. Keeps the last ticks, because the load of the processors is a difference."""

    def __init__(self) -> None:
        self._last: Optional[Tuple[int, int]] = None

    def read(self) -> Dict[str, Any]:
        """Return the state. ``cpu``: percent of all cores, ``None`` at the first call; memory in bytes."""
        now, before = _ticks(), self._last
        found = memory()
        self._last = now
        return {
            "load": _load(),
            "cores": os.cpu_count() or 1,
            "cpu": _percent(before, now) if before and now else None,
            "memory": max(0, found["total"] - found["available"]),
            "memory_total": found["total"],
        }


def _load() -> Optional[float]:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _ticks() -> Optional[Tuple[int, int]]:
    """Return busy ticks and all ticks of the cores."""
    words = read_text("/proc/stat", limit=4096).partition("\n")[0].split()[1 : 1 + _OWN]
    try:
        ticks = [int(word) for word in words]
    except ValueError:
        return None
    return (sum(ticks) - sum(ticks[index] for index in _IDLE), sum(ticks)) if len(ticks) > max(_IDLE) else None


def _percent(before: Tuple[int, int], now: Tuple[int, int]) -> Optional[float]:
    passed = now[1] - before[1]
    return round(min(100.0, max(0.0, 100.0 * (now[0] - before[0]) / passed)), 1) if passed > 0 else None
