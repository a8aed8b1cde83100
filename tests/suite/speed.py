"""The speed of this machine: guards against stuck tests, and budgets of CPU, are for the quiet reference machine."""

from __future__ import annotations

import functools
import os
import time

from tests.suite import limits


def used_cpu_seconds() -> float:
    """CPU seconds of this process and of its ended children."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def measure_slowness() -> float:
    """Return how many times as slow as the quiet reference machine this machine is now; at least 1."""
    begun, total = used_cpu_seconds(), 0
    for number in range(limits.REFERENCE_ADDITIONS):
        total += number
    return max(1.0, (used_cpu_seconds() - begun) / limits.REFERENCE_S)


def stretch(seconds: float) -> float:
    """Return how long a guard against a stuck test waits, where the test names ``seconds``."""
    return seconds * _choose_factor()


@functools.cache
def _choose_factor() -> float:
    return min(limits.MOST_STRETCH, max(limits.LEAST_STRETCH, measure_slowness()))
