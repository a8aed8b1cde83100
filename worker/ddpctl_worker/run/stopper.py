"""Ending a run's processes: SIGTERM, grace, SIGKILL, until two looks in a row find nothing and that is proved.

The ranks get SIGTERM first, and nobody else: a rank may save a checkpoint, and the launcher would signal the children
of the rank too. Without its data loader's workers a rank fails before it has saved. Once all ranks have ended, or where
no rank is known, the launcher gets SIGTERM; without a launcher all that is left does (launchers before torch 1.10
forward nothing, and a launcher killed while it spawns leaves orphans). What lives after the grace is killed.

A launcher that sees a rank fail signals its other ranks and their children, which may be saving. So it is stopped
(SIGSTOP) until the ranks have ended. The launcher of node rank 0 serves the store, which a save may need: if a rank
there has a handler for SIGTERM, the launcher is stopped only once a rank has failed, and may be quicker. If a rank had
failed before the stop, the launcher has told the ranks already.

A launcher that succeeded may leave something that still works, an upload say: that gets ``patience`` first, in which
nothing is signalled.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.machine.proc import Stat, boot_id, command_line
from ddpctl_worker.machine.processes import ProcessId, Proof, send
from ddpctl_worker.run.limits import STUCK_LAUNCHER_S, STUCK_LAUNCHER_SHARE, TICK_S, UNKILLABLE_S

Find = Callable[[], Dict[int, Stat]]


class Ranks(NamedTuple):
    """The ranks' own processes, as far as the owner of the stop knows them."""

    alive: Set[int]  # pids
    failed: bool  # one has
    store: bool  # the launcher serves a store that they may need for a save
    any: bool  # there were some


NO_RANKS = Ranks(set(), False, True, False)
TICKS = os.sysconf("SC_CLK_TCK")  # of processor time, a second


class Stopper:
    """One stop, driven by ``tick`` so that its owner can keep draining pipes and reaping children."""

    def __init__(
        self,
        find: Find,
        launcher: Optional[ProcessId],
        grace: float,
        *,
        ranks: Callable[[], Ranks] = lambda: NO_RANKS,
        patience: float = 0.0,
        proof: Optional[Proof] = None,
    ) -> None:
        self._find = find
        self._proof = proof or Proof()
        self._launcher = launcher
        self._ranks = ranks
        self._by_launcher: Optional[bool] = None  # whether it is the launcher that tells the ranks
        self._boot = boot_id()
        now = time.monotonic()
        self._ask_at = now + patience
        self.deadline = self._ask_at + max(0.0, grace)
        self._alone: Optional[Tuple[float, int]] = None  # since when the launcher is the only one, its ticks then
        self._empty = 0
        self._told: Set[Tuple[int, int]] = set()
        self._seen: Set[Tuple[int, int]] = set()
        self._killed: Set[Tuple[int, int]] = set()
        self.survivors: List[Dict[str, Any]] = []
        self.done = False

    @property
    def signalled(self) -> int:
        """How many processes there were to end."""
        return len(self._seen)

    @property
    def forced(self) -> int:
        """How many of them needed SIGKILL."""
        return len(self._killed)

    def shorten(self, grace: float) -> None:
        """What it stops has less time: the earlier deadline counts, and there is no more patience."""
        self._ask_at = min(self._ask_at, time.monotonic())
        self.deadline = min(self.deadline, time.monotonic() + max(0.0, grace))

    def allow(self, grace: float) -> None:
        """Somebody asks for this much from now on, be it more or less."""
        self.shorten(grace)
        self.deadline = time.monotonic() + max(0.0, grace)

    def rank_ended(self) -> None:
        """At once, before the launcher sees it: after the last rank it would wait for other nodes in torch's exit
        barrier, where it hears no signal. The next tick does the rest."""
        known = self._ranks()
        if self._by_launcher is not False or self._launcher is None or self._launcher.pid in known.alive:
            return
        if not known.alive:
            self._tell(self._launcher)
            send(self._launcher, signal.SIGCONT)
        elif known.failed:
            send(self._launcher, signal.SIGSTOP)

    def tick(self) -> bool:
        """One look and what follows from it; True once it is over."""
        if self.done:
            return True
        found = self._find()
        now = time.monotonic()
        if not found and self._proof.given():
            self._empty += 1
            self.done = self._empty >= 2
            return self.done
        self._empty = 0
        if now < self._ask_at:
            return False
        self._seen.update((one.pid, one.start) for one in found.values())
        if now < self.deadline and self._stuck_alone(found, now):
            for one in found.values():  # the launcher: nothing of the job's was forced
                send(ProcessId(self._boot, one.pid, one.start), signal.SIGKILL)
        elif now >= self.deadline:
            self._kill(found)
            if now >= self.deadline + UNKILLABLE_S:
                left = sorted(set(found) | self._proof.pids())
                self.survivors = [{"pid": pid, "cmd": command_line(pid)} for pid in left]
                self.done = True
        else:
            self._ask(found)
        return self.done

    def _ask(self, found: Dict[int, Stat]) -> None:
        everyone = [ProcessId(self._boot, one.pid, one.start) for one in found.values()]
        launcher = [who for who in everyone if who == self._launcher]
        known = self._ranks()
        if self._by_launcher is None:
            self._by_launcher = known.failed or not known.alive
        ranks = [] if self._by_launcher else [who for who in everyone if who.pid in known.alive]
        apart = ranks and not any(who in launcher for who in ranks)  # a script without a launcher is its own rank
        held = launcher if apart and (known.failed or not known.store) else []
        for who in held:
            send(who, signal.SIGSTOP)
        for who in ranks or launcher or everyone:
            self._tell(who)
        # A stopped process acts on SIGTERM once it continues, a rank on its launcher's too; some are stopped later.
        for who in everyone:
            if found[who.pid].state == "T" and who not in held:
                send(who, signal.SIGCONT)

    def _tell(self, who: ProcessId) -> None:
        if (who.pid, who.start) not in self._told:
            self._told.add((who.pid, who.start))
            send(who, signal.SIGTERM)

    def _stuck_alone(self, found: Dict[int, Stat], now: float) -> bool:
        alone = self._ranks().any and self._launcher is not None and set(found) == {self._launcher.pid}
        if not alone:
            self._alone = None
            return False
        ticks = next(iter(found.values())).ticks
        since, before = self._alone = self._alone or (now, ticks)
        return now - since > STUCK_LAUNCHER_S and (ticks - before) / TICKS < STUCK_LAUNCHER_SHARE * (now - since)

    def _kill(self, found: Dict[int, Stat]) -> None:
        for one in found.values():
            if send(ProcessId(self._boot, one.pid, one.start), signal.SIGKILL):
                self._killed.add((one.pid, one.start))
        self._proof.kill()


def run_to_end(stopper: Stopper, between: Callable[[], object] = lambda: None) -> Stopper:
    """Tick until it is over; ``between`` is called after every look (reaping, say)."""
    while not stopper.tick():
        between()
        time.sleep(TICK_S)
    return stopper


def reap() -> Dict[int, int]:
    """Collect every child that has ended: pid -> wait status."""
    ended: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
