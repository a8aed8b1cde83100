"""Faults that may pass: no descriptors, no memory, a disk that is away for a moment. They must not end a job."""

from __future__ import annotations

import time
import traceback
from typing import Callable, Optional

from ddpctl_worker.record import note

PATIENCE_S = 30.0  # a fault without a break for so long will not pass
PAUSE_S = 0.1


def trace(error: BaseException) -> str:
    """Where ``error`` comes from. Without lines of source: those are on a disk, which may hang."""
    frames = ["%s:%d" % (frame.f_code.co_name, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return "%r in %s" % (error, " > ".join(frames))


class Faults:
    """Runs one turn of a loop at a time and lets it fail for a while."""

    def __init__(self, patience: float = PATIENCE_S) -> None:
        self._patience = patience
        self._since: Optional[float] = None
        self._told = ""

    def survive(self, turn: Callable[[], None]) -> None:
        """Raises what ``turn`` raises only once it has failed without a break for longer than the patience."""
        try:
            turn()
        except Exception as error:
            now = time.monotonic()
            self._since = self._since or now
            if repr(error) != self._told:
                self._told = repr(error)
                note(trace(error))
            if now - self._since > self._patience:
                raise
            time.sleep(PAUSE_S)
        else:
            self._since = None
