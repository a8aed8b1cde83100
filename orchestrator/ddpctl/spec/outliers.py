"""Which links of a mesh are worth a word: slow, late, or swallowing big packets."""

from __future__ import annotations

import statistics

from ddpctl.spec.mesh import Mesh, Pair
from ddpctl_worker import contract

SLOW_FACTOR = 0.5  # of the median
# One TCP connection: above the first rate the processors' own noise counts, so that it takes more; above the second
# they are measured, and not the link.
NOISY_MBIT, NOISY_FACTOR = 2000.0, 0.33
FAST_ENOUGH_MBIT = 5000.0
HARDLY_USABLE_MBIT = 80.0  # a 100 Mbit/s port gives 94
LATE_FACTOR = 3.0
LATE_MS = 2.0  # a round trip this much above the median is worth a word
MOST_SUSPECTS = 12
MOST_PER_HOST = 4
BROKEN = frozenset({contract.STALLED, contract.BROKEN})


def slow_links(mesh: Mesh) -> dict[Pair, float]:
    """Directions under half of the median of all (a third, where they are fast; or hardly usable at all), with their
    Mbit/s; not those of a link that swallows bulk data, whose rate says no more than that."""
    rates = mesh.rates()
    if not rates:
        return {}
    middle = statistics.median(rates.values())
    bound = max(min(SLOW_FACTOR * middle, NOISY_MBIT), min(NOISY_FACTOR * middle, FAST_ENOUGH_MBIT), HARDLY_USABLE_MBIT)
    return _whole(mesh, {pair: value for pair, value in rates.items() if value < bound})


def late_links(mesh: Mesh) -> dict[Pair, float]:
    """Directions whose round trip is far above the median of all, in ms; not those of a link that swallows bulk data,
    which was never measured in quiet."""
    trips = {(speed.dialer, speed.peer): speed.rtt_ms for speed in mesh.speeds if speed.rtt_ms is not None}
    if len(trips) < 3:
        return {}
    middle = statistics.median(trips.values())
    late = {pair: value for pair, value in trips.items() if value > LATE_FACTOR * middle and value > middle + LATE_MS}
    return _whole(mesh, late)


def _whole(mesh: Mesh, found: dict[Pair, float]) -> dict[Pair, float]:
    """Without the links on which bulk data stalls, in either direction."""
    stalled = {frozenset(pair) for pair in stalled_pairs(mesh)}
    return {pair: value for pair, value in found.items() if frozenset(pair) not in stalled}


def stalled_pairs(mesh: Mesh) -> tuple[Pair, ...]:
    """The dialled pairs whose bulk data did not arrive, one way or both."""
    return tuple((s.dialer, s.peer) for s in mesh.speeds if s.push in BROKEN or s.pull in BROKEN)


def suspects(mesh: Mesh) -> tuple[Pair, ...]:
    """The dialled pairs worth a second measurement because they look slow or late, the worst MOST_SUSPECTS of them."""
    slow, late = slow_links(mesh), late_links(mesh)
    ordered = [*sorted(slow, key=lambda pair: slow[pair]), *sorted(late, key=lambda pair: -late[pair])]
    measured = {(speed.dialer, speed.peer) for speed in mesh.speeds}
    chosen: list[Pair] = []
    for pair in dict.fromkeys(ordered):
        busy = max(sum(host in other for other in chosen) for host in pair)
        if pair in measured and busy < MOST_PER_HOST and len(chosen) < MOST_SUSPECTS:
            chosen.append(pair)
    return tuple(chosen)
