"""Streams into records and back: not a byte may be lost, whatever the pieces."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.record import limits, lines

CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"a\r", b"\nb", "žluť€😀".encode(), b"\xf0\x9f", b"\xff", b'{"x":1}']),
    ),
    max_size=30,
)


def joined(pieces: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(text + end for text, end in pieces)


@given(CHUNKS, st.sets(st.integers(0, 30)))
def test_every_byte_comes_out_in_order(chunks: list[bytes], flush_after: set[int]) -> None:
    splitter = lines.Splitter()
    pieces = []
    for index, chunk in enumerate(chunks):
        pieces += splitter.feed(chunk)
        if index in flush_after:
            pieces += splitter.flush()
    pieces += splitter.flush(final=True)
    assert joined(pieces) == b"".join(chunks)
    assert not splitter.pending
    assert all(b"\n" not in text for text, _ in pieces)


@given(st.text())
def test_a_character_is_never_cut_by_a_flush(text: str) -> None:
    splitter = lines.Splitter()
    pieces: list[tuple[bytes, bytes]] = []
    for byte in text.encode():
        pieces += splitter.feed(bytes([byte]))
        pieces += splitter.flush()
        if splitter.pending:
            continue
    pieces += splitter.flush(final=True)
    for body, _ in pieces:
        body.decode()  # raises where half a character went out


@given(st.binary(), st.sampled_from([b"\n", b"\r", b""]), st.one_of(st.none(), st.integers(0, 4096)))
def test_records_keep_any_bytes(text: bytes, end: bytes, rank: int | None) -> None:
    blob = lines.encode(1.5, rank, lines.STDERR, text, end)
    assert blob.count(b"\n") == 1
    value = lines.decode(blob)
    assert value is not None
    assert value["x"].encode("utf-8", "surrogateescape") == text
    assert (value["t"], value["r"], value["s"], value["e"]) == (1.5, rank, "e", end.decode())
    # The same bytes as from the standard encoder: any JSON reader understands them.
    assert json.loads(blob) == value


def test_progress_bars_and_newlines_of_both_kinds() -> None:
    splitter = lines.Splitter()
    assert splitter.feed(b"1%\r2%\rdone\r\nnext\n") == [
        (b"1%", b"\r"),
        (b"2%", b"\r"),
        (b"done\r", b"\n"),
        (b"next", b"\n"),
    ]


def test_a_carriage_return_waits_for_its_newline_but_not_for_ever() -> None:
    splitter = lines.Splitter()
    assert splitter.feed(b"a\r") == []
    assert splitter.feed(b"\n") == [(b"a\r", b"\n")]
    assert splitter.feed(b"b\r") == []
    assert splitter.flush() == [(b"b", b"\r")]
    assert not splitter.pending


def test_very_long_lines_are_cut_between_characters() -> None:
    splitter = lines.Splitter()
    text = "é".encode() * 200_000
    pieces = splitter.feed(b"x" + text) + splitter.feed(b"\n")
    assert joined(pieces) == b"x" + text + b"\n"
    assert all(len(body) <= limits.PIECE_BYTES for body, _ in pieces)
    for body, _ in pieces:
        body.decode()
    assert [end for _, end in pieces][-1] == b"\n"
    assert {end for _, end in pieces[:-1]} == {b""}


def test_lines_that_are_no_records() -> None:
    for junk in (b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"t":1}'):
        assert lines.decode(junk) is None
