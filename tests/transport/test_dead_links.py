"""Links that die under a call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpctl.errors import (
    LinkLost,
    RemoteError,
)
from ddpctl.transport import link
from ddpctl.transport.base import Transport
from ddpctl_worker.wire import contract
from tests.lab import Lab
from tests.transport.build import OnFifth
from tests.transport.support import one_line

THE_KERNEL = "the connection is lost"  # its limits ended the connection, before a heartbeat was missed


def test_a_link_cut_in_mid_call(short_tcp_limits: None, lab3: Lab, node0: Transport) -> None:
    hurt = OnFifth(lambda: lab3[0].cable(False))
    with pytest.raises(LinkLost) as caught:
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert hurt.done
    one_line(caught.value, "node0: ", THE_KERNEL)


def test_a_link_cut_while_sending(short_tcp_limits: None, lab3: Lab, node0: Transport) -> None:
    def body() -> Iterator[bytes]:
        for number in range(400):
            if number == 20:
                lab3[0].cable(False)
            yield b"x" * (1 << 20)

    with pytest.raises(LinkLost) as caught:
        node0.call("echo", {"size": 400 << 20}, body=body(), timeout=None)
    one_line(caught.value, "node0: ", THE_KERNEL)


def test_a_frozen_machine(lab3: Lab, node0: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel still answers TCP; only the missing heartbeat shows it."""

    def freeze() -> None:
        monkeypatch.setattr(contract, "LINK_DEAD_S", 7.0)
        lab3[0].freeze()

    hurt = OnFifth(freeze)
    with pytest.raises(LinkLost) as caught:
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert hurt.done
    one_line(caught.value, "node0: ", "the connection is dead: no data for ")


def test_a_connection_that_died_while_idle(lab3: Lab, node0: Transport) -> None:
    assert node0.call("echo", {"text": 1})["text"] == 1
    lab3[0].reboot()
    assert node0.call("echo", {"text": 2})["text"] == 2


def test_an_sshd_that_ends_the_session(lab3: Lab, node0: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "DYING_S", 30.0)  # a busy machine may notice the end of the connection late

    def kill() -> None:
        for process in lab3[0].processes(system=True):
            if process.argv[0].startswith("sshd: root"):
                lab3[0].run(f"kill -9 {process.pid}", check=False)

    hurt = OnFifth(kill)
    with pytest.raises(LinkLost):
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)


def test_a_worker_that_is_killed(lab3: Lab, node0: Transport) -> None:
    def kill() -> None:
        """The process that serves the request: a child of the process that takes the next."""
        found = [one.pid for one in lab3[0].processes() if "ddpctl=" in " ".join(one.argv)]
        lab3[0].run(f"kill -9 {max(found)}")

    hurt = OnFifth(kill)
    with pytest.raises(RemoteError) as caught:
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert caught.value.kind == "died"
    assert node0.call("echo", {"text": 2})["text"] == 2
