"""Lines for supervisor.log, the clocks of a record, and faults that may pass."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from datetime import datetime, timezone
from typing import Callable, Optional

from ddpctl_worker.machine.limits import FAULT_PATIENCE_S, FAULT_PAUSE_S
from ddpctl_worker.machine.system import CLOCK, HostClock

_to: Optional[Callable[[bytes], object]] = None  # where notes go; None: straight to stderr


def trace(error: BaseException) -> str:
    """Where ``error`` comes from. Without lines of source: those are on a disk, which may hang."""
    frames = ["%s:%d" % (frame.f_code.co_name, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return "%r in %s" % (error, " > ".join(frames))


class Faults:
    """Runs one turn of a loop at a time and lets it fail for a while."""

    def __init__(self, patience: float = FAULT_PATIENCE_S, clock: HostClock = CLOCK) -> None:
        self._patience, self._clock = patience, clock
        self._since: Optional[float] = None
        self._told = ""

    def survive(self, turn: Callable[[], object]) -> None:
        """Raises what ``turn`` raises only once it has failed without a break for longer than the patience."""
        try:
            turn()
        except Exception as error:
            now = self._clock.now()
            self._since = self._since or now
            if repr(error) != self._told:
                self._told = repr(error)
                note(trace(error))
            if now - self._since > self._patience:
                raise
            self._clock.sleep(FAULT_PAUSE_S)
        else:
            self._since = None


def now_iso() -> str:
    return iso(time.time())


def note(text: str) -> None:
    """A line for supervisor.log. Never raises: the disk it would go to may be full."""
    line = ("%s %s\n" % (now_iso(), text)).encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        if _to is None:
            os.write(2, line)
        else:
            _to(line)


def send_notes(to: Optional[Callable[[bytes], object]]) -> None:
    """Hand every note of this process to ``to`` (None: write it at once): a supervisor waits for no disk."""
    global _to
    _to = to


def iso(seconds: float) -> str:
    """A wall-clock time as ISO 8601 in UTC, milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def boottime() -> float:
    """Seconds since boot: counts during suspend too, and never jumps when somebody sets the clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
