"""Hosts with links of a known speed, and what every preflight here shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab_preflight.preflight import DEFAULTS

SPEED = "200mbit"  # a busy machine gives a faster link less than half of its speed, which is a finding


@pytest.fixture(scope="session", autouse=True)
def _interpreter(stand_in: str) -> None:
    """The hosts' torch is a stand-in, unless a test asks for another interpreter."""
    DEFAULTS["python"] = stand_in


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process remembers of an earlier preflight is forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def shape(lab: Lab) -> Lab:
    """What two processors give each link while other tests run would differ."""
    for host in lab:
        host.slow(SPEED)
    return lab


@pytest.fixture
def lab3(lab3: Lab) -> Lab:
    return shape(lab3)
