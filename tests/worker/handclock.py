"""A clock that a test moves by hand: a sleep or a wait moves the clock too, and takes no time."""

from __future__ import annotations

import threading

from ddpctl_worker.machine.system import HostClock


class HandClock(HostClock):
    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def boot(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1_800_000_000.0 + self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.at += seconds
        return event.is_set()
