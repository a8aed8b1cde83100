"""Finds the ranks that are slow now (stragglers), from the times at which the ranks entered their collectives. Pure.

``steps.py`` gives a lag for each rank and step. A rank is slow if its lag fulfils four conditions:

- The lag costs time: it is a real share of the step, beyond the possible error of the hosts' clocks.
- The lag is no chance: the mean lag is many standard errors above 0, and the rank was last more often than chance
  allows (binomial). Both bounds become stricter with the number of ranks and of tested windows, so that a long run
  makes no false report in the end (Bonferroni; the sum over windows grows with the logarithm of their number).
- The lag persists: every quarter of the window shows it, and a single long pause counts no more than a few usual lags.
  A rank that the scheduler starves for some seconds makes the other ranks wait too, but not for long.
- The lag is the rank's own, and not a wait for another rank.

Windows of 32 to 48 steps find a delay within 50 steps. A window of 192 steps finds a delay that noise hides in short
windows, and repeated pauses, such as a slow checkpoint of one rank.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from ddpctl_worker.doctor.limits import (
    BLOCKS,
    CHANCE,
    GROUP_SILENT_S,
    KEPT_STEPS,
    LAG_SHARE,
    MIN_PAUSES,
    OWN_BLOCKS_WEIGHT,
    OWN_LAG_SHARE,
    PAUSE_FACTOR,
    QUARTER_SHARE,
    QUARTERS,
    RECENT_STEPS,
    TINY_S,
    WINDOWS,
)
from ddpctl_worker.doctor.steps import Collectives, Entries, Step, median


class _Bounds(NamedTuple):
    """The bounds that a window has to exceed."""

    deviations: float  # the least mean lag, in standard errors
    chance: float  # the largest probability of being last so often


class SlowRanks:
    """The slow ranks of a job. A restarted job needs a new object, because its sequence numbers start again."""

    def __init__(self) -> None:
        self._collectives = Collectives()

    def feed(self, reports: Mapping[int, Entries], errors: Mapping[int, float]) -> List[Dict[str, Any]]:
        """Return the ranks that are slow now, in ascending order.

        ``reports``: rank -> group -> the new entries since the last report, as (sequence number, arrival in Unix
        seconds, with the clocks aligned). ``errors``: rank -> the possible error of its clock in seconds. A report may
        come late or never; a collective is judged once all its ranks have reported.

        Each result is ``{"rank": int, "lag_ms": float, "last_share": float}``. ``lag_ms``: how much later than the
        median of the other ranks the rank enters the collective with the longest wait of a step (median over the
        window). ``last_share``: the share of the steps in which the rank was last there.
        """
        self._collectives.add(reports)
        found: Dict[int, Dict[str, Any]] = {}
        for group in self._collectives.groups():
            if self._collectives.newest - group.newest <= GROUP_SILENT_S:
                for one in _slow(list(group.steps), group.count, errors):
                    if one["rank"] not in found or one["lag_ms"] > found[one["rank"]]["lag_ms"]:
                        found[one["rank"]] = one
        return [found[rank] for rank in sorted(found)]


def _slow(steps: List[Step], count: int, errors: Mapping[int, float]) -> List[Dict[str, Any]]:
    """Return the slow ranks of a group. ``steps``: its last steps; ``count``: the number of all its steps."""
    windows = {KEPT_STEPS, *WINDOWS, min(len(steps), max(WINDOWS))}
    for window in sorted((one for one in windows if min(WINDOWS) <= one <= len(steps)), reverse=True):
        found = _always(steps[-window:], count, errors)
        if found:
            return found
    return _paused(steps, count, errors) if len(steps) == KEPT_STEPS else []


def _always(steps: List[Step], count: int, errors: Mapping[int, float]) -> List[Dict[str, Any]]:
    """Return the ranks that are late in most steps."""
    ranks = _ranks(steps)
    if len(ranks) < 2:
        return []
    limit = PAUSE_FACTOR * _usual(steps)
    lags = {rank: [_clip(step.lags[rank], limit) for step in steps] for rank in ranks}
    noise, bounds, found = _noise(lags), _bounds(len(ranks), count), []
    stricter = math.sqrt(max(1.0, max(WINDOWS) / len(steps)))  # lasting noise may fill a short window
    for rank in ranks:
        error = _clock_error(rank, ranks, errors)
        own = sum(_clip(step.own[rank], limit) - error for step in steps) / _seconds(steps)
        late = [lag - error for lag in lags[rank]]
        single = _deviation(lags[rank]) / math.sqrt(len(steps))
        spread = max(noise, single, OWN_BLOCKS_WEIGHT * _batch(lags[rank])) + TINY_S
        if (
            own >= OWN_LAG_SHARE
            and min(_quarters(late, steps)) > QUARTER_SHARE * sum(late) / _seconds(steps)
            and sum(late[-RECENT_STEPS:]) >= OWN_LAG_SHARE * _seconds(steps[-RECENT_STEPS:])
            and sum(late) >= LAG_SHARE * _seconds(steps)
            and _mean(late) >= bounds.deviations * stricter * spread
            and _chance(_times_last(rank, steps), len(steps), len(ranks)) <= bounds.chance
        ):
            found.append(_named(rank, steps))
    return found


def _paused(steps: List[Step], count: int, errors: Mapping[int, float]) -> List[Dict[str, Any]]:
    """Return the ranks that make the other ranks wait long, not in every step but again and again."""
    ranks = _ranks(steps)
    limit, bounds, found = PAUSE_FACTOR * _usual(steps), _bounds(len(ranks), count), []
    pauses = [step for step in steps if step.lags.get(step.last, 0.0) > limit]
    for rank in ranks:
        times, error = _times_last(rank, pauses), _clock_error(rank, ranks, errors)
        cost = [max(0.0, step.own[rank] - error) if step.last == rank else 0.0 for step in steps]
        if (
            times >= MIN_PAUSES
            and min(_quarters(cost, steps)) >= LAG_SHARE
            and _chance(times, len(pauses), len(ranks)) <= bounds.chance
        ):
            found.append(_named(rank, [step for step in pauses if step.last == rank], len(steps)))
    return found


def _named(rank: int, steps: List[Step], of: int = 0) -> Dict[str, Any]:
    lag = median(step.lags[rank] for step in steps)
    return {"rank": rank, "lag_ms": 1e3 * lag, "last_share": _times_last(rank, steps) / (of or len(steps))}


def _ranks(steps: Sequence[Step]) -> List[int]:
    """Return the ranks that are in every step: a rank may have reported for the first time in the middle."""
    return sorted(set.intersection(*(set(step.lags) for step in steps))) if steps else []


def _bounds(ranks: int, count: int) -> _Bounds:
    chance = CHANCE / ranks / max(1.0, count / max(WINDOWS))
    return _Bounds(NormalDist().inv_cdf(1 - chance), chance)


def _clock_error(rank: int, ranks: Sequence[int], errors: Mapping[int, float]) -> float:
    """Return the possible error of a rank's lag: of its own clock, and of the worst clock among the other ranks."""
    return errors.get(rank, 0.0) + max((errors.get(other, 0.0) for other in ranks if other != rank), default=0.0)


def _usual(steps: Sequence[Step]) -> float:
    """Return the largest lag of a usual step, in seconds."""
    return median(max(abs(lag) for lag in step.lags.values()) for step in steps)


def _noise(lags: Mapping[int, Sequence[float]]) -> float:
    """Return the standard error of a rank's mean lag, pooled over the ranks: the larger of two estimates.

    The first estimate is from single steps. The second is from the means of blocks of steps (batch means), because
    noise may last for several steps.
    """
    count = min(len(one) for one in lags.values())
    single = _rms([_deviation(one) for one in lags.values()]) / math.sqrt(count)
    return max(single, _rms([_batch(one) for one in lags.values()]))


def _batch(lags: Sequence[float]) -> float:
    """Return the standard error of a rank's mean lag, from the means of its blocks."""
    return _deviation([_mean(part) for part in _parts(lags, BLOCKS)]) / math.sqrt(BLOCKS)


def _quarters(lags: Sequence[float], steps: Sequence[Step]) -> List[float]:
    """Return the lags' share of the time in each quarter of the window."""
    seconds = [max(sum(part), TINY_S) for part in _parts([step.seconds for step in steps], QUARTERS)]
    return [sum(part) / seconds[i] for i, part in enumerate(_parts(lags, QUARTERS))]


def _chance(times: int, steps: int, ranks: int) -> float:
    """Return the probability (binomial) that one rank of ``ranks`` equal ranks is last ``times`` times or more."""
    p = 1 / ranks
    return sum(math.comb(steps, k) * p**k * (1 - p) ** (steps - k) for k in range(times, steps + 1))


def _times_last(rank: int, steps: Sequence[Step]) -> int:
    return sum(step.last == rank for step in steps)


def _seconds(steps: Sequence[Step]) -> float:
    return sum(step.seconds for step in steps)


def _parts(values: Sequence[float], count: int) -> List[Sequence[float]]:
    return [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]


def _clip(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(_mean([value * value for value in values]))
