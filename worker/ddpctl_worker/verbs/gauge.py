"""Something that is read again and again, in a thread of its own, as it may hang. It may cost a share of a core."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any, Callable, NamedTuple, Optional

from ddpctl_worker.machine import notes
from ddpctl_worker.verbs.limits import GAUGE_SHARE, READING_LATE_S


class Reading(NamedTuple):
    """``value`` is None until the first one. ``late_s``: for how long a reading has been under way, where that is
    long: what was read before says nothing about now."""

    value: Optional[Any]
    late_s: Optional[float]


class Gauge:
    """Calls ``read`` when it is due. An exception of it is not its end: the next reading may work."""

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self._name, self._read = name, read
        self._asked, self._done = threading.Event(), threading.Event()
        self._began: Optional[float] = None  # of the reading that is under way
        self._due_at = 0.0
        self._value: Optional[Any] = None

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def ask(self) -> None:
        """Begin a reading, unless one is under way or none is due."""
        if self._began is None and time.monotonic() >= self._due_at:
            self._done.clear()
            self._began = time.monotonic()
            self._asked.set()

    def result(self, patience: float) -> Reading:
        """The newest reading; waits ``patience`` seconds for one that is under way, but not for one that is late."""
        began = self._began
        if began is not None and time.monotonic() - began < READING_LATE_S:
            self._done.wait(patience)
        began = self._began
        took = 0.0 if began is None else time.monotonic() - began
        return Reading(self._value, round(took, 1) if took >= READING_LATE_S else None)

    def _run(self) -> None:
        while self._asked.wait():
            self._asked.clear()
            before = _cost()
            try:
                self._value = self._read()
            except Exception as error:
                notes.note("top: %s: %r" % (self._name, error))
            self._due_at = time.monotonic() + (_cost() - before) / GAUGE_SHARE
            self._began = None
            self._done.set()


def _cost() -> float:
    """Seconds of processor time that this thread has used, and the helper programs that have ended."""
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + below.ru_utime + below.ru_stime
