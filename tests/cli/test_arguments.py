"""What a user types, before anything is contacted."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.cli.output import check_pattern, parse_lines, parse_ranks, parse_since
from ddpctl.cli.session import host_names
from ddpctl.errors import UsageError
from ddpctl.spec.ranges import split


@pytest.mark.parametrize(("text", "ranks"), [("2", {2}), ("0,3", {0, 3}), ("4-7", {4, 5, 6, 7}), ("0, 2-3", {0, 2, 3})])
def test_ranks(text: str, ranks: set[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "1-", "1,,2", "٣", "0-99999999", "9" * 5000])
def test_what_is_no_rank_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ranks(text)


@given(st.text())
def test_any_text_is_ranks_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_ranks(text)


@pytest.mark.parametrize("text", ["", " ", ",", "node[0", "node[2-1]"])
def test_what_names_no_host_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        host_names(text)


def test_commas_inside_brackets_do_not_split() -> None:
    assert split("node[0-1,3],gpu7, x") == ["node[0-1,3]", "gpu7", "x"]


@pytest.mark.parametrize(("text", "lines"), [(None, 50), ("all", None), ("0", 0), ("100", 100)])
def test_how_many_lines(text: str | None, lines: int | None) -> None:
    assert parse_lines(text, 50) == lines


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "ALL", "٣", "9" * 50])
def test_what_is_no_number_of_lines_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_lines(text, 50)


def test_since_when() -> None:
    assert [parse_since(text) for text in ("90s", "10m", "2h", "1d")] == [
        {"ago": 90.0}, {"ago": 600.0}, {"ago": 7200.0}, {"ago": 86_400.0},
    ]  # fmt: skip
    assert parse_since("1970-01-01T00:01:00Z") == parse_since("1970-01-01T01:01:00+01:00") == {"since": 60.0}
    local = datetime(2026, 1, 31, 14, 5).astimezone()
    assert parse_since("2026-01-31T14:05:00") == parse_since("2026-01-31 14:05") == {"since": local.timestamp()}


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "1w", "yesterday", "2026-13-01", "٣m", "1.5h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither"):
        parse_since(text)


def test_a_pattern_is_refused_where_it_is_wrong() -> None:
    check_pattern("loss=(nan|inf)")
    with pytest.raises(UsageError, match=r"unterminated subpattern.*at character 6"):
        check_pattern("loss=(nan")


@given(st.text())
def test_any_pattern_compiles_or_is_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        check_pattern(text)
        re.compile(text)
