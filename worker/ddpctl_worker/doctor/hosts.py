"""Finds facts that may explain a slow rank: a busy host, a low clock, little memory, swap, a hot GPU."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.doctor.limits import BUSIER_PERCENT, CLOCK_SHARE, FREE_MEMORY_SHARE, HOTTER_DEGREES, SWAPPED_PAGES
from ddpctl_worker.doctor.steps import median
from ddpctl_worker.machine import fs
from ddpctl_worker.machine.proc import parse_meminfo

Facts = Mapping[str, Any]
Gpus = Sequence[Mapping[str, Any]]


class _Counted(NamedTuple):
    busy: int
    total: int
    pages: int
    at: float


class HostFacts:
    """The facts of this host, read at each glance. ``gpus`` returns the GPUs as ``run/gpuwatch.py`` saw them last."""

    def __init__(self, gpus: Callable[[], Gpus] = tuple) -> None:
        self._before: Optional[_Counted] = None
        self._gpus = gpus

    def look(self, now: float) -> Dict[str, float]:
        """Return the facts of this host; an unknown fact is left out. ``now``: seconds of any steady clock.

        busy         percent of all processors since the last look
        mhz          clock rate of the processors
        free         share of the memory
        pages        swapped in a second
        gpu_c        degrees of the hottest GPU
        gpu_slowed   1.0 if heat or power slows a GPU down
        """
        busy, total = processors(fs.read_text("/proc/stat"))
        after = _Counted(busy, total, swapped(fs.read_text("/proc/vmstat")), now)
        before, self._before = self._before or after, after
        found: Dict[str, float] = {}
        if after.total > before.total and now > before.at:
            found["busy"] = 100.0 * (after.busy - before.busy) / (after.total - before.total)
            found["pages"] = (after.pages - before.pages) / (now - before.at)
        found.update(memory(fs.read_text("/proc/meminfo")), **clock(fs.read_text("/proc/cpuinfo")))
        found.update(heat(self._gpus()))
        return {name: round(value, 3) for name, value in found.items()}


def processors(text: str) -> Tuple[int, int]:
    """Return busy ticks and all ticks, from /proc/stat (proc(5)): user nice system idle iowait irq softirq steal."""
    for line in text.splitlines():
        if line.startswith("cpu "):
            ticks = [int(word) for word in line.split()[1:9]]
            return sum(ticks) - sum(ticks[3:5]), sum(ticks)
    return 0, 0


def swapped(text: str) -> int:
    """Return the number of pages swapped in and out since boot, from /proc/vmstat."""
    pairs = (line.split() for line in text.splitlines() if line.startswith(("pswpin ", "pswpout ")))
    return sum(int(pair[1]) for pair in pairs)


def memory(text: str) -> Dict[str, float]:
    """Return ``free``, from /proc/meminfo."""
    sizes = parse_meminfo(text)
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return {"free": available / total} if total and available is not None else {}


def clock(text: str) -> Dict[str, float]:
    """Return ``mhz``, the median of all processors, from /proc/cpuinfo. Only x86 has it there."""
    found = [float(line.split(":")[1]) for line in text.splitlines() if line.startswith("cpu MHz")]
    return {"mhz": median(found)} if found else {}


def heat(gpus: Gpus) -> Dict[str, float]:
    """Return ``gpu_c`` and ``gpu_slowed``."""
    degrees = [float(gpu["temperature"]) for gpu in gpus if gpu.get("temperature") is not None]
    return {"gpu_c": max(degrees), "gpu_slowed": float(any(gpu.get("slowed") for gpu in gpus))} if degrees else {}


def find_differences(own: Facts, others: Sequence[Facts]) -> List[str]:
    """Return sentences about facts that may make a host slower than the other hosts; empty if nothing stands out."""
    words = []
    busy, usual = own.get("busy"), _usual("busy", others)
    if busy is not None and usual is not None and busy - usual >= BUSIER_PERCENT:
        words.append("its processors are %d %% busy, those of the other hosts %d %%" % (round(busy), round(usual)))
    mhz, usual = own.get("mhz"), _usual("mhz", others)
    if mhz is not None and usual and mhz < CLOCK_SHARE * usual:
        words.append("its processors run at %d MHz, those of the other hosts at %d" % (round(mhz), round(usual)))
    if own.get("free", 1.0) < FREE_MEMORY_SHARE:
        words.append("%d %% of its memory is free" % round(100 * own["free"]))
    if own.get("pages", 0.0) >= SWAPPED_PAGES:
        words.append("it swaps %d pages a second" % round(own["pages"]))
    degrees, usual = own.get("gpu_c"), _usual("gpu_c", others)
    if own.get("gpu_slowed"):
        words.append("a GPU is slowed down by heat or power (%d °C)" % round(degrees or 0.0))
    elif degrees is not None and usual is not None and degrees - usual >= HOTTER_DEGREES:
        words.append("a GPU is at %d °C, those of the other hosts at %d °C" % (round(degrees), round(usual)))
    return words


def _usual(name: str, others: Sequence[Facts]) -> Optional[float]:
    values = [float(facts[name]) for facts in others if facts.get(name) is not None]
    return median(values) if values else None
