"""Why a run without any process is lost: its record names the systemd that had its unit."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ddpctl_worker.machine import processes
from ddpctl_worker.record import judgement

ME = processes.identify(os.getpid())
assert ME is not None
GONE = processes.ProcessId(ME.boot, ME.pid, ME.start - 1)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"manager": GONE.to_json()}, f"the user's own systemd (user@{os.getuid()}.service)"),
        ({"manager": ME.to_json()}, "supervisor and guardian were killed"),
        ({"manager": None}, "supervisor and guardian were killed"),
        ({}, "supervisor and guardian were killed"),
    ],
)
def test_the_end_of_a_systemd_takes_its_units_along(state: dict[str, Any], said: str) -> None:
    assert said in judgement._describe_loss(state)
