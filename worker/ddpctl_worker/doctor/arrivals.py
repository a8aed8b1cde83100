"""The arrivals of ranks at collectives, from a glance to the judgement of speed (slow.py). Pure."""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Mapping, Sequence, Tuple

from ddpctl_worker.doctor.limits import KEPT_COLLECTIVES, MOST_GROUPS
from ddpctl_worker.rules import flight


class Arrivals:
    """The arrivals of each rank that no glance has reported yet."""

    def __init__(self) -> None:
        self._heads: Dict[int, Dict[str, int]] = {}  # by pid

    def since_last(self, pid: int, found: Sequence[flight.Entry]) -> Dict[str, List[Tuple[int, float]]]:
        """Return the new arrivals of a process: group -> [(sequence number, Unix seconds)]."""
        heads = self._heads.setdefault(pid, {})
        new: Dict[str, List[Tuple[int, float]]] = {}
        for one in found:
            if one.seq > heads.get(one.group, -1):
                new.setdefault(one.group, []).append((one.seq, round(one.at, 6)))
        heads.update((name, arrivals[-1][0]) for name, arrivals in new.items())
        return new


class Unjudged:
    """Arrivals that have not been judged yet.

    A judgement of many ranks takes a while, so each group keeps its newest arrivals only. ``Collectives`` would drop
    the older arrivals as well.
    """

    def __init__(self) -> None:
        self.ranks: Dict[int, Dict[str, Deque[Tuple[int, float]]]] = {}

    def add(self, rank: int, new: Mapping[str, Sequence[Tuple[int, float]]], ahead: float) -> None:
        """Add new arrivals of a rank. ``ahead``: seconds by which the clock of the rank's host is ahead."""
        groups = self.ranks.setdefault(rank, {})
        for name, arrivals in new.items():
            if arrivals:
                kept = groups.setdefault(name, deque(maxlen=KEPT_COLLECTIVES))
                kept.extend((int(seq), float(at) - ahead) for seq, at in arrivals)
        while len(groups) > MOST_GROUPS:
            del groups[min(groups, key=lambda name: groups[name][-1][1])]

    @property
    def full(self) -> bool:
        """Whether a buffer is full: arrivals were dropped, or will be soon."""
        return any(len(kept) == KEPT_COLLECTIVES for groups in self.ranks.values() for kept in groups.values())
