"""The end of a connection, whatever became of its carrier."""

from __future__ import annotations

import socket

from ddpctl.transport.link import Connection


class Tunnel:
    """A channel of another connection that is gone: paramiko raises EOFError for whatever has to be sent over it."""

    def __init__(self) -> None:
        self.closed = 0

    def settimeout(self, seconds: float) -> None:
        pass

    def shutdown(self, how: int) -> None:
        raise EOFError

    def close(self) -> None:
        self.closed += 1
        raise EOFError


def test_the_end_over_a_tunnel_that_is_gone() -> None:
    tunnel = Tunnel()
    connection = Connection(tunnel)
    connection.active = True
    connection.hang_up()
    assert tunnel.closed >= 2  # by paramiko, which gives up there, and once more by the connection itself
    assert not connection.active


def test_the_end_twice() -> None:
    here, there = socket.socketpair()
    with there:
        connection = Connection(here)
        connection.active = True
        connection.hang_up()
        connection.hang_up()
        assert there.recv(1) == b""


def test_a_socket_that_cannot_be_closed_ends_no_thread() -> None:
    """The thread that reads closes it, and then releases the waiting threads."""
    Connection(Tunnel()).packetizer.close()
