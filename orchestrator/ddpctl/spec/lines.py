"""The output of many ranks as one: merged by time, equal lines folded. Pure.

The lines of one host keep the order of its log, whatever their times: the merge goes by the latest time that a host's
log has had up to a line. So the order over hosts is as good as their clocks.
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
Group = list[Line]  # equal lines of different ranks, in the order in which they came; most often one line


class _Side:
    """What has come of one host and was not taken yet: its lines, and the latest time up to each of them."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.times: list[float] = []
        self.latest = float("-inf")

    def add(self, lines: Sequence[Line]) -> None:
        self.times += islice(accumulate(map(_TIME, lines), max, initial=self.latest), 1, None)
        self.lines += lines
        self.latest = self.times[-1] if self.times else self.latest

    def drop(self, count: int) -> Line:
        """The last one of those dropped."""
        last = self.lines[count - 1]
        del self.lines[:count], self.times[:count]
        return last


class Merge:
    """Collects the lines of many hosts and gives them out in the order of time."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._sides = {host: _Side() for host in hosts}

    def add(self, host: str, lines: Sequence[Line]) -> None:
        """The next ones of a host's log."""
        self._sides[host].add(lines)

    def latest(self, host: str) -> float:
        """No line that is still to come of the host has its place before this time."""
        return self._sides[host].latest

    def count(self, until: float) -> int:
        """How many lines have their place at this time or before."""
        return sum(bisect_right(side.times, until) for side in self._sides.values())

    def merged(self, until: float) -> list[Line]:
        """These lines, in order."""
        lines: list[Line] = []
        times: list[float] = []
        sides = 0
        for side in self._sides.values():
            count = bisect_right(side.times, until)
            lines += side.lines[:count]
            times += side.times[:count]
            sides += count > 0
        if sides < 2:
            return lines
        # A sort of runs that are sorted already is a merge, and it is stable.
        return [lines[index] for index in sorted(range(len(lines)), key=times.__getitem__)]

    def drop(self, lines: Iterable[Line]) -> dict[str, tuple[int, Line]]:
        """Take the first lines of ``merged`` out: of each host how many they were, and the last one."""
        counts = Counter(map(_HOST, lines))
        return {host: (count, self._sides[host].drop(count)) for host, count in counts.items()}


def fold(lines: Sequence[Line], due: int) -> list[Group]:
    """The first ``due`` lines, equal ones of different ranks together, and as many more as belong to them: the groups
    are always made of the first lines, with none left out between.

    A line joins an earlier one if the text is the same and the rank has said nothing else since. So the lines of a rank
    keep their order, and one that came twice is in two groups. A progress bar is never folded.
    """
    groups: list[Group] = []
    firsts: list[int] = []  # of each group: the index of its first line, and of its last one
    lasts: list[int] = []
    same: dict[str, list[int]] = {}  # text -> its groups
    newest: dict[tuple[str, int | None], int] = {}  # rank -> the group of its last line
    for index, line in enumerate(lines):
        who, text = (line[0], line[1]), line[4]
        places = same.get(text)
        place = None if places is None else _open(groups, places, newest.get(who, -1), line)
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
        newest[who] = place
    return groups[: _whole(firsts, lasts, due)]


def _open(groups: Sequence[Group], places: Sequence[int], after: int, line: Line) -> int | None:
    """The first group of that text which the line may join: it is behind the rank's last one."""
    if line.end == "\r":
        return None
    for at in range(bisect_right(places, after), len(places)):
        first = groups[places[at]][0]
        same = (first.stream, first.end, first.attempt) == (line.stream, line.end, line.attempt)
        if same and abs(line.time - first.time) <= FOLD_S and (first.rank is None) == (line.rank is None):
            return places[at]
    return None


def _whole(firsts: Sequence[int], lasts: Sequence[int], due: int) -> int:
    """How many groups hold the first ``due`` lines, and no line after one that is in none of them."""
    count = bisect_left(firsts, due)
    reach = max(lasts[:count], default=-1)
    while count < len(firsts) and firsts[count] <= reach:
        reach = max(reach, lasts[count])
        count += 1
    return count


def last_lines(lines: Sequence[Line], count: int) -> Sequence[Line]:
    """The last ``count`` lines. A piece without an end belongs to the line that it begins."""
    begun: set[tuple[str, int | None, str]] = set()
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        who = (line.host, line.rank, line.stream)
        if line.end or who not in begun:
            if not count:
                return lines[index + 1 :]
            count -= 1
            begun.add(who)
    return lines
