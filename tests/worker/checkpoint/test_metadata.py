"""The index of torch.distributed.checkpoint is read, and no code in it runs."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import tracemalloc
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint.metadata import references


class Size(tuple[int, ...]):
    """Stands for torch.Size, which is pickled as a call with a tuple."""

    def __reduce__(self) -> Any:
        return Size, (tuple(self),)


class Layout(Enum):
    """Stands for torch's own enumerations."""

    CONTIGUOUS = 0


@dataclass(frozen=True)
class MetadataIndex:
    fqn: str
    offset: Size | None = None
    index: int | None = None


@dataclass
class Properties:
    layout: Layout

    def __getstate__(self) -> Any:
        return (self.layout, False)

    def __setstate__(self, state: Any) -> None:
        self.layout = state[0]


@dataclass
class _StorageInfo:
    relative_path: Any
    offset: Any
    length: Any
    transform_descriptors: Any = None


@dataclass
class Metadata:
    state_dict_metadata: dict[str, Any]
    planner_data: Any
    storage_data: dict[MetadataIndex, _StorageInfo]
    version: str | None = None


def index(*stored: tuple[Any, Any, Any], protocol: int = 4) -> bytes:
    """Return an index in torch's format, made with classes of the same form as torch's classes."""
    names = [f"model.layers.{at}.weight" for at in range(len(stored))]
    size = Size((4, 4))
    made = Metadata(
        {name: (Properties(Layout.CONTIGUOUS), size, [size]) for name in names},
        {name: ("model", 1, 0.5, b"raw", None, True, {3}, frozenset({4})) for name in names},
        {MetadataIndex(name, size, 0): _StorageInfo(*one) for name, one in zip(names, stored, strict=True)},
        version="1.0.0",
    )
    return pickle.dumps(made, protocol)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_file_has_its_smallest_size(protocol: int) -> None:
    data = index(
        ("__0_0.distcp", 0, 100),
        ("__0_0.distcp", 300, 40),
        ("__0_0.distcp", 100, 200),
        ("sub/__1_0.distcp", 1 << 40, 7),
        protocol=protocol,
    )
    assert references(data) == {"__0_0.distcp": 340, "sub/__1_0.distcp": (1 << 40) + 7}


RECORDS = sorted((Path(__file__).parents[1] / "records" / "metadata").glob("*.metadata"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_what_torch_wrote_is_read_as_torch_reads_it(path: Path) -> None:
    """record_metadata.py made these with the real torch."""
    told = json.loads(path.with_suffix(".json").read_text())
    assert references(path.read_bytes()) == told["references"]
    assert told["references"] == told["sizes"], "torch fills each file to its end: a byte less is seen"


def test_there_are_records() -> None:
    assert len(RECORDS) >= 3


def test_an_index_without_tensors_refers_to_nothing() -> None:
    assert references(index()) == {}


stored = st.tuples(st.sampled_from(["__0_0.distcp", "__1_0.distcp"]), st.integers(0, 1 << 70), st.integers(0, 1 << 33))


@given(st.lists(stored, max_size=300), st.integers(2, 5))
def test_whatever_is_stored_is_found(parts: list[tuple[str, int, int]], protocol: int) -> None:
    expected: dict[str, int] = {}
    for path, offset, length in parts:
        expected[path] = max(expected.get(path, 0), offset + length)
    assert references(index(*parts, protocol=protocol)) == expected


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ".", "", "./x", "a//b", 7, None])
def test_nothing_outside_the_folder_is_referred_to(path: Any) -> None:
    with pytest.raises(ValueError, match=r"not in its folder|damaged"):
        references(index((path, 0, 1)))


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, -1), ("0", 4), (None, 4), (0.5, 1)])
def test_sizes_are_whole_numbers(offset: Any, length: Any) -> None:
    with pytest.raises(ValueError, match=r"refers to|damaged"):
        references(index(("__0_0.distcp", offset, length)))


@pytest.mark.parametrize("value", [{}, [], None, "text", {"storage_data": {}}, MetadataIndex("x")])
def test_other_pickles_are_no_index(value: Any) -> None:
    with pytest.raises(ValueError, match="no index"):
        references(pickle.dumps(value, 4))


def test_it_is_no_index_when_it_is_cut() -> None:
    data = index(("__0_0.distcp", 0, 100))
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"[a-z]"):
            references(data[:end])


class Hostile:
    def __init__(self, function: Any, *args: Any) -> None:
        self._how = function, args

    def __reduce__(self) -> Any:
        return self._how


@pytest.mark.parametrize("protocol", range(2, 6))
def test_no_function_is_ever_called(protocol: int, tmp_path: Path) -> None:
    made = Metadata({"x": Hostile(os.mkdir, str(tmp_path / "made"))}, Hostile(os.abort), {})
    assert references(pickle.dumps(made, protocol)) == {}
    assert not (tmp_path / "made").exists()


def test_a_small_file_takes_little_memory() -> None:
    bomb: list[Any] = []
    for _ in range(200):
        bomb = [bomb] * 10
    data = pickle.dumps(Metadata({"x": bomb}, None, {}), 4)
    tracemalloc.start()
    try:
        assert references(data) == {}
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_any_bytes_are_an_index_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        references(b"\x80" + data)


@given(st.data())
def test_one_wrong_byte_is_an_index_or_a_value_error(data: st.DataObject) -> None:
    good = bytearray(index(("__0_0.distcp", 0, 100), ("__1_0.distcp", 5, 7)))
    at = data.draw(st.integers(1, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        references(bytes(good))
