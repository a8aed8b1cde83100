"""Hosts with links of a known speed, and the fixtures of every preflight here."""

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
    """This process forgets an earlier preflight."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def shape(lab: Lab) -> Lab:
    """Give every link the same speed: without a limit the speeds differ while other tests use the processors."""
    for host in lab:
        host.slow(SPEED)
    return lab


@pytest.fixture
def lab3(lab3: Lab) -> Lab:
    return shape(lab3)
