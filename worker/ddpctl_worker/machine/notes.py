"""Writes lines for supervisor.log, reads the clocks of a record, and survives faults that may pass."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from datetime import datetime, timezone
from typing import Callable, Optional

from ddpctl_worker.machine.limits import FAULT_PATIENCE_S, FAULT_PAUSE_S
from ddpctl_worker.machine.system import CLOCK, HostClock

_to: Optional[Callable[[bytes], object]] = None  # takes the notes; None: stderr does


def trace(error: BaseException) -> str:
    """Return ``error`` with the functions and lines that it passed, without source text: its disk may hang."""
    frames = ["%s:%d" % (frame.f_code.co_name, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return "%r in %s" % (error, " > ".join(frames))


class Faults:
    """Runs the turns of a loop, and lets them fail for a while."""

    def __init__(self, patience: float = FAULT_PATIENCE_S, clock: HostClock = CLOCK) -> None:
        self._patience, self._clock = patience, clock
        self._since: Optional[float] = None
        self._noted = ""

    def survive(self, turn: Callable[[], object]) -> bool:
        """Call ``turn``; return whether it succeeded.

        Its error is noted, and raised only after failures without a break for the whole patience.
        """
        try:
            turn()
        except Exception as error:
            now = self._clock.now()
            self._since = self._since or now
            if repr(error) != self._noted:
                self._noted = repr(error)
                note(trace(error))
            if now - self._since > self._patience:
                raise
            self._clock.sleep(FAULT_PAUSE_S)
            return False
        self._since = None
        return True


def now_iso() -> str:
    return iso(time.time())


def note(text: str) -> None:
    """Write a line to supervisor.log. Never raises OSError: the disk may be full."""
    line = ("%s %s\n" % (now_iso(), text)).encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        if _to is None:
            os.write(2, line)
        else:
            _to(line)


def send_notes(to: Optional[Callable[[bytes], object]]) -> None:
    """Send every note of this process to ``to`` (``None``: stderr). The supervisor must not wait for a disk."""
    global _to
    _to = to


def iso(seconds: float) -> str:
    """Return Unix seconds as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def boottime() -> float:
    """Return the seconds since boot. They count during suspend, and do not jump when a user sets the clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
