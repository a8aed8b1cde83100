"""How it is proved that nothing of a run is left, and how what cannot be listed in time is ended.

A look at /proc finds what stays for a moment. A process that forks and ends every millisecond is a new one at
each look. The run's control group knows of it; without a group its orphans still end up as children of the run's
subreaper (its supervisor or guardian), so no child is proof, and a child is caught where it is adopted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Callable, List, Optional, Set

from ddpctl_worker.cgroup import ControlGroup
from ddpctl_worker.processes import children_of

CHASE_S = 0.02


class Proof:
    """``subreaper``: this process adopts the run's orphans; ``spare`` are those of its children that are not the run's.

    With neither a group nor a subreaper two empty looks must do (stopper.py).
    """

    def __init__(
        self, group: Optional[ControlGroup] = None, *, subreaper: bool = False, spare: Callable[[], List[int]] = list
    ) -> None:
        self._group, self._subreaper, self._spare = group, subreaper, spare

    def given(self) -> bool:
        """Whether nothing of the run is left, as far as can be proved here."""
        if self._group is not None and not self._group.empty():
            return False
        return not self._subreaper or self._childless()

    def pids(self) -> Set[int]:
        """Who is left, as far as can be told."""
        found = self._group.pids() if self._group is not None else set()
        return found | (self._children() if self._subreaper else set())

    def kill(self) -> None:
        """End what no look at /proc is quick enough for."""
        if self._group is not None:
            self._group.kill()
        elif self._subreaper:
            self._chase()

    def _chase(self) -> None:
        killed: Set[int] = set()
        until = time.monotonic() + CHASE_S
        while time.monotonic() < until:
            for pid in self._children() - killed:
                killed.add(pid)  # nobody else collects it, so its number stays its own
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _childless(self) -> bool:
        if self._children():
            return False
        if self._spare():
            return True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # ECHILD: the kernel's own word
            return True
        return False

    def _children(self) -> Set[int]:
        return set(children_of(os.getpid())) - set(self._spare())
