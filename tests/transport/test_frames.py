"""Cutting the worker's stream into frames, however the network cuts it."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import RemoteError, ShellBroken
from ddpctl.transport.base import Frame
from ddpctl.transport.bootstrap import BannerReader
from ddpctl.transport.limits import LINE_BYTES, NOISE_BYTES
from ddpctl.transport.pipe import FrameReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
OBJECTS = st.dictionaries(st.text().filter(lambda key: key != "raw"), VALUES, max_size=4)
FRAMES = st.lists(st.tuples(OBJECTS, st.binary(max_size=200)), max_size=6)


def encode(frames: list[tuple[dict[str, object], bytes]]) -> bytes:
    """As ddpctl_worker.wire.channel writes them."""
    blob = b""
    for data, raw in frames:
        blob += json.dumps({**data, "raw": len(raw)} if raw else data).encode() + b"\n" + raw
    return blob


def cut(blob: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(blob), *(place % (len(blob) + 1) for place in places)})
    return [blob[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.slow
@given(FRAMES, st.lists(st.integers(min_value=0), max_size=20))
def test_any_cut_gives_the_same_frames(frames: list[tuple[dict[str, object], bytes]], places: list[int]) -> None:
    reader = FrameReader()
    got = [frame for piece in cut(encode(frames), places) for frame in reader.feed(piece)]
    assert got == [Frame(data, raw) for data, raw in frames]
    assert reader.feed(b"{}\n") == [Frame({})]  # no part of a frame is left over


@given(st.binary(max_size=300))
def test_junk_is_refused_or_waited_for(junk: bytes) -> None:
    """Never another exception, and never a frame that is no object."""
    reader = FrameReader()
    frames: list[Frame] = []
    with contextlib.suppress(RemoteError):
        frames = reader.feed(junk)
    assert all(isinstance(frame.data, dict) for frame in frames)


SIZES = [b'{"raw":-1}', b'{"raw":true}', b'{"raw":"9"}', b'{"raw":99999999999}']


@pytest.mark.parametrize("line", [b"[]", b"7", b"", b"{", b"[" * 99999, *SIZES])
def test_what_is_no_frame(line: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        FrameReader().feed(line + b"\n")
    assert caught.value.kind == "protocol"


def test_a_line_that_does_not_end() -> None:
    reader = FrameReader()
    for _ in range(LINE_BYTES >> 20):
        assert reader.feed(b"x" * (1 << 20)) == []
    with pytest.raises(RemoteError):
        reader.feed(b"x")


def test_half_a_frame_waits_for_its_end() -> None:
    reader = FrameReader()
    assert reader.feed(b'{"raw":5}\nab') == []
    assert reader.feed(b"cde") == [Frame({}, b"abcde")]


@given(st.binary(max_size=500), st.sampled_from(["have", "need", "old 3.6.9"]), st.binary(max_size=50), st.data())
def test_banner_behind_any_noise(noise: bytes, word: str, rest: bytes, data: st.DataObject) -> None:
    nonce = "0123456789abcdef" * 2
    blob = noise + f"DDPCTL/1 {nonce} {word}\n".encode() + rest
    reader = BannerReader(nonce)
    found = None
    pieces = cut(blob, data.draw(st.lists(st.integers(min_value=0), max_size=10)))
    tail = b""
    for number, piece in enumerate(pieces):
        found = reader.feed(piece)
        if found is not None:
            tail = b"".join(pieces[number + 1 :])
            break
    assert found == word
    assert reader.rest + tail == rest
    assert reader.noise == noise


def test_another_calls_banner_is_noise() -> None:
    reader = BannerReader("a" * 32)
    assert reader.feed(b"DDPCTL/1 " + b"b" * 32 + b" have\n") is None
    assert reader.feed(b"DDPCTL/1 " + b"a" * 32 + b" need\n") == "need"


def test_endless_noise_is_given_up() -> None:
    reader = BannerReader("a" * 32)
    assert reader.feed(b"x" * NOISE_BYTES) is None
    with pytest.raises(ShellBroken, match="1 MiB"):
        reader.feed(b"x")


def test_a_banner_that_does_not_end() -> None:
    with pytest.raises(ShellBroken):
        BannerReader("a" * 32).feed(b"DDPCTL/1 " + b"a" * 32 + b" " + b"x" * 1000)
