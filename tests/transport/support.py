"""What hosts that cannot be used have to say."""

from __future__ import annotations

import time
from pathlib import Path

from ddpctl.errors import (
    ConnectError,
    DdpctlError,
)
from ddpctl.spec.inventory import Host
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.lab import Lab
from tests.transport.build import of_lab


def failure(fleet: SSHFleet, host: str) -> DdpctlError:
    """The error of one host; every other one has answered."""
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert set(outcome.results) == set(fleet.hosts) - {host}
    return outcome.errors[host]


def one_line(error: DdpctlError, *words: str) -> None:
    text = str(error)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def reach(lab: Lab, tmp_path: Path, address: str, port: int = 22) -> tuple[ConnectError, float]:
    """The error of a host at that address beside a healthy one, and how long it took."""
    healthy = Host(name="node0", address=lab[0].address)
    fleet = open_fleet(of_lab(lab, healthy, Host(name="x", address=address, port=port)))
    begun = time.monotonic()
    error = failure(fleet, "x")
    assert isinstance(error, ConnectError)
    assert error.exit_code == 4
    return error, time.monotonic() - begun
