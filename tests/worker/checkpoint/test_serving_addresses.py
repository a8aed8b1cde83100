"""On which addresses the servers of a run listen: a host may have other addresses, for other purposes."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.agent import talk
from ddpctl_worker.agent.resume import Resume
from ddpctl_worker.checkpoint import replicate
from ddpctl_worker.machine import net
from ddpctl_worker.run import keeper_process
from tests.worker.checkpoints import JOB, NOW, OF_JOB, credentials

# Two addresses of one host. No other process of this machine listens on them, as some do on 127.0.0.1.
FABRIC, OTHER = "127.0.43.2", "127.0.43.3"
FOREIGN = "192.0.2.1"  # of no host here


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5.0).close()
    except ConnectionRefusedError:
        return False
    return True


def listened(port: int) -> list[str]:
    return [address for address in (FABRIC, OTHER) if answers(address, port)]


def test_a_socket_listens_on_one_address_where_the_node_has_it() -> None:
    for address, expected in ((FABRIC, [FABRIC]), ("", [FABRIC, OTHER]), (FOREIGN, [FABRIC, OTHER])):
        with net.listen_on(address) as sock:
            assert listened(sock.getsockname()[1]) == expected


def test_a_name_that_nobody_knows_is_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    real = net.listen_at

    def listen_at(address: str, port: int, backlog: int) -> socket.socket:
        if address == "auto":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(address, port, backlog)

    monkeypatch.setattr(net, "listen_at", listen_at)
    with net.listen_on("auto") as sock:
        assert listened(sock.getsockname()[1]) == [FABRIC, OTHER]


def test_a_port_that_is_taken_is_no_reason_for_another_address() -> None:
    with net.listen_on(FABRIC) as taken, pytest.raises(OSError) as caught:  # noqa: PT011
        net.listen_on(FABRIC, taken.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(("address", "expected"), [(FABRIC, [FABRIC]), (FOREIGN, [FABRIC, OTHER])])
def test_the_agents_and_what_they_resume_from(tmp_path: Path, address: str, expected: list[str]) -> None:
    """The other hosts know both by the address in the run's record."""
    who = credentials()
    members = [{"host": "a", "address": address}]
    run: Any = {"host": "a", **OF_JOB, "serial": NOW.serial, "run": NOW.run, "restart": {"hosts": members}}
    key = talk.key_of("ab" * 32)
    desk = talk.AnswerServer(key, "run", "a", ["a", "b"], address)
    resume = Resume(
        str(tmp_path), run, {"certificate": who.certificate, "key": who.key}, talk.PeerLine(key, "run", "a", {})
    )
    desk.start(lambda host, question: {})
    resume.start()
    try:
        assert resume.port is not None
        assert [listened(desk.port), listened(resume.port)] == [expected] * 2
    finally:
        resume.close()
        desk.close()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([FABRIC, "10.9.9.9"], [FABRIC]),
        (["10.9.9.9"], [FABRIC, OTHER]),  # a loopback address, or that of a router
    ],
)
def test_the_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str], expected: list[str]) -> None:
    """The other hosts get the addresses of this host from the gang, and must find the keeper there."""
    who, said = credentials(), dict[str, Any]()
    monkeypatch.setattr(keeper_process, "own_addresses", lambda: told)
    monkeypatch.setattr(keeper_process, "_say", said.update)
    of_run = {"base": str(tmp_path), "job": JOB, "hosts": ["a", "b"], "replicas": 1, "address": FABRIC}
    copying = {**of_run, "certificate": who.certificate, "key": who.key, **NOW.to_json()}
    order = {"host": "a", "copying": copying}
    found = keeper_process._replication(order, keeper_process._listen_for_peers(order))
    assert isinstance(found, replicate.Replication)
    try:
        assert listened(said["port"]) == expected
    finally:
        found.close()
