"""What a user types, before anything is contacted."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.cli.tail import parse_ranks
from ddpctl.errors import UsageError
from ddpctl.spec.ranges import split


@pytest.mark.parametrize(("text", "ranks"), [("2", {2}), ("0,3", {0, 3}), ("4-7", {4, 5, 6, 7}), ("0, 2-3", {0, 2, 3})])
def test_ranks(text: str, ranks: set[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "1-", "1,,2", "٣", "0-99999999"])
def test_what_is_no_rank_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ranks(text)


@given(st.text())
def test_any_text_is_ranks_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_ranks(text)


def test_commas_inside_brackets_do_not_split() -> None:
    assert split("node[0-1,3],gpu7, x") == ["node[0-1,3]", "gpu7", "x"]
