"""Hosts that cannot be reached: each is recognised, in bounded time, and every other host answers."""

from __future__ import annotations

import socket
import threading

import pytest

from ddpctl.errors import (
    NameUnknown,
    Unreachable,
)
from ddpctl.spec.inventory import Host
from ddpctl.transport import dial, limits, ssh
from ddpctl.transport.fleet import open_fleet
from ddpctl_worker.wire import contract
from tests.lab import Lab
from tests.transport.build import of_lab
from tests.transport.support import one_line, reach


def test_a_name_without_address(lab3: Lab) -> None:
    error = reach(lab3, "no-such-host.invalid")
    assert isinstance(error, NameUnknown)
    one_line(error, "x: ", "no-such-host.invalid", "address:")


def test_a_refused_port(lab3: Lab) -> None:
    error = reach(lab3, lab3[1].address, 2222)
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", f"{lab3[1].address}:2222", "refuses", "sshd")


def test_a_dropped_port(lab3: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab3[1].drop(port=22)
    error = reach(lab3, lab3[1].address, shorten=lambda: monkeypatch.setattr(dial, "CONNECT_S", 3.0))
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", "no answer", "within 3 s", "firewall")


def test_no_such_machine(lab3: Lab) -> None:
    """The kernel says so, once its questions for the machine's address in the local network have gone unanswered."""
    error = reach(lab3, lab3[0].address.rsplit(".", 1)[0] + ".250")
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", "no route to")


def test_a_silent_sshd(lab3: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab3[1].silent_sshd()
    error = reach(lab3, lab3[1].address, shorten=lambda: monkeypatch.setattr(dial, "FIRST_BYTE_S", 4.0))
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", "sends nothing for 4 s")


def test_the_deadlines_of_a_connection_are_short_enough() -> None:
    """For a waiting person; the tests on hosts set shorter deadlines."""
    assert limits.CONNECT_S <= 10
    assert limits.FIRST_BYTE_S <= 10
    assert limits.CHANNEL_S <= 15
    assert limits.BANNER_S <= 20
    assert limits.USER_TIMEOUT_MS <= 8_000
    assert limits.KEEPALIVE_IDLE_S + limits.KEEPALIVE_EVERY_S * limits.KEEPALIVE_COUNT < contract.LINK_DEAD_S <= 15


@pytest.mark.parametrize("greeting", [b"", b"Exceeded MaxStartups\r\n"])
def test_a_server_that_hangs_up(greeting: bytes, lab3: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again, four times in all, and then given up."""
    monkeypatch.setattr(ssh, "DROPPED_PAUSE_S", (0.05, 0.15))
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
        error = reach(lab3, "127.0.0.1", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, Unreachable)
    one_line(error, "closed the connection 4 times", "MaxStartups", greeting.decode().strip())
    assert accepted == 4


def test_max_startups(lab3: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that drops logins at random: all hosts of the inventory come through, for each is tried again."""
    monkeypatch.setattr(ssh, "DROPPED_PAUSE_S", (1.0, 3.0))  # a login on a busy machine keeps its place for long
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
