"""Until when the ranks of an attempt may run: the agent of the host says so again and again.

A host that has lost the others must have ended its ranks before those start the next attempt without it. The word comes
through pipes, and its readers look at the clock themselves, so it needs neither a disk nor a living agent. The
supervisor has one pipe and the guardian another: a supervisor that is stuck ends nothing, and then its guardian does.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.machine.notes import boottime

SUPERVISOR, GUARDIAN = "supervisor", "guardian"


def pipes() -> Tuple[Dict[str, int], List[int]]:
    """The end that each reader has, and those that the agent writes to."""
    ends = {reader: os.pipe() for reader in (SUPERVISOR, GUARDIAN)}
    for _, write in ends.values():
        os.set_blocking(write, False)
    return {reader: read for reader, (read, _) in ends.items()}, [write for _, write in ends.values()]


class Lease:
    """What one ``reader`` knows. ``given``: the end at first, and each reader's pipe; without it there is no end."""

    def __init__(self, given: Optional[Mapping[str, Any]], reader: str) -> None:
        self._fd: Optional[int] = given[reader] if given else None
        self._heir: Optional[int] = given[GUARDIAN] if given else None
        self._until = float(given["until"]) if given else float("inf")
        self._rest = b""
        self.abandoned = False  # the agent, which alone could renew it, is gone
        if self._fd is not None:
            os.set_blocking(self._fd, False)

    def left(self) -> float:
        """For how many seconds. Times are seconds since boot: a host that was suspended finds it over."""
        with contextlib.suppress(BlockingIOError):
            data = b"-" if self._fd is not None else b""
            while data and self._fd is not None:
                data = os.read(self._fd, 1 << 16)
                self.abandoned = not data
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._until = max([self._until, *map(float, lines)])
        return self._until - boottime()

    def over(self) -> bool:
        return self.left() < 0

    def for_heir(self) -> Optional[Dict[str, Any]]:
        """What one who takes the guardian's place is given: what the guardian has read is not in its pipe any more."""
        return None if self._heir is None else {"until": self._until, GUARDIAN: self._heir}


def renew(fds: List[int], until: float) -> None:
    """The agent's side; who does not read has other troubles."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.write(fd, b"%.3f\n" % until)
