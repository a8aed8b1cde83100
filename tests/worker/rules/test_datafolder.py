"""The listing of a data folder, and indices as ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.rules.datafolder import (
    DataFile,
    DataListing,
    as_ranges,
    decode_listing,
    encode_listing,
    from_ranges,
)

LISTING = DataListing(
    [DataFile("a/b", 3, "0" * 64, True), DataFile("\udcff", 0, "1" * 64, False)], ["void"], [("l", "a")]
)


def test_a_listing_comes_back_with_names_that_are_not_utf8() -> None:
    assert decode_listing(encode_listing(LISTING)) == LISTING


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "", "a//b", "a\0b", "./a", 7])
@pytest.mark.parametrize("kind", ["files", "folders", "links"])
def test_a_path_that_leads_out_is_refused(path: object, kind: str) -> None:
    row = {"files": [path, 1, "0" * 64, 0], "folders": path, "links": [path, "a"]}[kind]
    document = {"files": [], "folders": [], "links": [], kind: [row]}
    with pytest.raises(ValueError, match="outside"):
        decode_listing(json.dumps(document).encode())


@pytest.mark.parametrize("goal", ["/etc", "../x", "a/../../x"])
def test_a_link_that_leads_out_is_refused(goal: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        decode_listing(encode_listing(DataListing([], [], [("link", goal)])))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"files":[[1]],"folders":[],"links":[]}', b"\xff"])
def test_another_text_is_no_listing(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's own errors among them)
        decode_listing(text)


@given(st.sets(st.integers(0, 300)))
def test_ranges_name_the_same_indices(indices: set[int]) -> None:
    assert from_ranges(as_ranges(sorted(indices)), 301) == sorted(indices)


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 10))
def test_a_short_answer_names_all_indices_and_no_later_one(indices: set[int], most: int) -> None:
    ranges = as_ranges(sorted(indices), most)
    assert len(ranges) <= most
    named = from_ranges(ranges, 301)
    assert indices <= set(named)
    assert max(named) == max(indices)


@pytest.mark.parametrize("ranges", [[[0, 11]], [[5, 1], [4, 1]], [[0, 0]], [[-1, 2]], [[0, 2], [1, 1]]])
def test_ranges_out_of_order_are_refused(ranges: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="range"):
        from_ranges(ranges, 10)
