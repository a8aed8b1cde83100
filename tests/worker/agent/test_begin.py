"""The message of a host that does not reach the agents of the other hosts."""

from __future__ import annotations

import socket

import pytest

from ddpctl_worker.agent import begin
from ddpctl_worker.agent.begin import list_unreached


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_only_those_that_take_no_connection_are_named() -> None:
    port = closed_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = list_unreached({"node1": ["127.0.0.1", server.getsockname()[1]], "node2": ["127.0.0.1", port]})
    assert found == [f"no connection to node2 at 127.0.0.1 port {port}: Connection refused"]


def test_of_many_some_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "MOST_UNREACHED", 1)
    port = closed_port()
    found = list_unreached({f"node{number}": ["127.0.0.1", port] for number in range(3)})
    assert [one.partition(" at ")[0] for one in found] == ["no connection to node0", "nor to 2 other hosts"]
