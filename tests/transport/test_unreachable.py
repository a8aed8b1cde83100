"""Hosts that cannot be reached: each is told apart, in bounded time, and every other one answers."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ddpctl.errors import (
    NameUnknown,
    Unreachable,
)
from ddpctl.spec.inventory import Host
from ddpctl.transport.fleet import open_fleet
from tests.lab import Lab
from tests.transport.build import of_lab
from tests.transport.support import one_line, reach


def test_a_name_without_address(lab3: Lab, tmp_path: Path) -> None:
    error, took = reach(lab3, tmp_path, "no-such-host.invalid")
    assert isinstance(error, NameUnknown)
    one_line(error, "x: ", "no-such-host.invalid", "address:")
    assert took < 15


def test_a_refused_port(lab3: Lab, tmp_path: Path) -> None:
    error, took = reach(lab3, tmp_path, lab3[1].address, 2222)
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", f"{lab3[1].address}:2222", "refuses", "sshd")
    assert took < 5


def test_a_dropped_port(lab3: Lab, tmp_path: Path) -> None:
    lab3[1].drop(port=22)
    error, took = reach(lab3, tmp_path, lab3[1].address)
    assert isinstance(error, Unreachable)
    one_line(error, "no answer", "firewall")
    assert 8 < took < 15


def test_no_such_machine(lab3: Lab, tmp_path: Path) -> None:
    error, took = reach(lab3, tmp_path, lab3[0].address.rsplit(".", 1)[0] + ".250")
    assert isinstance(error, Unreachable)
    assert took < 15


def test_a_silent_sshd(lab3: Lab, tmp_path: Path) -> None:
    lab3[1].silent_sshd()
    error, took = reach(lab3, tmp_path, lab3[1].address)
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", "sends nothing")
    assert 8 < took < 15


@pytest.mark.parametrize("greeting", [b"", b"Exceeded MaxStartups\r\n"])
def test_a_server_that_hangs_up(greeting: bytes, lab3: Lab, tmp_path: Path) -> None:
    """Tried again, four times in all, and then given up."""
    accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            nonlocal accepted
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                accepted += 1
                connection.sendall(greeting)
                connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        error, _ = reach(lab3, tmp_path, "127.0.0.1", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, Unreachable)
    one_line(error, "closed the connection 4 times", "MaxStartups", greeting.decode().strip())
    assert accepted == 4


def test_max_startups(lab3: Lab) -> None:
    """A server that drops logins at random: all hosts of the inventory come through, for each is tried again."""
    lab3[1].sshd_config("MaxStartups 3:40:8")
    hosts = [Host(name=f"h{n}", address=lab3[1].address) for n in range(16)]
    config = {"ssh_config": str(lab3.ssh_config)}
    text = lab3.ssh_config.read_text().replace("Host node*", "Host *")
    (lab3.folder / "all").write_text(text)
    config["ssh_config"] = str(lab3.folder / "all")
    fleet = open_fleet(of_lab(lab3, *hosts, **config))
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert outcome.ok, {name: str(error) for name, error in outcome.errors.items()}
