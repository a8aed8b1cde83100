"""Estimates the offset of another host's clock from round trips of messages. Pure.

The method is NTP's (RFC 5905, section 8): the sample with the shortest round trip is the best.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, NamedTuple, Optional

from ddpctl_worker.machine.limits import CLOCK_DRIFT, CLOCK_SAMPLES


class Sample(NamedTuple):
    """A message and its answer, in Unix seconds."""

    t0: float  # the hub sends, by the hub's clock
    t1: float  # the member receives, by the member's clock
    t2: float  # the member answers, by the member's clock
    t3: float  # the hub receives, by the hub's clock


class Offset(NamedTuple):
    """The member's clock minus the hub's, in seconds. The true value is within ``error`` of ``seconds``."""

    seconds: float
    error: float


class Clock:
    """The clock of a member, as the hub estimates it."""

    def __init__(self) -> None:
        self._samples: Deque[Sample] = deque(maxlen=CLOCK_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Add a sample that is newer than all samples so far.

        If it contradicts the best sample, a clock was stepped since then, and all older samples are dropped. If it
        contradicts itself (an answer sent before its question), a clock was stepped meanwhile, and it is dropped too.
        """
        if round_trip(sample) < 0 or sample.t2 < sample.t1:
            self._samples.clear()
            return
        new, best = measure_offset(sample), self.offset(sample.t3)
        if best is not None and abs(new.seconds - best.seconds) > new.error + best.error:
            self._samples.clear()
        self._samples.append(sample)

    def offset(self, now: float) -> Optional[Offset]:
        """Return the offset by the sample with the shortest round trip; ``None`` without samples.

        ``now``: Unix seconds by the hub's clock. The error grows with the age of the sample.
        """
        best = min(list(self._samples), key=round_trip, default=None)  # the gang adds, the doctor asks
        if best is None:
            return None
        seconds, error = measure_offset(best)
        return Offset(seconds, error + CLOCK_DRIFT * max(0.0, now - best.t3))


def measure_offset(sample: Sample) -> Offset:
    """Return the offset ((t1-t0)+(t2-t3))/2 of a sample, with half its round trip as the error.

    The two ways may differ in length. In the worst case the whole time is spent on one way (RFC 5905, section 8).
    """
    t0, t1, t2, t3 = sample
    return Offset(((t1 - t0) + (t2 - t3)) / 2, round_trip(sample) / 2)


def round_trip(sample: Sample) -> float:
    """Return the round trip (t3-t0)-(t2-t1) in seconds, without the member's own time."""
    return (sample.t3 - sample.t0) - (sample.t2 - sample.t1)
