"""The clock of a call that has to make progress: a node that only lives must not hold a command."""

from __future__ import annotations

import threading

from ddpctl.errors import AnswerLate
from ddpctl.transport.limits import LEAST_BYTES, PATIENT_S, STALL_S


class ProgressClock:
    """The clock of a call that has to make progress: LEAST_BYTES within ``seconds`` of waiting for the node.

    Progress is bytes of the body that the node takes, raw bytes of its frames, and ``moved``. Heartbeats and other
    frames are none: they prove only that Python runs there.
    """

    def __init__(self, seconds: float = STALL_S) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waited, self._moved = 0.0, 0
        self._paused = False

    def moved(self, count: int) -> None:
        """Count ``count`` bytes that the node has moved."""
        with self._lock:
            self._moved += count
            if self._moved >= LEAST_BYTES:
                self._waited, self._moved = 0.0, 0

    def waited(self, seconds: float) -> None:
        """Count a wait for the node. Of a long wait only a part counts: ddpctl itself was suspended."""
        with self._lock:
            if not self._paused:
                self._waited += min(seconds, 2 * PATIENT_S)

    def pause(self) -> None:
        """Stop the clock: the node waits for other hosts."""
        with self._lock:
            self._paused = True

    @property
    def is_paused(self) -> bool:
        return self._paused

    def resume(self) -> None:
        """Start the clock again, from zero."""
        with self._lock:
            self._paused, self._waited, self._moved = False, 0.0, 0

    def check(self, what: str) -> None:
        """Raise AnswerLate if ``what`` makes no progress."""
        with self._lock:
            late, moved = self._waited >= self._seconds, self._moved
        if late:
            raise AnswerLate(
                f"{what} makes no progress: {moved} bytes in {self._seconds:g} s",
                hint="check the disk of the host, and the network to it",
            )
