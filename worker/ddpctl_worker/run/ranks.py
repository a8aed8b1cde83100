"""The ranks of a run on this node: who they are, when each died and how.

Launchers before torch 2.1 look at their ranks every few seconds only, and then wait up to 300 s for the other nodes
before they say that one has failed. The kernel tells at once (a pidfd), and a dead rank's wait status can be read from
/proc until its launcher has collected it.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ddpctl_worker import proc
from ddpctl_worker.contract import PLAIN
from ddpctl_worker.run import processes
from ddpctl_worker.run.record import attempt_of

MAX_DEPTH = 3  # a launcher may run inside a wrapper
NO_PIDFD_LOOK_S = 0.5  # how often ranks are looked at where the kernel or Python has no pidfds


class RankProcess(NamedTuple):
    """A rank's own process."""

    rank: int
    local_rank: int
    pid: int
    start: int
    attempt: int  # 1-based: torchrun's restarts count up


Known = Dict[Tuple[int, int], Optional[RankProcess]]  # pid and start time -> the rank that it is


def of_run(run: Mapping[str, Any], launcher: int, known: Known) -> List[RankProcess]:
    """The ranks of a run on this node, by rank."""
    if run.get("launcher") != PLAIN:
        return find(launcher, known)
    stat = proc.read_stat(launcher)
    if stat is None or not stat.alive:
        return []
    return [RankProcess(int(run["node_rank"]), 0, launcher, stat.start, attempt_of(run))]


def find(launcher: int, known: Known) -> List[RankProcess]:
    """The ranks below ``launcher``, by rank: processes that were started with RANK and LOCAL_RANK.

    ``known`` remembers who was looked at: reading the environment of a process that waits for a hung disk may wait too.
    """
    found: Dict[int, RankProcess] = {}
    level = [launcher]
    for _ in range(MAX_DEPTH):
        below: List[int] = []
        for parent in level:
            for pid in proc.children_of(parent):
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
        one = proc.read_stat(pid)
        if one is not None:
            found.append([pid, one.start])
            todo.extend(proc.children_of(pid))
    return sorted(found)


def _as_rank(pid: int, known: Known) -> Optional[RankProcess]:
    stat = proc.read_stat(pid)
    if stat is None or not stat.alive:
        return None
    key = (pid, stat.start)
    if known.get(key) is None:
        known[key] = _rank_of(pid, stat.start)
    return known[key]


def _rank_of(pid: int, start: int) -> Optional[RankProcess]:
    env = proc.environment(pid)
    if not env:
        return None
    try:
        rank, local = int(env[b"RANK"]), int(env[b"LOCAL_RANK"])
        attempt = 1 + int(env.get(b"TORCHELASTIC_RESTART_COUNT", b"0"))
    except (KeyError, ValueError):
        return None
    return RankProcess(rank, local, pid, start, attempt)


class Death(NamedTuple):
    """How a rank ended: wait status (None: its launcher was quicker), wall clock, and monotonic clock."""

    status: Optional[int]
    at: float
    seen: float


class Roster:
    """Knows the ranks; ``watch(fd, on)`` is told which descriptors should wake the supervisor's loop."""

    def __init__(self, run: Dict[str, Any], watch: Callable[[int, bool], None]) -> None:
        self._run = run
        # Any other rendezvous hands out the ranks itself, and restarts them.
        self._static = run["rendezvous"] == "static"
        self._first = attempt_of(run)
        self._planned: List[int] = list(run["ranks"]) if self._static else []
        self._watch = watch
        self._ranks: Dict[int, RankProcess] = {}  # by local rank
        self._pidfds: Dict[int, int] = {}  # descriptor -> local rank
        self._listed: Dict[str, Any] = {"ranks": {}, "tree": []}  # as last told
        self._known: Known = {}
        self._look_at = 0.0
        self.deaths: Dict[int, Death] = {}  # by local rank
        self._restarted: Dict[int, float] = {}  # by local rank, wall clock

    @property
    def any(self) -> bool:
        """Whether a rank was ever seen."""
        return bool(self._ranks)

    def living(self) -> int:
        """How many of the ranks that were seen have not died."""
        return sum(local not in self.deaths for local in list(self._ranks))

    def alive(self) -> List[RankProcess]:
        """The ranks that were seen and have not died; also for other threads."""
        return [one for local, one in sorted(self._ranks.items()) if local not in self.deaths]

    def dead(self) -> List[Tuple[RankProcess, Death]]:
        """The ranks that have died, and how; also for other threads."""
        found = [(one, self.deaths.get(local)) for local, one in sorted(self._ranks.items())]
        return [(one, death) for one, death in found if death is not None]

    def all_ended(self) -> bool:
        """Whether every rank that was seen is dead, and its launcher has no reason to start it again."""
        deaths = [self.deaths.get(local) for local in self._ranks]
        return bool(deaths) and all(one is not None and (self._static or one.status == 0) for one in deaths)

    def attempt(self) -> int:
        return max([self._first, *(one.attempt for one in self._ranks.values())])

    def rank_of(self, local: int, launcher: Optional[int]) -> Optional[int]:
        """The rank of a pipe. Under an elastic rendezvous only the rank's own environment tells, below a ``launcher``
        that runs: what follows a rank that has died may have another number."""
        known = self._ranks.get(local)
        if known is not None and (self._static or local not in self.deaths):
            return known.rank
        if local < len(self._planned):
            return self._planned[local]
        below = [] if launcher is None else of_run(self._run, launcher, {})
        return next((one.rank for one in below if one.local_rank == local), None if known is None else known.rank)

    def numbers(self) -> Dict[int, int]:
        """local rank -> rank, as planned or, better, as seen."""
        found = dict(enumerate(self._planned))
        found.update({local: one.rank for local, one in self._ranks.items()})
        return found

    def scan(self, launcher: int) -> None:
        """See who is there."""
        for one in of_run(self._run, launcher, self._known):
            if self._ranks.get(one.local_rank) != one:
                if one.local_rank in self._ranks:
                    self._restarted[one.local_rank] = time.time()
                self._ranks[one.local_rank] = one
                self.deaths.pop(one.local_rank, None)  # restarted
                self._follow(one)

    def owns(self, fd: int) -> bool:
        return fd in self._pidfds

    def ended(self, fd: int) -> None:
        """A pidfd is readable: that rank has died."""
        self._note(self._pidfds[fd])
        self._unfollow(fd)

    def look(self) -> None:
        """For ranks without a pidfd: see whether they have died, once in a while."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + NO_PIDFD_LOOK_S
        followed = set(self._pidfds.values())
        for local, one in self._ranks.items():
            if local not in followed and local not in self.deaths:
                found = proc.read_stat(one.pid)
                if found is None or found.start != one.start or not found.alive:
                    self._note(local)

    def first_death(self) -> Optional[float]:
        """When the first of the ranks of now ended, however it did (wall-clock time); None: all that were seen live."""
        return min((death.at for death in list(self.deaths.values())), default=None)

    def restarted(self) -> float:
        """When the last of the ranks of now was started again (wall-clock time); 0.0: none was."""
        return max(self._restarted.values(), default=0.0)

    def first_failure(self) -> Optional[float]:
        """When the first rank died of a failure that its launcher will not repair; None: none has.

        On the monotonic clock: anybody may set the other one.
        """
        if not self._static:
            return None
        return min((death.seen for death in self.deaths.values() if death.status), default=None)

    def of_now(self, times: Dict[int, float]) -> Dict[int, float]:
        """Those of ``times`` (by local rank) that are not from before a restart."""
        return {local: at for local, at in times.items() if at >= self._restarted.get(local, 0.0)}

    def changed(self, keep: List[int]) -> Optional[Dict[str, Any]]:
        """processes.json: word of every process, for a stop after this supervisor is gone, and for ``doctor``. None
        when it is as it was."""
        found = [one for one in tree(os.getpid()) if one[0] not in keep]  # with orphans: they are adopted here
        # A process may have been there before it was seen to be a rank: then only the ranks have changed.
        ranks = {str(one.rank): [one.pid, one.start] for one in self._ranks.values()}
        if {"ranks": ranks, "tree": found} == self._listed:
            return None
        self._listed = {"ranks": ranks, "tree": found}
        return dict(self._listed)

    def _follow(self, one: RankProcess) -> None:
        for fd in [fd for fd, local in self._pidfds.items() if local == one.local_rank]:
            self._unfollow(fd)
        opened = processes.open_pidfd(one.pid)
        if opened is not None:
            self._pidfds[opened] = one.local_rank
            self._watch(opened, True)

    def _unfollow(self, fd: int) -> None:
        self._watch(fd, False)
        os.close(fd)
        del self._pidfds[fd]

    def _note(self, local: int) -> None:
        one = self._ranks[local]
        self.deaths[local] = Death(proc.exit_status(one.pid, one.start), time.time(), time.monotonic())
