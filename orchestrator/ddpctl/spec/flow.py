"""Decides when lines of many hosts are shown, so that they are in order and equal lines are folded.

Pure: the time is an argument. A host is *behind* while more of its log is on the way. A line is then held back if the
next line of that host could have its place before it. Once no host is behind, each new line waits HOLD_S for lines of
other hosts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpctl.spec.event import Line
from ddpctl.spec.limits import FULL_BATCH, HOLD_S, LINE_TURN_S, LINES_AHEAD, MOST_WEIGHT, SILENT_HOST_S, SPARE_LINES
from ddpctl.spec.lines import Group, Merge, fold_lines, last_lines

_EVER = float("inf")


class Out(NamedTuple):
    """Lines to show, and the offset in each host's log after these lines."""

    groups: list[Group]
    offsets: dict[str, int]


@dataclass
class _Batch:
    at: float  # when the batch arrived
    until: float  # the place of its last line
    left: int  # the number of lines that were not shown yet
    size: int  # FULL_BATCH or 1


@dataclass
class _Wait:
    """The batches of a host that wait here."""

    batches: deque[_Batch] = field(default_factory=deque)
    size: int = 0

    def add(self, batch: _Batch) -> None:
        self.batches.append(batch)
        self.size += batch.size

    def drop(self, count: int) -> None:
        while count:
            batch = self.batches[0]
            taken = min(count, batch.left)
            batch.left -= taken
            count -= taken
            if not batch.left:
                self.size -= self.batches.popleft().size


class Flow:
    """The lines on their way from the hosts to the screen.

    ``live``: the logs are followed. ``folded``: equal lines are folded. ``last``: at the beginning, show only that many
    of the lines that exist already. ``held``: new lines wait for lines of other hosts.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        now: float,
        *,
        live: bool,
        folded: bool = True,
        last: int | None = None,
        held: bool = True,
    ) -> None:
        self._merge = Merge(hosts)
        self._waits = {host: _Wait() for host in hosts}
        self._behind = dict.fromkeys(hosts, now)  # host -> the time of the last change in its lines
        self._live, self._folded, self._last, self._held = live, folded, last, held
        self._kept: list[Line] = []  # the last of these lines will be shown
        self._turn = now

    def add(self, host: str, lines: Sequence[Line], more: bool, now: float) -> None:
        """Add a batch of a host's log, in order; ``more``: another batch is on the way."""
        if more:
            self._behind[host] = now
        else:
            self._behind.pop(host, None)
        if lines:
            self._merge.add(host, lines)
            self._waits[host].add(_Batch(now, self._merge.latest(host), len(lines), FULL_BATCH if more else 1))

    def skip(self, host: str) -> None:
        """Stop waiting for a host that cannot send now."""
        self._behind.pop(host, None)

    def full(self, host: str) -> bool:
        """Return whether so much of the host waits here that it must not send more."""
        return self._waits[host].size >= MOST_WEIGHT

    @property
    def waits(self) -> bool:
        """Return whether any line waits here."""
        return any(wait.batches for wait in self._waits.values())

    def take(self, now: float) -> Out | None:
        """Return the lines to show now; ``None``: no line is due."""
        behind = [host for host, since in self._behind.items() if not self._silent(host, since, now)]
        if not behind:
            return self._new(now)
        until = min(self._merge.latest(host) for host in behind)
        due = there = self._merge.count(until)
        if self._folded:
            due -= LINES_AHEAD
        if due <= 0 and any(self.full(host) and self._merge.latest(host) == until for host in behind):
            due = there  # the host cannot send more until some of its lines are shown
        return self._out(until, due, now, keep=self._last is not None)

    def rest(self, now: float) -> Out | None:
        """Return all remaining lines, after the last batch of every host."""
        return self._all(now)

    def _silent(self, host: str, since: float, now: float) -> bool:
        return self._live and now - since > SILENT_HOST_S and not self._waits[host].batches

    def _new(self, now: float) -> Out | None:
        """Return the lines to show now while no host is behind."""
        if self._last is not None or not self._live or not self._held:
            return self._all(now)
        if now < self._turn:
            return None
        self._turn = now + LINE_TURN_S
        return self._out(_EVER, self._merge.count(max(self._ripe(now), default=-_EVER)), now)

    def _ripe(self, now: float) -> Iterable[float]:
        for wait in self._waits.values():
            ripe = [batch.until for batch in wait.batches if now - batch.at >= HOLD_S]
            if ripe or wait.size >= MOST_WEIGHT:
                yield ripe[-1] if ripe else wait.batches[0].until

    def _all(self, now: float) -> Out | None:
        if self._last is None:
            return self._out(_EVER, self._merge.count(_EVER), now)
        ended = self._out(_EVER, self._merge.count(_EVER), now, keep=True)
        lines = list(last_lines(self._kept, self._last))
        self._last, self._kept = None, []
        return Out(self._grouped(lines, len(lines)), ended.offsets if ended else {}) if lines else None

    def _out(self, until: float, due: int, now: float, *, keep: bool = False) -> Out | None:
        """Take the first ``due`` lines and the lines folded with them; ``keep``: keep them instead of showing them."""
        if due <= 0:
            return None
        lines = self._merge.merged(until)
        groups: list[Group] = []
        if keep:
            self._keep(lines[:due])
        else:
            groups = self._grouped(lines, due)
            due = sum(map(len, groups))
        return Out(groups, self._drop(lines[:due], now))

    def _grouped(self, lines: Sequence[Line], due: int) -> list[Group]:
        return fold_lines(lines, due) if self._folded else [[line] for line in lines[:due]]

    def _keep(self, lines: Sequence[Line]) -> None:
        assert self._last is not None
        self._kept += lines
        if len(self._kept) > 2 * self._last + SPARE_LINES:
            self._kept = list(last_lines(self._kept, self._last))

    def _drop(self, lines: Sequence[Line], now: float) -> dict[str, int]:
        offsets: dict[str, int] = {}
        for host, (count, last) in self._merge.drop(lines).items():
            self._waits[host].drop(count)
            offsets[host] = last.offset
            if host in self._behind:
                self._behind[host] = now
        return offsets
