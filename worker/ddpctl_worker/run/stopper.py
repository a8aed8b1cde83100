"""Ends a run's processes: SIGTERM, grace, SIGKILL, until two looks in a row find no process and a proof confirms it.

The order of signals:
1. The ranks get SIGTERM first, and no other process. A rank may save a checkpoint. The launcher would also signal the
   children of the rank, and a rank without its data loader's workers fails before it has saved.
2. The launcher gets SIGTERM once all ranks have ended, or at once if no rank is known.
3. Without a launcher, all remaining processes get SIGTERM: launchers before torch 1.10 forward no signal, and a
   launcher that was killed while it spawned ranks leaves orphans.
4. Any process that lives after the grace gets SIGKILL.

A launcher that sees a rank fail signals its other ranks and their children, which may be saving. So the launcher is
suspended (SIGSTOP) until the ranks have ended. The launcher of node rank 0 serves the store, which a save may need. If
a rank there handles SIGTERM, the launcher is suspended only after a rank has failed, and may be quicker. If a rank had
failed before the stop, the launcher has signalled the ranks already.

Processes that outlive a launcher that succeeded (an upload, for example) get ``patience`` first, without any signal.
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
    """The state of the ranks, as far as the owner of the stop knows it."""

    alive: Set[int]  # pids
    failed: bool  # at least one rank has failed
    store: bool  # the launcher serves a store that the ranks may need for a save
    any: bool  # the run has had ranks


NO_RANKS = Ranks(set(), False, True, False)
TICKS = os.sysconf("SC_CLK_TCK")  # of processor time, a second


class Stopper:
    """A stop. Its owner calls ``tick``, and continues to drain pipes and to reap children between two calls."""

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
        self._by_launcher: Optional[bool] = None  # whether the launcher signals the ranks
        self._boot = boot_id()
        now = time.monotonic()
        self._ask_at = now + patience
        self.deadline = self._ask_at + max(0.0, grace)
        self._alone: Optional[Tuple[float, int]] = None  # when all but the launcher had ended; its ticks
        self._empty = 0
        self._asked: Set[Tuple[int, int]] = set()
        self._seen: Set[Tuple[int, int]] = set()
        self._killed: Set[Tuple[int, int]] = set()
        self.survivors: List[Dict[str, Any]] = []
        self.done = False

    @property
    def signalled(self) -> int:
        """Return how many processes were found."""
        return len(self._seen)

    @property
    def forced(self) -> int:
        """Return how many processes needed SIGKILL."""
        return len(self._killed)

    def shorten(self, grace: float) -> None:
        """End the patience, and shorten the grace to ``grace`` seconds from now unless less is left."""
        self._ask_at = min(self._ask_at, time.monotonic())
        self.deadline = min(self.deadline, time.monotonic() + max(0.0, grace))

    def allow(self, grace: float) -> None:
        """Set the grace to ``grace`` seconds from now, be it more or less, and end the patience."""
        self.shorten(grace)
        self.deadline = time.monotonic() + max(0.0, grace)

    def rank_ended(self) -> None:
        """Signal the launcher right after a rank has ended, before the launcher notices.

        After the last rank the launcher would wait for the other nodes in torch's exit barrier, where it ignores
        signals. The next tick does the rest.
        """
        known = self._ranks()
        if self._by_launcher is not False or self._launcher is None or self._launcher.pid in known.alive:
            return
        if not known.alive:
            self._tell(self._launcher)
            send(self._launcher, signal.SIGCONT)
        elif known.failed:
            send(self._launcher, signal.SIGSTOP)

    def look(self) -> bool:
        """Look for processes and signal them; return whether the stop is over."""
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
        self._seen.update((stat.pid, stat.start) for stat in found.values())
        if now < self.deadline and self._stuck_alone(found, now):
            for stat in found.values():  # the launcher, which does not count as forced
                send(ProcessId(self._boot, stat.pid, stat.start), signal.SIGKILL)
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
        everyone = [ProcessId(self._boot, stat.pid, stat.start) for stat in found.values()]
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
        # A suspended process acts on SIGTERM, its launcher's too, once it continues. A job may suspend it again later.
        for who in everyone:
            if found[who.pid].state == "T" and who not in held:
                send(who, signal.SIGCONT)

    def _tell(self, who: ProcessId) -> None:
        if (who.pid, who.start) not in self._asked:
            self._asked.add((who.pid, who.start))
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
        for stat in found.values():
            if send(ProcessId(self._boot, stat.pid, stat.start), signal.SIGKILL):
                self._killed.add((stat.pid, stat.start))
        self._proof.kill()


def run_to_end(stopper: Stopper, between: Callable[[], object] = lambda: None) -> Stopper:
    """Tick until the stop is over; ``between`` is called between two ticks, to reap children for example."""
    while not stopper.look():
        between()
        time.sleep(TICK_S)
    return stopper


def reap() -> Dict[int, int]:
    """Reap every child that has ended; return pid -> wait status."""
    ended: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
