"""What wakes a supervisor's loop: its descriptors, its signals, and its other threads."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from typing import Dict, List

STOP, SHUTDOWN = signal.SIGUSR1, signal.SIGTERM  # what a supervisor may be asked for


class Wakeup:
    """One selector; ``wake`` may be called from any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        self.watch(self._wake_r, True)
        self._asked: Dict[int, bool] = {STOP: False, SHUTDOWN: False}

    def catch_signals(self) -> None:
        """To be called from the main thread."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        for number in self._asked:
            signal.signal(number, lambda number, _: self.ask(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ask(self, number: int) -> None:
        """As if the signal had come."""
        self._asked[number] = True

    def asked(self, number: int) -> bool:
        """Whether it came since the last call."""
        before, self._asked[number] = self._asked[number], False
        return before

    def watch(self, fd: int, on: bool) -> None:
        if on:
            self._selector.register(fd, selectors.EVENT_READ)
        else:
            self._selector.unregister(fd)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"\0")

    def wait(self, seconds: float) -> List[int]:
        """The watched descriptors that are ready, as soon as one is."""
        ready = [key.fd for key, _ in self._selector.select(max(0.0, seconds))]
        if self._wake_r in ready:
            ready.remove(self._wake_r)
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake_r, 4096):
                    pass
        return ready
