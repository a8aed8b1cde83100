"""The line from a supervisor to its guardian, or to the deputy that took the guardian's place.

Along it goes what no disk may hold up: a beat for every turn of the supervisor's loop, and what a guardian must know to
clean up and to write down how the run ended. A message is one JSON object a line; an empty line is a beat.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Dict, Optional

BEAT_S = 1.0
STILL_S = 20.0  # a loop that has not turned for so long will not
UP_S = 120.0  # nor will one that has never turned, unless the run may take longer to start
NAP_S = 5.0  # a listener that comes back later than this was itself asleep: a suspended machine


class Tether:
    """The supervisor's end: never waits, never raises."""

    def __init__(self, fd: int) -> None:
        self._words: Dict[str, Any] = {}
        self.attach(fd)

    def attach(self, fd: int) -> None:
        """Somebody new is at the other end, and must know everything."""
        os.set_blocking(fd, False)
        self._fd, self._out, self._beat_at = fd, b"", 0.0
        if self._words:
            self._send(self._words)

    def tell(self, **words: Any) -> None:
        """The newest value of each word counts."""
        self._words.update(words)
        self._send(words)

    def beat(self) -> None:
        """The loop has turned."""
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._out = self._out or b"\n"  # words that wait are a beat too, once they are heard
        self._flush()

    def _send(self, words: Dict[str, Any]) -> None:
        self._out += json.dumps(words).encode("ascii") + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                self._out = self._out[os.write(self._fd, self._out) :]
        except OSError:
            pass  # full: the listener is stopped; broken: it is gone, and another one will be attached


class TetherListener:
    """The other end: ``words`` is what it was told."""

    def __init__(self, fd: int, up: float = UP_S) -> None:
        self._fd = fd
        self._rest = b""
        self._beat: Optional[float] = None
        self._begun = self._listened = time.monotonic()
        self._up = up
        self.words: Dict[str, Any] = {}

    def listen(self, timeout: float) -> bool:
        """Wait for a message at most so long; False once the supervisor has let go of its end."""
        ready = select.select([self._fd], [], [], timeout)[0]
        now = time.monotonic()
        nap, self._listened = now - self._listened - timeout, now
        if nap > NAP_S:
            self._begun += nap
            self._beat = None if self._beat is None else self._beat + nap
        if not ready:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except ConnectionResetError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._beat = now
            if line:
                self.words.update(json.loads(line))
        return bool(data)

    def stands_still(self) -> bool:
        """Whether the supervisor's loop has stopped turning, or will never begin to: it may wait for a hung disk."""
        now = time.monotonic()
        return now - self._begun > self._up if self._beat is None else now - self._beat > STILL_S

    def how_still(self) -> str:
        if self._beat is not None:
            return "stood still for %d s" % STILL_S
        return "could not start the launcher within %g s (does its folder or its Python lie on a disk that hangs?)" % (
            self._up
        )
