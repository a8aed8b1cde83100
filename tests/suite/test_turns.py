"""The locks that let the right tests run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.suite import limits
from tests.suite.turns import wait_for_turn

Start = Callable[..., threading.Event]


class Marked:
    """A test with some markers: all that `wait_for_turn` asks of an item."""

    def __init__(self, *markers: str) -> None:
        self.markers = markers

    def get_closest_marker(self, name: str) -> bool:
        return name in self.markers


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("heavy")` starts a test of that kind in a thread; the event is set once it has its turn."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def begin(*markers: str, until: threading.Event = over) -> threading.Event:
        has_turn = threading.Event()
        item: Any = Marked(*markers)

        def run() -> None:
            with wait_for_turn(item, tmp_path):
                has_turn.set()
                until.wait(60)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return has_turn

    yield begin
    over.set()
    for thread in threads:
        thread.join(60)


def test_light_tests_never_wait(start: Start) -> None:
    assert all(event.wait(60) for event in [start() for _ in range(12)])


def test_no_more_heavy_tests_at_once_than_cores(start: Start) -> None:
    with ExitStack() as ended:
        first = threading.Event()
        ended.callback(first.set)
        assert all(start("heavy", until=first).wait(60) for _ in range(limits.HEAVY_AT_ONCE))
        assert start().wait(60)
        late = start("heavy")
        assert not late.wait(3 * limits.SLOT_LOOK_S)
        first.set()
        assert late.wait(60)


def test_a_test_alone_waits_for_all_others_and_holds_up_new_ones(start: Start) -> None:
    first, second = threading.Event(), threading.Event()
    try:
        assert start(until=first).wait(60)
        alone = start("alone", until=second)
        assert not alone.wait(0.1)
        new = start()
        assert not new.wait(0.1)
        first.set()
        assert alone.wait(60)
        assert not new.is_set()
        second.set()
        assert new.wait(60)
    finally:
        first.set()
        second.set()
