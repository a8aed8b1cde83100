"""Reads /proc: the state of a process, the call in which it waits, and its work with that of its descendants."""

from __future__ import annotations

import os
import struct
import time
from typing import Dict, List, NamedTuple, Optional

from ddpctl_worker.doctor.limits import MOST_DESCENDANTS
from ddpctl_worker.machine import proc

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "blocked",  # in the kernel, waiting for a disk most of the time
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "X": "ended",
    "I": "sleeping",
}
# System calls that only sleep: number of the call -> (the argument that holds the time, the flags argument if any).
_SLEEPS = {
    "x86_64": {230: (2, 1), 35: (0, None), 23: (4, None), 270: (4, None)},
    "aarch64": {115: (2, 1), 101: (0, None), 72: (4, None)},
}
_SELECTS = {23, 270, 72}
_TIMEVAL = {23}
_TIMER_ABSTIME = 1


class Work(NamedTuple):
    """The work of a process so far: processor time in ticks, and bytes read and written."""

    ticks: int
    bytes: int


class Vital(NamedTuple):
    """A look at a process.

    ``sleep_s``: at most so many seconds until a timed sleep ends; ``None`` if the process is in no timed sleep.
    """

    state: str
    work: Work
    rss_mb: Optional[float]
    swap_mb: Optional[float]
    waits_in: str  # the kernel's function; empty if the kernel hides it
    sleep_s: Optional[float]


def look_at_process(pid: int) -> Optional[Vital]:
    """Return a look at a process, or ``None`` if there is no such process."""
    stat = proc.read_stat(pid)
    if stat is None:
        return None
    memory = _memory(pid)
    wchan = (proc.read_file(pid, "wchan") or b"").decode("ascii", "replace").strip()
    return Vital(
        STATES.get(stat.state, stat.state),
        Work(stat.ticks, _bytes(pid)),
        memory.get("VmRSS"),
        memory.get("VmSwap"),
        "" if wchan == "0" else wchan,
        read_sleep(pid) if stat.state == "S" else None,
    )


def find_descendants(pid: int) -> List[int]:
    """Return the descendants of ``pid``, at most MOST_DESCENDANTS."""
    found: List[int] = []
    todo = proc.children_of(pid)
    while todo and len(found) < MOST_DESCENDANTS:
        child = todo.pop()
        found.append(child)
        todo.extend(proc.children_of(child))
    return found


def is_ready(pid: int) -> bool:
    """Return whether the process or a descendant runs, or waits for nothing but a processor."""
    states = (proc.read_stat(each) for each in [pid, *find_descendants(pid)])
    return any(stat is not None and stat.state == "R" for stat in states)


def work_of(pids: List[int]) -> Dict[int, Work]:
    """Return the work of the processes that live."""
    found = {}
    for pid in pids:
        stat = proc.read_stat(pid)
        if stat is not None:
            found[pid] = Work(stat.ticks, _bytes(pid))
    return found


def _memory(pid: int) -> Dict[str, float]:
    found = {}
    for line in (proc.read_file(pid, "status") or b"").decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmSwap"):
            found[name] = round(int(value.split()[0]) / 1024, 1)
    return found


def _bytes(pid: int) -> int:
    """Return the bytes moved by system calls (files, pipes, most sockets); 0 if this user may not see them."""
    total = 0
    for line in (proc.read_file(pid, "io") or b"").splitlines():
        if line.startswith((b"rchar:", b"wchar:")):
            total += int(line.split()[1])
    return total


def read_sleep(pid: int, machine: Optional[str] = None) -> Optional[float]:
    """Return the seconds until the main thread's timed sleep ends.

    ``None`` if there is no timed sleep, or it cannot be read. A sleep with a relative length may be nearly over, so the
    answer is an upper bound. The calls and their arguments: select(2), pselect(2), nanosleep(2), clock_nanosleep(2).
    """
    words = (proc.read_file(pid, "syscall") or b"").split()
    calls = _SLEEPS.get(machine or os.uname().machine, {})
    try:
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    except (IndexError, ValueError):  # the process runs, or this user may not see it
        return None
    if number not in calls or (number in _SELECTS and arguments[0]):
        return None
    where, flags = calls[number]
    try:
        with open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
            memory.seek(arguments[where])
            seconds, part = struct.unpack("@qq", memory.read(16))
    except (OSError, ValueError, OverflowError, struct.error):
        return None
    length = float(seconds) + part / (1e6 if number in _TIMEVAL else 1e9)
    if flags is not None and arguments[flags] & _TIMER_ABSTIME:
        length -= float(time.clock_gettime(arguments[0]))
    return length if length > 0 else 0.0
