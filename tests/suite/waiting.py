"""The loop of every wait for a recorded fact."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.suite.limits import LONGEST_PAUSE_S, PAUSE_PER_LOOK
from tests.suite.speed import stretch


def poll(found: Callable[[], Any], seconds: float, pause: float) -> Any:
    """Return the first true value of ``found``, or its last value if there is no true value in time.

    ``seconds``: as on a quiet machine (speed.py). ``pause``: the least seconds between two looks.
    """
    deadline = time.monotonic() + stretch(seconds)
    while True:
        begun = time.monotonic()
        value = found()
        now = time.monotonic()
        if value or now > deadline:
            return value
        time.sleep(max(pause, min(LONGEST_PAUSE_S, (now - begun) * PAUSE_PER_LOOK)))
