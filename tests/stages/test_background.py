"""A step that begins early: its result, its words and its error come when they are asked for."""

from __future__ import annotations

import threading

import pytest

from ddpctl.errors import ConnectError
from ddpctl.spec.event import Event, Note, Tell
from ddpctl.stages.up import Background


def test_it_works_before_it_is_asked_and_tells_afterwards() -> None:
    worked = threading.Event()

    def work(tell: Tell) -> int:
        tell(Note("at work"))
        worked.set()
        return 7

    early = Background(work)
    assert worked.wait(60)
    told: list[Event] = []
    assert early.result(told.append) == 7
    assert told == [Note("at work")]


def test_its_error_is_raised_where_the_result_is_wanted() -> None:
    def work(tell: Tell) -> int:
        tell(Note("trying"))
        raise ConnectError("node1: gone")

    early = Background(work)
    told: list[Event] = []
    with pytest.raises(ConnectError, match="gone"):
        early.result(told.append)
    assert told == [Note("trying")]
