"""Wakes a loop: from another thread, and in a supervisor by descriptors and signals."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from typing import Dict, List, NamedTuple, Optional

STOP, SHUTDOWN = signal.SIGUSR1, signal.SIGTERM  # the requests to a supervisor
UNIT_STOP = signal.SIGWINCH  # systemd stops the unit of the run (scope.py of ``run``)


class SignalSender(NamedTuple):
    """The process that sent a signal. ``pid`` 0: a process outside this PID namespace."""

    pid: int
    uid: int
    number: int = SHUTDOWN


def end_with_unit() -> None:
    """End this process when systemd stops its unit. Called in the main thread."""
    signal.signal(UNIT_STOP, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [UNIT_STOP])  # a supervisor blocks the signal for its children, too


class WakePipe:
    """A pipe that a loop waits for, and that any thread makes readable."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        for fd in (self._reader, self.writer):
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reader

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self.writer, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass


class Wakeup:
    """The selector of a supervisor's loop. Any thread may call ``wake``."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipe = WakePipe()
        self.wake = self._pipe.wake
        self.watch(self._pipe.fileno(), True)
        self._asked: Dict[int, bool] = {STOP: False}

    def catch_signals(self) -> None:
        """Handle the signals of a supervisor. Called in the main thread, before any other thread starts.

        SHUTDOWN and UNIT_STOP are blocked, because only a blocked signal tells its sender. Other signals come with
        SHUTDOWN: a machine that shuts down ends the ranks too, so SIGCHLD wakes the loop. Otherwise the loop looks
        within a second.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [SHUTDOWN, UNIT_STOP])
        signal.set_wakeup_fd(self._pipe.writer, warn_on_full_buffer=False)
        for number in self._asked:
            signal.signal(number, lambda number, _: self.ask(number))
        for number in (SHUTDOWN, UNIT_STOP, signal.SIGCHLD):  # an ignored signal would not arrive
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ask(self, number: int) -> None:
        """Note that the signal ``number`` has arrived."""
        self._asked[number] = True

    def asked(self, number: int) -> bool:
        """Return whether the signal has arrived since the last call."""
        before, self._asked[number] = self._asked[number], False
        return before

    def shutdown_sender(self) -> Optional[SignalSender]:
        """Return the sender of a SHUTDOWN or UNIT_STOP that has arrived since the last call."""
        found = signal.sigtimedwait([SHUTDOWN, UNIT_STOP], 0)
        return SignalSender(found.si_pid, found.si_uid, found.si_signo) if found is not None else None

    def watch(self, fd: int, on: bool) -> None:
        if on:
            self._selector.register(fd, selectors.EVENT_READ)
        else:
            self._selector.unregister(fd)

    def wait(self, seconds: float) -> List[int]:
        """Wait up to ``seconds`` for the watched descriptors; return the ready ones."""
        ready = [key.fd for key, _ in self._selector.select(max(0.0, seconds))]
        if self._pipe.fileno() in ready:
            ready.remove(self._pipe.fileno())
            self._pipe.clear()
        return ready
