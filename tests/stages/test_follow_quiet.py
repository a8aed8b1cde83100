"""A host that was out of reach and answers again is followed on, however long its run has nothing to say."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from ddpctl.errors import Unreachable
from ddpctl.spec.lines import Group
from ddpctl.stages import follow as stage
from ddpctl.stages.follow import follow
from ddpctl.stages.limits import GIVE_UP_S
from ddpctl.transport.base import Frame
from tests.stages.test_follow import FRAME, WELL
from tests.transport.dry import DryFleet, DryTransport, Stream


def test_silence_after_a_cut_is_not_counted_once_the_host_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now, turns = 0.0, 0
    quiet, over = threading.Event(), threading.Event()

    def frames() -> Iterator[Frame]:
        yield Frame({"state": "running", "heartbeat_age_s": 0.1})
        quiet.set()
        assert over.wait(60)
        yield FRAME

    def interrupted() -> bool:
        """The clock of the following goes on while the host is quiet, at each of its turns."""
        nonlocal now, turns
        if quiet.is_set():
            now, turns = now + GIVE_UP_S + 1, turns + 1
        if turns == 4:
            over.set()
        return False

    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: now))
    answers: Iterator[Unreachable | Stream] = iter(
        [Unreachable("no route", host="a"), Stream(cast("Sequence[Frame]", frames()), WELL.result)]
    )
    fleet = DryFleet([DryTransport("a", {"tail": lambda _: next(answers)})])
    shown: list[Group] = []
    errors = follow("run", ["a"], fleet, lambda event: None, shown.extend, interrupted=interrupted)
    assert errors == {}
    assert [line.text for group in shown for line in group] == ["loss"]
