"""A quantity over a time of any length as a bounded number of averages."""

from __future__ import annotations

from typing import List, Optional, Tuple


class Averaged:
    """``most`` stretches, each ``length`` seconds long. Where there would be more, each two of them become one."""

    def __init__(self, most: int, length: float) -> None:
        self._most = most
        self.length = length
        self._sums: List[Tuple[float, int]] = []  # of each stretch: the sum of its values, and how many there are

    def add(self, at: float, value: Optional[float]) -> None:
        """``at``: seconds since the beginning. None stands for a value that is not known."""
        while at >= self._most * self.length:
            self._join()
        index = max(0, int(at / self.length))
        self._sums += [(0.0, 0)] * (index + 1 - len(self._sums))
        if value is not None:
            total, count = self._sums[index]
            self._sums[index] = total + value, count + 1

    def values(self) -> List[Optional[float]]:
        """The average of each stretch so far; None where nothing is known."""
        return [total / count if count else None for total, count in self._sums]

    def _join(self) -> None:
        self.length *= 2
        pairs = (self._sums[at : at + 2] for at in range(0, len(self._sums), 2))
        self._sums = [(sum(total for total, _ in pair), sum(count for _, count in pair)) for pair in pairs]
