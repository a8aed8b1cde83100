"""Messages between two processes of ddpctl: a JSON object in each line, over a pipe on which no process waits."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.machine.child import Message, MessageReader, MessageWriter, encode

MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=40), max_size=3), max_size=8
)
LONG: Message = {"long": "x" * (1 << 17)}  # more than a pipe holds


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    ends = contextlib.ExitStack()
    ends.callback(os.close, reader)
    with ends, os.fdopen(writer, "wb", buffering=0):
        yield reader, writer


def filled(writer: int) -> int:
    """Fill the pipe with empty lines; return how many it took."""
    os.set_blocking(writer, False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            count += os.write(writer, b"\n" * 512)
    return count


@given(messages=MESSAGES, cuts=st.lists(st.integers(min_value=0, max_value=1000), max_size=12))
def test_messages_arrive_whole_wherever_the_bytes_are_cut(messages: list[Message], cuts: list[int]) -> None:
    data = b"".join(map(encode, messages))
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    with pipe() as (ours, theirs):
        reader, seen = MessageReader(ours), []
        for begin, end in itertools.pairwise(places):
            os.write(theirs, data[begin:end])
            seen += reader.receive(0.0)
            assert seen == messages[: data[:end].count(b"\n")], "each as soon as its last byte is there"
            assert not reader.ended
    assert seen == messages


def test_silence_is_not_the_end_of_the_pipe() -> None:
    ours, theirs = os.pipe()
    reader = MessageReader(ours)
    begun = time.monotonic()
    assert (reader.receive(0.05), reader.ended) == ([], False)
    assert time.monotonic() - begun >= 0.05
    os.write(theirs, encode({"a": 1}) + b'{"half')
    os.close(theirs)
    assert (reader.receive(None), reader.ended) == ([{"a": 1}], False)
    assert (reader.receive(None), reader.ended) == ([], True)
    os.close(ours)


def test_a_socket_that_is_closed_with_bytes_unread_has_ended() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.send(b"unread")
        theirs.close()
        reader = MessageReader(ours.fileno())
        assert (reader.receive(1.0), reader.ended) == ([], True)


def test_a_long_message_goes_in_parts_and_the_writer_never_waits() -> None:
    with pipe() as (ours, theirs):
        writer, reader = MessageWriter(theirs), MessageReader(ours)
        writer.send(LONG)
        writer.send({"next": 1})
        assert writer.waiting
        received: list[Message] = []
        while len(received) < 2:
            received += reader.receive(0.0)
            writer.flush()
        assert received == [LONG, {"next": 1}]
        assert not writer.waiting


def test_an_offer_to_a_full_pipe_leaves_nothing_behind() -> None:
    with pipe() as (ours, theirs):
        writer, reader = MessageWriter(theirs), MessageReader(ours)
        count = filled(theirs)
        short: Message = {"short": "x" * (select.PIPE_BUF - 20)}
        assert len(encode(short)) <= select.PIPE_BUF
        assert not writer.offer(short)
        assert not writer.waiting
        beats = 0
        while beats < count:
            beats += len(reader.receive(0.0))
        assert writer.offer(short)
        assert reader.receive(0.0) == [short]


def test_an_offer_never_overtakes_a_message_that_waits() -> None:
    with pipe() as (_, theirs):
        writer = MessageWriter(theirs)
        writer.send(LONG)
        assert not writer.offer({"next": 1})


def test_a_writer_without_a_reader_says_so() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        MessageWriter(theirs).send({"a": 1})
    os.close(theirs)
