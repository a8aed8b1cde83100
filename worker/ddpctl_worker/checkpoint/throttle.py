"""How fast checkpoints may travel."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional


class Throttle:
    """Keeps transfers at ``rate`` bytes/s, all that share it taken together; None: as fast as it goes. ``moved_on``
    hears how many bytes came at a time."""

    def __init__(self, rate: Optional[float], moved_on: Optional[Callable[[int], None]] = None) -> None:
        self._rate, self._moved_on = rate, moved_on
        self._free_at = 0.0
        self._lock = threading.Lock()
        self.moved = time.monotonic()  # when bytes came last

    def read(self, size: int) -> None:
        """Bytes of an earlier transfer were hashed again."""
        if self._moved_on is not None:
            self._moved_on(size)

    def took(self, size: int) -> None:
        self.moved = time.monotonic()
        if self._moved_on is not None:
            self._moved_on(size)
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            pause = self._free_at - now
        time.sleep(pause)
