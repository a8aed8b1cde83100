"""What the ranks of a job measure of themselves, and how it adds up to the job's own numbers. Pure.

Either rank 0 writes the numbers of the whole job, or every rank writes those of its share: who writes decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

Values = Mapping[str, float]

RATE = "_per_s"  # a name with this ending is a rate: those of several ranks add up
COUNTERS = frozenset({"step", "epoch"})  # how far a rank has come
SAMPLES = "samples_per_s"
COMM_SHARE = "comm_share"  # the share of the time in communication, 0 to 1


def of_job(ranks: Sequence[Values]) -> dict[str, float]:
    """The job's values from those of the ranks that wrote any, one mapping a rank."""
    names = dict.fromkeys(name for values in ranks for name in values)
    return {name: together(name, [values[name] for values in ranks if name in values]) for name in names}


def together(name: str, values: Sequence[float]) -> float:
    """One value of the job from those of its ranks."""
    if len(values) == 1:
        return values[0]
    if name.endswith(RATE):
        return sum(values)
    if name in COUNTERS:
        return max(values)
    return statistics.fmean(values)
