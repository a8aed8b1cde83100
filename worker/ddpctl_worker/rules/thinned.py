"""Thins a series of any length to a bounded number of its own points, while the points come."""

from __future__ import annotations

from typing import List, Optional, Tuple

from ddpctl_worker.rules.limits import LEAST_POINTS

Numbered = Tuple[int, float, float]  # a point's number in the series, x, y


class Thinned:
    """Keeps the first and the last point, and the lowest and highest point of each stretch, so that no spike is lost.

    All stretches have the same length. If there are too many, each pair becomes one stretch.
    """

    def __init__(self, most: int) -> None:
        self._room = _room(most)
        self._length = 1  # points in a stretch
        self._stretches: List[Tuple[Numbered, Numbered]] = []  # the lowest and the highest point of each
        self._first: Optional[Numbered] = None
        self._last: Optional[Numbered] = None
        self.count = 0

    def add(self, x: float, y: float) -> None:
        self._last = point = (self.count, x, y)
        self._first = self._first or point
        if self.count // self._length == self._room:
            self._join()
        index = self.count // self._length
        if index == len(self._stretches):
            self._stretches.append((point, point))
        else:
            self._stretches[index] = _both(self._stretches[index], (point, point))
        self.count += 1

    def points(self, most: int) -> List[List[float]]:
        """Return at most ``most`` points as [x, y], in the order in which they came."""
        while len(self._stretches) > _room(most):
            self._join()
        ends = [point for point in (self._first, self._last) if point is not None]
        chosen = {*ends, *(point for stretch in self._stretches for point in stretch)}
        return [[x, y] for _, x, y in sorted(chosen)]

    def _join(self) -> None:
        self._length *= 2
        pairs = [self._stretches[at : at + 2] for at in range(0, len(self._stretches), 2)]
        self._stretches = [_both(pair[0], pair[-1]) for pair in pairs]


def _room(most: int) -> int:
    """Return the number of stretches. Each has two points; the first and the last point of the series come on top."""
    return max(1, (max(LEAST_POINTS, most) - 2) // 2)


def _both(one: Tuple[Numbered, Numbered], other: Tuple[Numbered, Numbered]) -> Tuple[Numbered, Numbered]:
    low = other[0] if other[0][2] < one[0][2] else one[0]
    high = other[1] if other[1][2] > one[1][2] else one[1]
    return low, high
