"""A limit on the bandwidth of copies."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional


class Throttle:
    """Limits all transfers that share it to ``rate`` bytes/s together; None: no limit. ``moved_on`` is called with the
    number of bytes of each step."""

    def __init__(self, rate: Optional[float], moved_on: Optional[Callable[[int], None]] = None) -> None:
        self._rate, self._moved_on = rate, moved_on
        self._free_at = 0.0
        self._lock = threading.Lock()
        self.moved = time.monotonic()  # monotonic time of the last bytes

    def count_read(self, size: int) -> None:
        """Report bytes of an earlier transfer that were hashed again."""
        if self._moved_on is not None:
            self._moved_on(size)

    def count(self, size: int) -> None:
        """Report transferred bytes, and sleep as long as the rate demands."""
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
