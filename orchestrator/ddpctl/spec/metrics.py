"""Adds up the metrics of the ranks to the metrics of the job. Pure.

Either rank 0 alone writes metrics, and they are for the whole job. Or every rank writes the metrics of its share.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ddpctl.spec.bounds import Figure, Short

Values = Mapping[Short, Figure]

RATE = "_per_s"  # the ending of names of rates: the job's rate is the sum over its ranks
COUNTERS = frozenset({"step", "epoch"})  # progress of a rank: the job's value is the greatest
SAMPLES = "samples_per_s"
COMM_SHARE = "comm_share"  # the share of the time in communication, 0 to 1


def job_metrics(ranks: Sequence[Values]) -> dict[str, float]:
    """Return the job's values; ``ranks`` has the values of each rank that wrote any."""
    names = dict.fromkeys(name for values in ranks for name in values)
    return {name: job_value(name, [values[name] for values in ranks if name in values]) for name in names}


def job_value(name: str, values: Sequence[float]) -> float:
    """Return the job's value of ``name``: the sum of rates, the maximum of counters, else the mean."""
    if len(values) == 1:
        return values[0]
    if name.endswith(RATE):
        return sum(values)
    if name in COUNTERS:
        return max(values)
    return statistics.fmean(values)
