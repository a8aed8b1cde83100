"""Pickles of torch's: plain values come out, and nothing else does any harm."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.rules.pickled import load
from tests.worker.dumped import dump, pickled, record

SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    data = pickled(value)
    assert pickle.loads(data) == value  # Python reads the output of these tests' writer
    assert load(data) == value


def test_text_can_be_used_again_and_other_values_are_left_out_there() -> None:
    found = load(dump({}, {}))
    first, second = found["entries"]
    assert first["frames"] == [{"name": "step", "filename": "train.py", "line": 41}, None]
    assert second["frames"] == [None, None]
    expected = record({}, {})
    for one in (*found["entries"], *expected["entries"]):
        del one["frames"]
    assert found == expected


class Hostile:
    def __init__(self, function: Any, *args: Any) -> None:
        self._how = function, args

    def __reduce__(self) -> Any:
        return self._how


@pytest.mark.parametrize("protocol", range(6))
def test_no_function_is_ever_called(protocol: int, tmp_path: Any) -> None:
    made = tmp_path / "made"
    data = pickle.dumps({"entries": [Hostile(os.mkdir, str(made))]}, protocol)
    with pytest.raises(ValueError, match=r"no plain value|no pickle"):
        load(data)
    assert not made.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"X\xff\xff\xff\xff",  # a text of 4 GiB
        b"Nr\xff\xff\xff\xff.",  # the 4-billionth place of the memo
        b"\x96" + b"\xff" * 8,  # a bytearray of 16 EiB
        b"\x8d" + b"\xff" * 8,
        b"](" + b"]q\x00(h\x00h\x00e" * 100 + b"e.",  # lists of lists that are used again
    ],
)
def test_a_small_file_takes_little_memory(body: bytes) -> None:
    tracemalloc.start()
    try:
        with suppress(ValueError):
            load(b"\x80\x02" + body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary())
def test_junk_is_refused_or_a_value(data: bytes) -> None:
    for made in (data, b"\x80\x02" + data):
        with suppress(ValueError):  # any other error fails the test
            load(made)


def test_a_cut_file_is_refused_wherever_it_is_cut() -> None:
    data = dump({})
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"cut or damaged|no pickle"):
            load(data[:size])


@pytest.mark.parametrize("body", [b"}(Ne.", b"](N(u.", b"}(Nu.", b"}(]Nu.", b"h\x07.", b".", b"u.", b"\x86."])
def test_opcodes_that_do_not_fit_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="cut or damaged"):
        load(b"\x80\x02" + body)
