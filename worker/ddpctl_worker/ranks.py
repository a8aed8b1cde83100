"""Which ranks run below a launcher, and what the kernel has killed for want of memory."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple

from ddpctl_worker.processes import children_of, environment, read_stat

OOM_LOOK_S = 0.5
MAX_DEPTH = 3  # a launcher may run inside a wrapper


class RankProcess(NamedTuple):
    """A rank's own process."""

    rank: int
    local_rank: int
    pid: int
    start: int
    attempt: int  # 1-based: torchrun's restarts count up


Known = Dict[Tuple[int, int], Optional[RankProcess]]  # pid and start time -> the rank that it is


def find(launcher: int, known: Known) -> List[RankProcess]:
    """The ranks below ``launcher``, by rank: processes that were started with RANK and LOCAL_RANK.

    ``known`` remembers who was looked at: reading the environment of a process that waits for a hung disk may wait too.
    """
    found: Dict[int, RankProcess] = {}
    level = [launcher]
    for _ in range(MAX_DEPTH):
        below: List[int] = []
        for parent in level:
            for pid in children_of(parent):
                one = _as_rank(pid, known)
                if one is None:
                    below.append(pid)
                else:
                    found[one.rank] = one
        level = below
        if found or not level:
            break
    return [found[rank] for rank in sorted(found)]


def tree(root: int, limit: int = 4096) -> List[List[int]]:
    """[pid, start] of ``root`` and everything below it."""
    found: List[List[int]] = []
    todo = [root]
    while todo and len(found) < limit:
        pid = todo.pop()
        one = read_stat(pid)
        if one is not None:
            found.append([pid, one.start])
            todo.extend(children_of(pid))
    return sorted(found)


def oom_kills() -> int:
    """How many processes the kernel has killed for memory: in this process's cgroup, or else on the whole machine."""
    for path in _memory_events():
        count = _field(path, "oom_kill")
        if count is not None:
            return count
    return _field("/proc/vmstat", "oom_kill") or 0


class OomHistory:
    """When the kernel has killed something for memory here, seen by looking often: what matters is whether it did just
    before a death, for anything else in the cgroup may be killed at any time."""

    def __init__(self) -> None:
        self._count, self._looked = oom_kills(), time.time()
        self._rises: Deque[Tuple[float, float]] = deque(maxlen=16)

    def look(self) -> None:
        """To be called about once a second, or more often."""
        if not 0.0 <= time.time() - self._looked < OOM_LOOK_S:
            self._count_now()

    def rises(self) -> List[Tuple[float, float]]:
        """Between which times (wall clock) there was a kill, up to now."""
        self._count_now()
        return list(self._rises)

    def _count_now(self) -> None:
        count, now = oom_kills(), time.time()
        if count > self._count:
            self._rises.append((self._looked, now))
        self._count, self._looked = count, now


def _memory_events() -> List[str]:
    try:
        with open("/proc/self/cgroup", encoding="ascii", errors="replace") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    found = []
    for _, controllers, group in (entry for entry in entries if len(entry) == 3):
        if "memory" in controllers.split(","):
            found.append("/sys/fs/cgroup/memory%s/memory.oom_control" % group)
        elif not controllers:
            found.append("/sys/fs/cgroup%s/memory.events" % group)
            found.append("/sys/fs/cgroup/unified%s/memory.events" % group)
    return [path for path in found if os.path.exists(path)]


def _field(path: str, name: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) == 2 and words[0] == name:
                    return int(words[1])
    except (OSError, ValueError):
        pass
    return None


def _as_rank(pid: int, known: Known) -> Optional[RankProcess]:
    stat = read_stat(pid)
    if stat is None or not stat.alive:
        return None
    key = (pid, stat.start)
    if known.get(key) is None:
        known[key] = _rank_of(pid, stat.start)
    return known[key]


def _rank_of(pid: int, start: int) -> Optional[RankProcess]:
    env = environment(pid)
    if not env:
        return None
    try:
        rank, local = int(env[b"RANK"]), int(env[b"LOCAL_RANK"])
        attempt = 1 + int(env.get(b"TORCHELASTIC_RESTART_COUNT", b"0"))
    except (KeyError, ValueError):
        return None
    return RankProcess(rank, local, pid, start, attempt)
