"""Merging and folding: whatever the hosts say and whenever it comes, every line is there once and in the order of its
rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec import flow as module
from ddpctl.spec.event import Line
from ddpctl.spec.flow import Flow
from ddpctl.spec.limits import FOLD_S, HOLD_S, LINES_AHEAD, SILENT_HOST_S
from ddpctl.spec.lines import Group, Merge, fold_lines, last_lines
from tests.examples import few

HOSTS = ("a", "b", "c")
Log = list[Line]


def line(host: str, rank: int | None, time: float, text: str, offset: int = 0, end: str = "\n") -> Line:
    return Line(host, rank, "stdout", time, text, end, offset)


FIRST = line("a", 0, 1.0, "x")


@st.composite
def logs(draw: st.DrawFn, most: int = 30) -> dict[str, Log]:
    """For each host the lines of two ranks: few texts, times that mostly grow."""
    found: dict[str, Log] = {}
    for number, host in enumerate(HOSTS):
        time = 100.0
        found[host] = []
        for offset in range(draw(st.integers(0, most))):
            time += draw(st.sampled_from((0.0, 0.0, 0.01, 0.3, 2.0, -0.2)))
            rank = draw(st.sampled_from((2 * number, 2 * number + 1, None)))
            text, end = draw(st.sampled_from("xyz")), draw(st.sampled_from(("\n", "\n", "\r", "")))
            found[host].append(line(host, rank, time, text, offset + 1, end))
    return found


def by_host(lines: Sequence[Line]) -> dict[str, Log]:
    return {host: [one for one in lines if one.host == host] for host in HOSTS}


def places(lines: Sequence[Line]) -> list[float]:
    """Of each line the latest time that its host's log has had."""
    latest = dict.fromkeys(HOSTS, 0.0)
    found = []
    for one in lines:
        latest[one.host] = max(latest[one.host], one.time)
        found.append(latest[one.host])
    return found


def by_rank(groups: Sequence[Group]) -> dict[tuple[str, int | None], Log]:
    found: dict[tuple[str, int | None], Log] = {}
    for group in groups:
        for one in group:
            found.setdefault((one.host, one.rank), []).append(one)
    return found


def check_groups(groups: Sequence[Group], whole: Sequence[Line]) -> None:
    """Every line once, in its rank's order; lines of the same group are equal, close in time, of different ranks."""
    assert by_rank(groups) == by_rank([[one] for one in whole])
    for group in groups:
        assert len({(one.host, one.rank) for one in group}) == len(group)
        assert len({(one.text, one.end, one.stream, one.attempt, one.rank is None) for one in group}) == 1
        assert all(abs(one.time - group[0].time) <= FOLD_S for one in group)
        assert len(group) == 1 or group[0].end != "\r"


@given(logs())
@few
def test_the_merge_keeps_every_hosts_order_and_goes_by_the_latest_time_so_far(found: dict[str, Log]) -> None:
    merge = Merge(HOSTS)
    for host, log in found.items():
        merge.add(host, log[: len(log) // 2])
        merge.add(host, log[len(log) // 2 :])
    merged = merge.merged(float("inf"))
    assert by_host(merged) == found
    assert places(merged) == sorted(places(merged))
    assert sum(count for count, _ in merge.drop(merged).values()) == len(merged)
    assert merge.merged(float("inf")) == []


@given(logs(), st.integers(0, 100))
@few
def test_folding_loses_and_reorders_nothing(found: dict[str, Log], due: int) -> None:
    merge = Merge(HOSTS)
    for host, log in found.items():
        merge.add(host, log)
    lines = merge.merged(float("inf"))
    groups = fold_lines(lines, due)
    taken = sum(map(len, groups))
    assert min(due, len(lines)) <= taken
    check_groups(groups, lines[:taken])


def test_what_many_ranks_say_at_once_is_one_line_also_where_they_take_turns() -> None:
    lines = [
        line("ab"[rank // 2], rank, 1.0 + number / 10, f"step {number}") for number in range(3) for rank in range(4)
    ]
    turns = [lines[index] for index in (0, 4, 1, 5, 8, 2, 3, 9, 6, 7, 10, 11)]
    assert [[one.rank for one in group] for group in fold_lines(turns, 99)] == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize(
    ("other", "together"),
    [
        (FIRST._replace(rank=1), True),
        (FIRST, False),  # it came twice
        (FIRST._replace(rank=1, time=2.1), False),
        (FIRST._replace(rank=1, stream="stderr"), False),
        (FIRST._replace(rank=1, attempt=2), False),
        (FIRST._replace(rank=None), False),
        (FIRST._replace(rank=1, text="X"), False),
    ],
)
def test_which_lines_are_equal(other: Line, together: bool) -> None:
    assert (len(fold_lines([FIRST, other], 2)) == 1) == together


def test_torchs_mark_of_a_rank_keeps_no_lines_apart() -> None:
    marked = [line("ab"[rank], rank, 1.0, f"[rank{rank}]: ValueError: boom") for rank in (0, 1)]
    assert len(fold_lines(marked, 2)) == 1
    strange = marked[1]._replace(text=marked[0].text)  # a rank that quotes another rank
    assert len(fold_lines([marked[0], strange], 2)) == 2


def test_a_line_never_moves_in_front_of_what_its_rank_said_before() -> None:
    said = [line("a", 0, 1.0, "x"), line("b", 1, 1.1, "y"), line("b", 1, 1.2, "x"), line("a", 0, 1.3, "y")]
    assert [[(one.rank, one.text) for one in group] for group in fold_lines(said, 9)] == [
        [(0, "x")],
        [(1, "y"), (0, "y")],
        [(1, "x")],
    ]


@given(logs(), st.integers(0, 40))
@few
def test_the_last_lines_are_the_end(found: dict[str, Log], count: int) -> None:
    lines = [one for log in found.values() for one in log]
    last = list(last_lines(lines, count))
    assert last == lines[len(lines) - len(last) :]
    assert sum(bool(one.end) for one in last) <= count


# --- when they are given out -----------------------------------------------------------------------------------------


class Told:
    """A flow, and its output; the offsets must always match all given lines."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.groups = flow, list[Group]()
        self.offsets: dict[str, int] = {}

    def take(self, now: float) -> int:
        """How many lines came out."""
        return self.keep(self.flow.take(now))

    def keep(self, out: module.Out | None) -> int:
        if out is None:
            return 0
        self.groups += out.groups
        self.offsets |= out.offsets
        given = Counter(one.host for group in self.groups for one in group)
        assert given == Counter(self.offsets)  # a line's offset is its number: nothing before it is missing
        return sum(map(len, out.groups))

    @property
    def lines(self) -> Log:
        return [one for group in self.groups for one in group]


@given(logs(), st.data(), st.booleans(), st.booleans(), st.integers(1, 50))
@few
def test_however_the_batches_come_nothing_is_lost_doubled_or_skipped(
    found: dict[str, Log], data: st.DataObject, live: bool, folded: bool, ahead: int
) -> None:
    """What is killed at any moment has given the first lines of each host, and knows how many."""
    now, left = 0.0, {host: list(log) for host, log in found.items()}
    told = Told(Flow(HOSTS, now, live=live, folded=folded))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LINES_AHEAD", ahead)
        while any(left.values()):
            now += data.draw(st.sampled_from((0.0, 0.06, 0.3, 4.0)))
            host = data.draw(st.sampled_from([host for host in HOSTS if left[host]]))
            count = data.draw(st.integers(1, 8))
            batch, left[host] = left[host][:count], left[host][count:]
            told.flow.add(host, batch, bool(left[host]) and data.draw(st.booleans()), now)
            if data.draw(st.booleans()):
                told.flow.skip(host)
            told.take(now)
        told.keep(told.flow.rest(now))
    if not folded:
        assert by_host(told.lines) == found
    check_groups(told.groups, [one for log in found.values() for one in log])


@given(logs(most=60), st.booleans())
@few
def test_whole_logs_come_out_as_one_merge_whatever_the_pieces(found: dict[str, Log], live: bool) -> None:
    """As long as their hosts are behind, no line is given out before a line that belongs in front of it."""
    told = Told(Flow(HOSTS, 0.0, live=live, folded=False))
    for start in range(0, 60, 7):
        for host, log in found.items():
            told.flow.add(host, log[start : start + 7], start + 7 < len(log), 0.0)
            told.take(0.0)
    told.keep(told.flow.rest(0.0))
    assert by_host(told.lines) == found
    assert places(told.lines) == sorted(places(told.lines))


def test_a_new_line_waits_for_those_of_other_hosts_and_no_longer() -> None:
    told = Told(Flow(("a", "b"), 0.0, live=True))
    for host in "ab":
        told.flow.add(host, [], False, 0.0)
    told.flow.add("b", [line("b", 1, 10.02, "x", 1)], False, 1.0)
    told.flow.add("a", [line("a", 0, 10.0, "x", 1)], False, 1.1)
    assert told.take(1.2) == 0
    assert told.take(1.0 + HOLD_S) == 2
    assert [[one.rank for one in group] for group in told.groups] == [[0, 1]]
    assert not told.flow.waits


def test_a_host_that_is_behind_is_waited_for_until_it_falls_silent() -> None:
    told = Told(Flow(("a", "b"), 0.0, live=True, folded=False))
    told.flow.add("a", [line("a", 0, 10.0, "x", 1)], False, 0.0)
    assert told.take(SILENT_HOST_S - 0.1) == 0
    assert told.take(SILENT_HOST_S + 0.1) == 1
    once = Told(Flow(("a", "b"), 0.0, live=False, folded=False))
    once.flow.add("a", [line("a", 0, 10.0, "x", 1)], False, 0.0)
    assert once.take(1000.0) == 0
    once.flow.skip("b")
    assert once.take(1000.0) == 1


def test_a_host_whose_lines_fill_the_room_is_never_waited_for_in_vain() -> None:
    """A reader that may send no more cannot bring what a merge or a fold would still like to see."""
    told = Told(Flow(("a", "b"), 0.0, live=False))
    number = 0
    while not told.flow.full("a"):
        number += 1
        told.flow.add("a", [line("a", 0, float(number), "long", number)], True, 0.0)
    told.flow.add("b", [line("b", 1, 1e6, "far", 1)], True, 0.0)
    assert told.take(0.0) == number
    assert not told.flow.full("a")


def test_the_last_lines_are_shown_once_no_host_is_behind_and_then_every_new_one() -> None:
    """Also if the last line came long before the message that there are no more."""
    flow = Flow(("a", "b"), 0.0, live=True, last=2)
    count = 3 * LINES_AHEAD
    for host in "ab":
        flow.add(host, [line(host, ord(host), float(number), f"{number}") for number in range(count)], True, 0.0)
    out = flow.take(0.0)
    assert out is not None
    assert out.groups == []
    for host in "ab":
        flow.add(host, [], False, 1.0)
    out = flow.take(1.0)
    assert out is not None
    assert [group[0].text for group in out.groups] == [f"{count - 1}"]
    new = [line("a", 1, 1e6 + number, f"new {number}") for number in range(9)]
    flow.add("a", new, False, 2.0)
    out = flow.take(2.0 + HOLD_S)
    assert out is not None
    assert [group[0] for group in out.groups] == new


def test_a_beginning_without_lines_ends_too() -> None:
    flow = Flow(("a",), 0.0, live=True, last=2)
    flow.add("a", [], False, 0.0)
    assert flow.take(0.0) is None
    new = [line("a", 1, float(number), f"new {number}") for number in range(9)]
    flow.add("a", new, False, 2.0)
    out = flow.take(2.0 + HOLD_S)
    assert out is not None
    assert [group[0] for group in out.groups] == new


@pytest.mark.parametrize("live", [True, False])
def test_the_last_lines_are_those_of_all_hosts_together(live: bool) -> None:
    told = Told(Flow(("a", "b"), 0.0, live=live, last=3))
    flow = told.flow
    flow.add("a", [line("a", 0, float(number), f"{number}", number) for number in range(1, 9)], False, 0.0)
    assert flow.take(0.0) is None
    flow.add("b", [line("b", 1, 7.5, "7.5", 1)], False, 0.0)
    out = flow.take(0.0)
    assert out is not None
    assert [group[0].text for group in out.groups] == ["7", "7.5", "8"]
    assert out.offsets == {"a": 8, "b": 1}
