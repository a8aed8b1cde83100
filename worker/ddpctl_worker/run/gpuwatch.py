"""Watches a node's GPUs during a run, for the run's report and for the doctor's search for slow hosts.

A process of its own reads the GPUs, since a driver may hang. It does not belong to the job. The process reads for a
while and prints one report at its end, so a full pipe delays no reading. A process that hangs is left behind (tool.py).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from threading import Thread
from typing import Any, Callable, Dict, List, Optional, Sequence

from ddpctl_worker.machine import child, notes, processes, tool
from ddpctl_worker.run.averaged import Averaged
from ddpctl_worker.run.limits import (
    FIRST_GPU_WATCH_S,
    GPU_AVERAGE_S,
    GPU_AVERAGES,
    GPU_PROCESS_S,
    GPU_READING_S,
    GPU_READING_SHARE,
    MOST_GPU_WATCH_S,
)
from ddpctl_worker.wire.contract import SCHEMA

_SECONDS = "DDPCTL_READ_S"  # not in the command line: tool.py recognizes a hung program by its arguments
_MB = 1 << 20

Seen = List[Dict[str, Any]]


class GpuWatch:
    """Watches the GPUs in a thread. ``save`` is called with the record."""

    def __init__(self, run: str, save: Callable[[Dict[str, Any]], None]) -> None:
        self._argv = child.command(__name__)
        self._save = save
        self._record = GpuRecord(run)
        self.newest: Seen = []  # the last report; empty if unknown
        self._thread = Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        seconds = FIRST_GPU_WATCH_S
        while True:
            begun = time.monotonic()
            said = self._ask(seconds)
            if said is None or said["gpus"] or said["error"]:
                self._take(begun, said)
            else:
                return  # there is no GPU
            cost = 0.0 if said is None else float(said["cost"])
            seconds = min(MOST_GPU_WATCH_S, 2 * seconds)
            least = MOST_GPU_WATCH_S if said is None else GPU_READING_S
            time.sleep(max(least, begun + cost / GPU_READING_SHARE - time.monotonic()))

    def _ask(self, seconds: float) -> Optional[Dict[str, Any]]:
        """Return the report of a new process; ``None`` if it does not arrive in time."""
        try:
            said = tool.run(self._argv, seconds + GPU_PROCESS_S, env={_SECONDS: str(seconds)})
            found: Dict[str, Any] = json.loads(said["stdout"])
        except (OSError, ValueError):
            return None
        return found

    def _take(self, begun: float, said: Optional[Dict[str, Any]]) -> None:
        self.newest = said["gpus"] if said is not None else []
        self._record.add(begun, self.newest)
        if self.newest:
            self._save(self._record.to_json())


class GpuRecord:
    """The averages of a node's GPUs over an attempt of ``run``."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._began = notes.now_iso()  # the first reading begins now; its report comes later
        self._first: Optional[float] = None
        self._gpus: Dict[int, _Gpu] = {}

    def add(self, at: float, gpus: Seen) -> None:
        """Add a report of time ``at`` (monotonic seconds). A GPU that it lacks gets no value."""
        if self._first is None:
            self._first = at
        for gpu in gpus:
            record = self._gpus.setdefault(gpu["index"], _Gpu(gpu))
            record.add(at - self._first, gpu, self._run)

    def to_json(self) -> Dict[str, Any]:
        return {
            "schema": SCHEMA,
            "began": self._began,
            "gpus": [dict(self._gpus[index].to_json(), index=index) for index in sorted(self._gpus)],
        }


class _Gpu:
    def __init__(self, gpu: Dict[str, Any]) -> None:
        self._name, self._total = gpu["name"], gpu["memory_total"]
        self._use, self._memory = Averaged(GPU_AVERAGES, GPU_AVERAGE_S), Averaged(GPU_AVERAGES, GPU_AVERAGE_S)
        self._held = False
        self._most: Dict[str, Optional[float]] = {"memory": None, "temperature": None, "power_w": None}

    def add(self, at: float, gpu: Dict[str, Any], run: str) -> None:
        self._held = self._held or run in gpu["runs"]
        self._use.add(at, gpu["use"])
        self._memory.add(at, gpu["memory"])
        self._most = {name: _most([value, gpu[name]]) for name, value in self._most.items()}

    def to_json(self) -> Dict[str, Any]:
        """Return the GPU's record: use in percent and memory in MiB, averaged over ``every_s`` seconds."""
        return {
            "name": self._name,
            "memory_total_mb": _mb(self._total),
            "held": self._held,
            "every_s": self._use.length,
            "use": [None if value is None else round(value, 1) for value in self._use.values()],
            "memory_mb": [_mb(value) for value in self._memory.values()],
            "memory_max_mb": _mb(self._most["memory"]),
            "temperature_max": self._most["temperature"],
            "power_max_w": self._most["power_w"],
        }


def _mb(value: Optional[float]) -> Optional[int]:
    return None if value is None else round(value / _MB)


def _most(values: Sequence[Optional[float]]) -> Optional[float]:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def main() -> None:
    """Run the process: read for $DDPCTL_READ_S seconds, then print the report and its cost."""
    from ddpctl_worker.facts.gpus import Gpus  # not needed in the supervisor

    processes.die_with_parent(signal.SIGKILL)
    seen = read_gpus(Gpus().read, float(os.environ[_SECONDS]))
    print(json.dumps(dict(seen, cost=_cost())), flush=True)
    os._exit(0)  # the driver's own clean-up may hang


def read_gpus(read: Callable[[], Dict[str, Any]], seconds: float) -> Dict[str, Any]:
    """Return {"gpus", "error"}: averages over ``seconds`` with the ``runs`` on each GPU; the last reading's error."""
    until = time.monotonic() + seconds
    readings = [read()]
    while readings[-1]["gpus"]:
        pause = max(GPU_READING_S, _cost() / len(readings) / GPU_READING_SHARE)
        if time.monotonic() + pause > until:
            break
        time.sleep(pause)
        readings.append(read())
    return {"gpus": join_readings([reading["gpus"] for reading in readings]), "error": readings[-1]["error"]}


def join_readings(readings: Sequence[Seen]) -> Seen:
    """Merge several readings: use and power are averaged; of memory and temperature the highest value counts."""
    by_index: Dict[int, Seen] = {}
    for reading in readings:
        for gpu in reading:
            by_index.setdefault(gpu["index"], []).append(gpu)
    return [_one(seen) for _, seen in sorted(by_index.items())]


def _one(seen: Seen) -> Dict[str, Any]:
    fixed = {name: seen[-1][name] for name in ("index", "name", "memory_total")}
    averages = {name: _mean([gpu[name] for gpu in seen]) for name in ("use", "power_w")}
    highest = {name: _most([gpu[name] for gpu in seen]) for name in ("memory", "temperature")}
    runs = sorted({holder["run"] for gpu in seen for holder in gpu["holders"] if holder["run"]})
    return {**fixed, **averages, **highest, "slowed": any(gpu["slowed"] for gpu in seen), "runs": runs}


def _cost() -> float:
    """Return the processor time of this process and its helpers in seconds."""
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + below.ru_utime + below.ru_stime
