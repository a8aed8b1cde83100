"""Three hosts, and connections to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpctl.transport.base import Transport
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.lab import Lab
from tests.transport.build import of_lab


@pytest.fixture
def fleet(lab3: Lab) -> Iterator[SSHFleet]:
    fleet = open_fleet(of_lab(lab3))
    yield fleet
    fleet.close()


@pytest.fixture
def node0(fleet: SSHFleet) -> Transport:
    return fleet.transport("node0")
