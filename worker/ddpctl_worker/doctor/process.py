"""What /proc says of a process and of everything that it started: state, work done, what it waits for."""

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
# System calls that only sleep: number of the call -> (argument that holds the time, flags argument or None).
_SLEEPS = {
    "x86_64": {230: (2, 1), 35: (0, None), 23: (4, None), 270: (4, None)},
    "aarch64": {115: (2, 1), 101: (0, None), 72: (4, None)},
}
_SELECTS = {23, 270, 72}
_TIMEVAL = {23}
_TIMER_ABSTIME = 1


class Work(NamedTuple):
    """What a process has done so far: processor time in ticks, and bytes read and written by it."""

    ticks: int
    bytes: int


class Vital(NamedTuple):
    """One look at a process; ``sleep_s``: seconds until a timed sleep ends (at most), None when it is in none."""

    state: str
    work: Work
    rss_mb: Optional[float]
    swap_mb: Optional[float]
    waits_in: str  # the kernel's function; empty when it is not told
    sleep_s: Optional[float]


def vital(pid: int) -> Optional[Vital]:
    """None when there is no such process any more."""
    stat = proc.read_stat(pid)
    if stat is None:
        return None
    memory = _memory(pid)
    wchan = (proc.read(pid, "wchan") or b"").decode("ascii", "replace").strip()
    return Vital(
        STATES.get(stat.state, stat.state),
        Work(stat.ticks, _bytes(pid)),
        memory.get("VmRSS"),
        memory.get("VmSwap"),
        "" if wchan == "0" else wchan,
        sleeping_for(pid) if stat.state == "S" else None,
    )


def below(pid: int) -> List[int]:
    """Everything that ``pid`` has started, and they."""
    found: List[int] = []
    todo = proc.children_of(pid)
    while todo and len(found) < MOST_DESCENDANTS:
        one = todo.pop()
        found.append(one)
        todo.extend(proc.children_of(one))
    return found


def is_ready(pid: int) -> bool:
    """Whether a process, or one that it has started, runs or waits for nothing but a processor."""
    states = (proc.read_stat(one) for one in [pid, *below(pid)])
    return any(one is not None and one.state == "R" for one in states)


def work_of(pids: List[int]) -> Dict[int, Work]:
    """Of those that are there."""
    found = {}
    for pid in pids:
        stat = proc.read_stat(pid)
        if stat is not None:
            found[pid] = Work(stat.ticks, _bytes(pid))
    return found


def _memory(pid: int) -> Dict[str, float]:
    found = {}
    for line in (proc.read(pid, "status") or b"").decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmSwap"):
            found[name] = round(int(value.split()[0]) / 1024, 1)
    return found


def _bytes(pid: int) -> int:
    """Read and written by system calls: files, pipes and most sockets. 0 where that is not ours to know."""
    total = 0
    for line in (proc.read(pid, "io") or b"").splitlines():
        if line.startswith((b"rchar:", b"wchar:")):
            total += int(line.split()[1])
    return total


def sleeping_for(pid: int, machine: Optional[str] = None) -> Optional[float]:
    """Seconds until the main thread's timed sleep is over; None when it is in none, or that cannot be read.

    A sleep whose end is given as a length may be nearly over: then the answer is an upper bound. Which call has its
    time in which argument: select(2), pselect(2), nanosleep(2), clock_nanosleep(2).
    """
    words = (proc.read(pid, "syscall") or b"").split()
    calls = _SLEEPS.get(machine or os.uname().machine, {})
    try:
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    except (IndexError, ValueError):  # running, or not ours to know
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
