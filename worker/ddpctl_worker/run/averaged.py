"""Keeps a quantity over time as a bounded number of averages."""

from __future__ import annotations

from typing import List, Optional, Tuple


class Averaged:
    """At most ``most`` intervals of ``length`` seconds. When they are full, neighbours merge and ``length`` doubles."""

    def __init__(self, most: int, length: float) -> None:
        self._most = most
        self.length = length
        self._sums: List[Tuple[float, int]] = []  # of each interval: the sum and the number of its values

    def add(self, at: float, value: Optional[float]) -> None:
        """Add the value at ``at`` seconds from the beginning; ``None``: unknown."""
        while at >= self._most * self.length:
            self._join()
        index = max(0, int(at / self.length))
        self._sums += [(0.0, 0)] * (index + 1 - len(self._sums))
        if value is not None:
            total, count = self._sums[index]
            self._sums[index] = total + value, count + 1

    def values(self) -> List[Optional[float]]:
        """Return the average of each interval so far; ``None`` for an interval without values."""
        return [total / count if count else None for total, count in self._sums]

    def _join(self) -> None:
        self.length *= 2
        pairs = (self._sums[at : at + 2] for at in range(0, len(self._sums), 2))
        self._sums = [(sum(total for total, _ in pair), sum(count for _, count in pair)) for pair in pairs]
