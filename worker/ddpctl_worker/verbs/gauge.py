"""A value that is read again and again, in a thread of its own because a reading may hang."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any, Callable, NamedTuple, Optional

from ddpctl_worker.machine import notes
from ddpctl_worker.verbs.limits import ERROR_CHARACTERS, GAUGE_SHARE, READING_LATE_S


class Reading(NamedTuple):
    """The newest value, or ``None`` before the first.

    ``late_s``: seconds that the present reading has taken, if that is too long. ``error``: why the last reading failed.
    With either of them the value is outdated.
    """

    value: Optional[Any]
    late_s: Optional[float]
    error: Optional[str] = None


class Gauge:
    """Calls ``read`` when it is due. After an exception the next reading is tried as usual.

    An expensive reading becomes due later, so that each gauge takes at most GAUGE_SHARE of a core.
    """

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self._name, self._read = name, read
        self._asked, self._done = threading.Event(), threading.Event()
        self._began: Optional[float] = None  # start of the reading in progress
        self._due_at = 0.0
        self._value: Optional[Any] = None
        self._error: Optional[str] = None

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def request_reading(self) -> None:
        """Begin a reading, unless a reading is in progress or no reading is due."""
        if self._began is None and time.monotonic() >= self._due_at:
            self._done.clear()
            self._began = time.monotonic()
            self._asked.set()

    def result(self, patience: float) -> Reading:
        """Return the newest reading. Waits ``patience`` seconds for a reading in progress that is not late."""
        began = self._began
        if began is not None and time.monotonic() - began < READING_LATE_S:
            self._done.wait(patience)
        began = self._began
        took = 0.0 if began is None else time.monotonic() - began
        return Reading(self._value, round(took, 1) if took >= READING_LATE_S else None, self._error)

    def _run(self) -> None:
        while self._asked.wait():
            self._asked.clear()
            before = _cost()
            try:
                self._value, self._error = self._read(), None
            except Exception as error:
                self._error = repr(error)[:ERROR_CHARACTERS]
                notes.note("top: %s: %r" % (self._name, error))
            self._due_at = time.monotonic() + (_cost() - before) / GAUGE_SHARE
            self._began = None
            self._done.set()


def _cost() -> float:
    """Return the seconds of processor time of this thread and of the helper programs that have ended."""
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + below.ru_utime + below.ru_stime
