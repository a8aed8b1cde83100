"""What servers show before a login."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ddpctl.transport.route import Hop

Say = Callable[[str], None]


class Banners:
    """Each text once, without what would steer the terminal."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._shown: set[str] = set()
        self._lock = threading.Lock()

    def heard(self, hop: Hop, banner: str) -> None:
        lines = (line.rstrip() for line in banner.expandtabs().splitlines())
        text = "\n".join("".join(letter for letter in line if letter.isprintable()) for line in lines).strip("\n")
        with self._lock:
            if not text or text in self._shown:
                return
            self._shown.add(text)
        self._say("\n".join(f"{hop.label} | {line}" for line in text.split("\n")))
