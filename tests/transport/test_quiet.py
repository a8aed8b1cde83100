"""Notes about nodes that live and send nothing useful."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ddpctl.transport.limits import QUIET_BYTES, QUIET_S
from ddpctl.transport.quiet import QuietCalls

STEP_S = 2.0


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def words(hosts: str, verb: str, seconds: int) -> str:
    return f"waiting for {hosts}: nothing but signs of life from `{verb}` for {seconds} s"


def test_notes_come_at_growing_intervals(said: list[str], stack: ExitStack) -> None:
    call = stack.enter_context(QuietCalls(said.append).call("node1", "fetch", noted=True))
    for _ in range(130):
        call.waited(STEP_S)
    assert said == [words("node1", "fetch", seconds) for seconds in (30, 60, 120, 240)]


def test_hosts_that_are_silent_together_share_a_note(said: list[str], stack: ExitStack) -> None:
    calls = QuietCalls(said.append)
    silent = [stack.enter_context(calls.call(host, "fetch", noted=True)) for host in ("node1", "node2", "node3")]
    other = stack.enter_context(calls.call("node4", "status", noted=True))
    for _ in range(int(QUIET_S / STEP_S)):
        for call in (*silent, other):
            call.waited(STEP_S)
    assert said == [words("node[1-3]", "fetch", 28), words("node4", "status", 30)]


def test_a_frame_or_enough_bytes_are_useful(said: list[str], stack: ExitStack) -> None:
    call = stack.enter_context(QuietCalls(said.append).call("node1", "fetch", noted=True))
    for _ in range(100):
        call.waited(STEP_S)
        call.moved(QUIET_BYTES // 10)
    assert said == []
    for _ in range(100):
        call.waited(STEP_S)
        call.heard()
    assert said == []
    for _ in range(15):
        call.waited(STEP_S)
        call.moved(1)
    assert said == [words("node1", "fetch", 30)]


def test_a_stream_and_a_call_that_is_over_are_not_named(said: list[str], stack: ExitStack) -> None:
    calls = QuietCalls(said.append)
    with calls.call("node1", "fetch", noted=True) as over:
        over.waited(QUIET_S - 2.0)
    live = stack.enter_context(calls.call("node2", "fetch", noted=True))
    stream = stack.enter_context(calls.call("node3", "tail", noted=False))
    for _ in range(20):
        stream.waited(STEP_S)
        live.waited(STEP_S)
    assert said == [words("node2", "fetch", 30)]


def test_a_call_that_another_thread_has_just_named_is_not_named_again(said: list[str], stack: ExitStack) -> None:
    calls = QuietCalls(said.append)
    call = stack.enter_context(calls.call("node1", "fetch", noted=True))
    for _ in range(int(QUIET_S / STEP_S)):
        call.waited(STEP_S)
    calls.note(call)  # as a thread does that was late by a moment
    assert said == [words("node1", "fetch", 30)]


def test_of_a_suspended_machine_only_a_part_counts(said: list[str], stack: ExitStack) -> None:
    call = stack.enter_context(QuietCalls(said.append).call("node1", "fetch", noted=True))
    call.waited(3600.0)
    assert said == []
