"""The errors of unusable hosts, and the processes of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpctl.errors import (
    ConnectError,
    DdpctlError,
)
from ddpctl.spec.inventory import Host
from ddpctl.transport import dial
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.lab import Host as LabHost
from tests.lab import Lab
from tests.transport.build import of_lab

PROGRAM = "ddpctl=json"  # a word in the command line of each worker


def workers_of_this_machine() -> dict[int, int]:
    """The parent of each process of a worker."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line, stat = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
        except OSError:
            continue
        if PROGRAM.encode() in line:
            found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def workers_of_host(host: LabHost) -> list[int]:
    return [one.pid for one in host.processes() if any(PROGRAM in word for word in one.argv)]


def shorten_tcp_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's kernel notices a dead peer in two or three seconds instead of eight."""
    monkeypatch.setattr(dial, "USER_TIMEOUT_MS", 2000)
    monkeypatch.setattr(dial, "KEEPALIVE_IDLE_S", 1)
    monkeypatch.setattr(dial, "KEEPALIVE_EVERY_S", 1)


def failure(fleet: SSHFleet, host: str) -> DdpctlError:
    """The error of one host; every other host has answered."""
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert set(outcome.results) == set(fleet.hosts) - {host}
    return outcome.errors[host]


def one_line(error: DdpctlError, *words: str) -> None:
    text = str(error)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def reach(lab: Lab, address: str, port: int = 22, shorten: Callable[[], None] = lambda: None) -> ConnectError:
    """Return the error of a host at this address beside a healthy host.

    ``shorten`` is called once the healthy host is connected: a short deadline must not end its slow login.
    """
    healthy = Host(name="node0", address=lab[0].address)
    fleet = open_fleet(of_lab(lab, healthy, Host(name="x", address=address, port=port)))
    assert fleet.map(lambda transport: transport.call("echo"), ["node0"]).ok
    shorten()
    error = failure(fleet, "x")
    assert isinstance(error, ConnectError)
    assert error.exit_code == 4
    return error
