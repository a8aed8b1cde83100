"""The lease of an attempt's ranks: the host's agent renews it through pipes.

A host that is cut off must end its ranks before the other hosts start the next attempt without it. The readers compare
the lease with the clock themselves, so its end needs neither a disk nor a living agent. Supervisor and guardian have a
pipe each: if the supervisor is stuck, the guardian ends the ranks.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.machine.notes import boottime

SUPERVISOR, GUARDIAN = "supervisor", "guardian"


def pipes() -> Tuple[Dict[str, int], List[int]]:
    """Return the reading end of each reader, and the agent's writing ends."""
    ends = {reader: os.pipe() for reader in (SUPERVISOR, GUARDIAN)}
    for _, write in ends.values():
        os.set_blocking(write, False)
    return {reader: read for reader, (read, _) in ends.items()}, [write for _, write in ends.values()]


class Lease:
    """The lease as ``reader`` sees it. ``given``: its first end, and each reader's pipe; None: a lease without end."""

    def __init__(self, given: Optional[Mapping[str, Any]], reader: str) -> None:
        self._fd: Optional[int] = given[reader] if given else None
        self._guardian_fd: Optional[int] = given[GUARDIAN] if given else None
        self._until = float(given["until"]) if given else float("inf")
        self._rest = b""
        self.abandoned = False  # the agent, which renews the lease, is gone
        if self._fd is not None:
            os.set_blocking(self._fd, False)

    def remaining(self) -> float:
        """Return the seconds until the end. The time of a suspended host counts: its clock is since boot."""
        with contextlib.suppress(BlockingIOError):
            data = b"-" if self._fd is not None else b""
            while data and self._fd is not None:
                data = os.read(self._fd, 1 << 16)
                self.abandoned = not data
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._until = max([self._until, *map(float, lines)])
        return self._until - boottime()

    def is_over(self) -> bool:
        return self.remaining() < 0

    def for_replacement(self) -> Optional[Dict[str, Any]]:
        """Return ``given`` for a replacement guardian, with the newest end: the dead guardian has read its pipe."""
        return None if self._guardian_fd is None else {"until": self._until, GUARDIAN: self._guardian_fd}


def send_lease(fds: List[int], until: float) -> None:
    """Renew the lease until ``until`` (seconds since boot). A full or broken pipe loses this renewal."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.write(fd, b"%.3f\n" % until)
