"""The ranks of a run on this node: their processes, and when and how each rank ended.

Launchers before torch 2.1 look at their ranks every few seconds only, and then wait up to 300 s for the other nodes
before they report a failure. A pidfd reports a death at once, and the wait status of a dead rank can be read from /proc
until its launcher has reaped it.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ddpctl_worker.machine import fs, proc, processes
from ddpctl_worker.record.limits import LAUNCHER_DEPTH, NO_PIDFD_LOOK_S, RANKS_START_S, TREE_PROCESSES
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.record import attempt_of
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.wire.contract import PLAIN


class RankProcess(NamedTuple):
    """The process of a rank."""

    rank: int
    local_rank: int
    pid: int
    start: int
    attempt: int  # from 1 on; each restart by torchrun adds 1


Known = Dict[Tuple[int, int], Optional[RankProcess]]  # (pid, start time) -> its rank, or None


def find_ranks_of_run(run: RunRecord, launcher: int, known: Known) -> List[RankProcess]:
    """Return the ranks of a run on this node, in the order of their numbers."""
    if run.get("launcher") != PLAIN:
        return find_ranks(launcher, known)
    stat = proc.read_stat(launcher)
    if stat is None or not stat.alive:
        return []
    return [RankProcess(int(run["node_rank"]), 0, launcher, stat.start, attempt_of(run))]


def find_ranks(launcher: int, known: Known) -> List[RankProcess]:
    """Return the ranks below ``launcher`` in the order of their numbers: processes with RANK and LOCAL_RANK.

    ``known`` caches the answers: reading the environment of a process that waits for a hung disk may wait too.
    """
    found: Dict[int, RankProcess] = {}
    level = [launcher]
    for _ in range(LAUNCHER_DEPTH):
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


def read_rank_processes(paths: RunPaths) -> Dict[int, Tuple[int, int]]:
    """Return rank -> (pid, start time), as the supervisor saw the ranks last. Entries of another form are left out."""
    ranks = fs.read_optional(paths.processes).get("ranks")
    found: Dict[int, Tuple[int, int]] = {}
    for rank, pair in ranks.items() if isinstance(ranks, dict) else ():
        well_formed = isinstance(pair, list) and [type(number) for number in pair] == [int, int]
        if well_formed and rank.isdecimal() and len(rank) < 10:
            found[int(rank)] = (pair[0], pair[1])
    return found


def list_process_tree(root: int, limit: int = TREE_PROCESSES) -> List[List[int]]:
    """Return [pid, start time] of ``root`` and of all processes below it."""
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
    """The end of a rank: wait status (``None`` if its launcher reaped it first), wall clock, and monotonic clock."""

    status: Optional[int]
    at: float
    seen: float


class Roster:
    """The ranks of this node. ``watch(fd, on)`` registers descriptors that should wake the supervisor's loop."""

    def __init__(self, run: RunRecord, watch: Callable[[int, bool], None]) -> None:
        self._run = run
        # Any other rendezvous hands out the ranks itself, and restarts them.
        self._static = run["rendezvous"] == "static"
        self._first = attempt_of(run)
        self._planned: List[int] = list(run["ranks"]) if self._static else []
        self._watch = watch
        self._ranks: Dict[int, RankProcess] = {}  # by local rank
        self._pidfds: Dict[int, int] = {}  # descriptor -> local rank
        self._listed: Dict[str, Any] = {"ranks": {}, "tree": []}  # content of processes.json
        self._known: Known = {}
        self._first_seen: Optional[float] = None  # when the first rank was seen, monotonic
        self._look_at = 0.0
        self.deaths: Dict[int, Death] = {}  # by local rank
        self._restarted: Dict[int, float] = {}  # by local rank, wall clock

    @property
    def any(self) -> bool:
        """Whether a rank has ever been seen."""
        return bool(self._ranks)

    @property
    def all_started(self) -> bool:
        """Whether all ranks of this node were seen, or RANKS_START_S are over since the first rank was seen."""
        if self._first_seen is None:
            return False
        expected = 1 if self._run.get("launcher") == PLAIN else int(self._run["nproc"])
        return len(self._ranks) >= expected or time.monotonic() >= self._first_seen + RANKS_START_S

    def living(self) -> int:
        """Return the number of living ranks among the ranks that were seen."""
        return sum(local not in self.deaths for local in list(self._ranks))

    def alive(self) -> List[RankProcess]:
        """Return the living ranks among the ranks that were seen; also for other threads."""
        return [one for local, one in sorted(self._ranks.items()) if local not in self.deaths]

    def dead(self) -> List[Tuple[RankProcess, Death]]:
        """Return the dead ranks, each with its death; also for other threads."""
        found = [(one, self.deaths.get(local)) for local, one in sorted(self._ranks.items())]
        return [(one, death) for one, death in found if death is not None]

    def all_ended(self) -> bool:
        """Whether every rank that was seen is dead, and the launcher has no reason to start a rank again."""
        deaths = [self.deaths.get(local) for local in self._ranks]
        return bool(deaths) and all(one is not None and (self._static or one.status == 0) for one in deaths)

    def attempt(self) -> int:
        return max([self._first, *(one.attempt for one in self._ranks.values())])

    def rank_of(self, local: int, launcher: Optional[int]) -> Optional[int]:
        """Return the rank of a pipe. With an elastic rendezvous, only the environment of a process below a running
        ``launcher`` has the number: the successor of a dead rank may have another number."""
        known = self._ranks.get(local)
        if known is not None and (self._static or local not in self.deaths):
            return known.rank
        if local < len(self._planned):
            return self._planned[local]
        below = [] if launcher is None else find_ranks_of_run(self._run, launcher, {})
        return next((one.rank for one in below if one.local_rank == local), None if known is None else known.rank)

    def numbers(self) -> Dict[int, int]:
        """Return local rank -> rank, as seen, or else as planned."""
        found = dict(enumerate(self._planned))
        found.update({local: one.rank for local, one in self._ranks.items()})
        return found

    def scan(self, launcher: int) -> None:
        """Find new and restarted ranks."""
        for one in find_ranks_of_run(self._run, launcher, self._known):
            if self._ranks.get(one.local_rank) != one:
                if one.local_rank in self._ranks:
                    self._restarted[one.local_rank] = time.time()
                self._ranks[one.local_rank] = one
                self.deaths.pop(one.local_rank, None)  # restarted
                self._follow(one)
        if self._ranks and self._first_seen is None:
            self._first_seen = time.monotonic()

    def owns(self, fd: int) -> bool:
        return fd in self._pidfds

    def ended(self, fd: int) -> None:
        """Note a death: the pidfd ``fd`` is readable."""
        self._note(self._pidfds[fd])
        self._unfollow(fd)

    def look(self) -> None:
        """Look for deaths of ranks without a pidfd, every ``NO_PIDFD_LOOK_S`` seconds."""
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

    def find_first_death(self) -> Optional[float]:
        """Return the wall-clock time of the first death among the present ranks; ``None`` if all ranks live."""
        return min((death.at for death in list(self.deaths.values())), default=None)

    def restarted(self) -> float:
        """Return the wall-clock time of the last restart of a rank; 0.0 if no rank was restarted."""
        return max(self._restarted.values(), default=0.0)

    def first_failure(self) -> Optional[float]:
        """Return when the first rank died of a failure after which the launcher does not restart it.

        ``None``: no rank did. The time is monotonic, because a user may set the wall clock.
        """
        if not self._static:
            return None
        return min((death.seen for death in self.deaths.values() if death.status), default=None)

    def current_ranks(self, times: Dict[int, float]) -> Dict[int, float]:
        """Return ``times`` (by local rank) without the entries from before a restart."""
        return {local: at for local, at in times.items() if at >= self._restarted.get(local, 0.0)}

    def changed(self, keep: List[int]) -> Optional[Dict[str, Any]]:
        """Return the new content of processes.json, or ``None`` if nothing has changed. A stop needs the file after the
        supervisor's death, and so does ``doctor``."""
        found = [
            one for one in list_process_tree(os.getpid()) if one[0] not in keep
        ]  # orphans included, since this process adopts them
        # A known process may turn out to be a rank: then only the ranks have changed.
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
