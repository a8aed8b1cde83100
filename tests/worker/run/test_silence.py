"""A run that falls silent ends with the name of the rank that the doctor suspects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpctl_worker.gang.base import Gang
from ddpctl_worker.machine.system import HostClock
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.run.deadlines import Deadlines
from ddpctl_worker.wire.contract import SILENCE

RUN: Any = {"host": "node0", "nnodes": 2, "timeouts": {"start": 60, "silence": 20, "silence_enforced": True}}
STUCK = {"verdict": "rank 1 is at hangs.py:9", "suspects": [{"host": "node1", "rank": 1}]}


def gang(quiet: float) -> Gang:
    known = {"is_hub": True, "stuck": False, "talking": True, "missing": list, "quiet": lambda: quiet}
    return cast("Gang", SimpleNamespace(**known))


@pytest.mark.parametrize(("diagnosis", "host", "rank"), [(STUCK, "node1", 1), (None, "node0", None)])
def test_the_rank_that_the_doctor_suspects_is_named(
    diagnosis: dict[str, Any] | None, host: str, rank: int | None
) -> None:
    now = 1000.0
    clock = cast("HostClock", SimpleNamespace(boot=lambda: now))
    ranks = cast("Roster", SimpleNamespace(any=True, all_ended=lambda: False))
    limits = Deadlines(RUN, clock)
    for _ in range(4):  # it is asked again and again; a long pause would be a suspended machine
        now += 5.0
        assert limits.overdue(ranks, 1004.0, gang(now - 1004.0), diagnosis) is None
    now = 1025.0
    found = limits.overdue(ranks, 1004.0, gang(now - 1004.0), diagnosis)
    assert found is not None
    assert found.cause is not None
    assert (found.cause["reason"], found.cause["host"], found.cause["rank"]) == (SILENCE, host, rank)
    assert ("hangs.py:9" in found.cause["message"]) is (diagnosis is not None)
    assert limits.overdue(ranks, 1004.0, gang(3.0), diagnosis) is None  # another node has written a line
