"""Merges the output of many ranks by time, and folds equal lines. Pure.

The lines of a host keep the order of its log: the place of a line is the latest time in that log up to the line. So the
order of lines of different hosts is as good as their clocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from operator import itemgetter

from ddpctl.spec.event import Line
from ddpctl.spec.limits import FOLD_S

_HOST, _TIME = itemgetter(0), itemgetter(3)
Group = list[Line]  # equal lines of different ranks, in the order of arrival; usually a single line


class _HostLines:
    """The lines of a host that have arrived and were not taken yet, and the latest time up to each line."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.times: list[float] = []
        self.latest = float("-inf")

    def add(self, lines: Sequence[Line]) -> None:
        self.times += islice(accumulate(map(_TIME, lines), max, initial=self.latest), 1, None)
        self.lines += lines
        self.latest = self.times[-1] if self.times else self.latest

    def drop(self, count: int) -> Line:
        """Drop the first ``count`` lines, and return the last dropped line."""
        last = self.lines[count - 1]
        del self.lines[:count], self.times[:count]
        return last


class Merge:
    """Collects the lines of many hosts, and returns them in the order of time."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = {host: _HostLines() for host in hosts}

    def add(self, host: str, lines: Sequence[Line]) -> None:
        """Add the next lines of a host's log."""
        self._hosts[host].add(lines)

    def latest(self, host: str) -> float:
        """Return the time before which no further line of the host can have its place."""
        return self._hosts[host].latest

    def count(self, until: float) -> int:
        """Return the number of lines whose place is at this time or before."""
        return sum(bisect_right(host.times, until) for host in self._hosts.values())

    def merged(self, until: float) -> list[Line]:
        """Return the lines whose place is at this time or before, in order."""
        lines: list[Line] = []
        times: list[float] = []
        hosts = 0
        for host in self._hosts.values():
            count = bisect_right(host.times, until)
            lines += host.lines[:count]
            times += host.times[:count]
            hosts += count > 0
        if hosts < 2:
            return lines
        # Sorting a list that consists of sorted runs is a merge, and Python's sort is stable.
        return [lines[index] for index in sorted(range(len(lines)), key=times.__getitem__)]

    def drop(self, lines: Iterable[Line]) -> dict[str, tuple[int, Line]]:
        """Drop the first lines of ``merged``. Return the number of dropped lines and the last dropped line by host."""
        counts = Counter(map(_HOST, lines))
        return {host: (count, self._hosts[host].drop(count)) for host, count in counts.items()}


def fold_lines(lines: Sequence[Line], due: int) -> list[Group]:
    """Fold equal lines of different ranks into groups.

    The groups hold the first ``due`` lines, and as many lines after them as their groups need: no line between the
    first and the last line of the result is left out.

    A line joins an earlier group if the text is equal and the rank has printed nothing else since. So the lines of a
    rank keep their order, and a line that a rank prints twice is in two groups. A progress bar is never folded. The
    ``[rank3]: `` that torch puts before each line of an exception makes no difference.
    """
    groups: list[Group] = []
    firsts: list[int] = []  # for each group the index of its first line
    lasts: list[int] = []  # for each group the index of its last line
    same: dict[str, list[int]] = {}  # text -> its groups
    newest: dict[tuple[str, int | None], int] = {}  # rank -> the group of its last line
    for index, line in enumerate(lines):
        source, text = (line[0], line[1]), unmarked(line)
        places = same.get(text)
        place = None if places is None else _open(groups, places, newest.get(source, -1), line)
        if place is None:
            place = len(groups)
            if places is None:
                same[text] = [place]
            else:
                places.append(place)
            groups.append([line])
            firsts.append(index)
            lasts.append(index)
        else:
            groups[place].append(line)
            lasts[place] = index
        newest[source] = place
    return groups[: _whole(firsts, lasts, due)]


def unmarked(line: Line) -> str:
    """Return the text without torch's mark of the line's own rank."""
    text = line.text
    return text.removeprefix(f"[rank{line.rank}]: ") if text[:5] == "[rank" else text


def _open(groups: Sequence[Group], places: Sequence[int], after: int, line: Line) -> int | None:
    """Return the first group that the line may join; ``None``: no group.

    ``places`` are the groups with the text of the line. ``after`` is the group of the rank's last line.
    """
    if line.end == "\r":
        return None
    for at in range(bisect_right(places, after), len(places)):
        first = groups[places[at]][0]
        same = (first.stream, first.end, first.attempt) == (line.stream, line.end, line.attempt)
        if same and abs(line.time - first.time) <= FOLD_S and (first.rank is None) == (line.rank is None):
            return places[at]
    return None


def _whole(firsts: Sequence[int], lasts: Sequence[int], due: int) -> int:
    """Return the number of groups that hold the first ``due`` lines, and all lines up to the last line in them."""
    count = bisect_left(firsts, due)
    reach = max(lasts[:count], default=-1)
    while count < len(firsts) and firsts[count] <= reach:
        reach = max(reach, lasts[count])
        count += 1
    return count


def last_lines(lines: Sequence[Line], count: int) -> Sequence[Line]:
    """Return the last ``count`` lines. Pieces of a line, which lack an end, count together with that line."""
    begun: set[tuple[str, int | None, str]] = set()
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        source = (line.host, line.rank, line.stream)
        if line.end or source not in begun:
            if not count:
                return lines[index + 1 :]
            count -= 1
            begun.add(source)
    return lines
