"""Three hosts, connections to them, and limits of the kernel that a test need not wait long for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpctl.transport.base import Transport
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.lab import Lab
from tests.transport.build import of_lab
from tests.transport.support import shorten_tcp_limits


@pytest.fixture
def fleet(lab3: Lab) -> Iterator[SSHFleet]:
    fleet = open_fleet(of_lab(lab3))
    yield fleet
    fleet.close()


@pytest.fixture
def node0(fleet: SSHFleet) -> Transport:
    return fleet.transport("node0")


@pytest.fixture
def short_tcp_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends a connection with a silent other side for two or three seconds."""
    shorten_tcp_limits(monkeypatch)
