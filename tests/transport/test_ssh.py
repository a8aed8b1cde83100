"""SSH against real sshds: the protocol over it, many calls and many controllers at once."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddpctl.errors import (
    Interrupted,
    RemoteError,
)
from ddpctl.transport.base import Frame, Transport
from ddpctl.transport.bootstrap import payload
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.lab import Lab
from tests.transport.build import of_lab


def test_every_host_answers(fleet: SSHFleet) -> None:
    outcome = fleet.map(lambda transport: transport.call("echo", {"text": transport.host}))
    assert {name: result["text"] for name, result in outcome.results.items()} == {name: name for name in fleet.hosts}


def test_body_and_frames_at_once(node0: Transport) -> None:
    """More than any window, both ways at the same time."""
    body = [bytes([number]) * (1 << 20) for number in range(24)]
    frames: list[Frame] = []
    result = node0.call(
        "echo", {"size": 24 << 20, "frames": 24, "raw": 1 << 20}, body=iter(body), on_frame=frames.append
    )
    assert result["sha256"] == hashlib.sha256(b"".join(body)).hexdigest()
    assert [frame.data["n"] for frame in frames] == list(range(24))
    assert all(len(frame.raw) == 1 << 20 for frame in frames)


def test_hundred_megabytes(node0: Transport) -> None:
    got = 0

    def count(frame: Frame) -> None:
        nonlocal got
        got += len(frame.raw)

    begun = time.monotonic()
    node0.call("echo", {"frames": 100, "raw": 1 << 20}, on_frame=count)
    assert got == 100 << 20
    assert time.monotonic() - begun < 10  # measured: 0.3 s; a slow path (fabric's) needs two minutes


def test_an_error_of_the_worker(node0: Transport) -> None:
    with pytest.raises(RemoteError) as caught:
        node0.call("echo", {"fail": "no_space"})
    assert (caught.value.kind, caught.value.host) == ("no_space", "node0")


def test_a_body_that_cannot_be_read(node0: Transport) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 100
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        node0.call("echo", {"size": 1000}, body=broken())


def test_twenty_calls_on_one_host(node0: Transport) -> None:
    """More than sshd's MaxSessions: they wait for each other."""
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda n: node0.call("echo", {"text": n})["text"], range(20))) == list(range(20))


def test_a_server_that_allows_two_sessions(lab3: Lab, node0: Transport) -> None:
    lab3[0].sshd_config("MaxSessions 2")
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: node0.call("echo", {"text": n, "frames": 1, "every": 0.1})["text"], range(8))
        assert list(answers) == list(range(8))


def test_the_worker_is_sent_once(lab3: Lab) -> None:
    lab3[1].run("rm -rf /root/.local/state/ddpctl")
    folder = f"/root/.local/state/ddpctl/worker/{payload().sha256}"
    stamps = []
    for _ in range(2):
        fleet = open_fleet(of_lab(lab3), ["node1"])
        assert fleet.map(lambda transport: transport.call("echo")).ok
        fleet.close()
        stamps.append(lab3[1].run(f"stat -c '%i %a %U' {folder}; ls -A {folder}/..").stdout)
    assert stamps[0] == stamps[1]
    assert stamps[0].split() == [stamps[0].split()[0], "700", "root", payload().sha256]
    assert "__main__.cpython" in lab3[1].run(f"ls {folder}/ddpctl_worker/__pycache__").stdout


def test_many_controllers_at_once(lab3: Lab) -> None:
    lab3[1].run("rm -rf /root/.local/state/ddpctl")
    fleets = [open_fleet(of_lab(lab3), ["node1"]) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda fleet: fleet.map(lambda transport: transport.call("echo")), fleets))
    for fleet in fleets:
        fleet.close()
    assert all(outcome.ok for outcome in outcomes), [outcome.errors for outcome in outcomes]
    assert lab3[1].run("ls -A /root/.local/state/ddpctl/worker").stdout.split() == [payload().sha256]


def test_cancel(lab3: Lab, node0: Transport) -> None:
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        node0.call("echo", {"frames": 100, "every": 1}, timeout=None, cancel=lambda: time.monotonic() - begun > 0.5)
    assert time.monotonic() - begun < 3
    until = time.monotonic() + 5
    while any("ddpctl=" in " ".join(process.argv) for process in lab3[0].processes()):
        assert time.monotonic() < until, "the worker outlives its reader"
        time.sleep(0.05)
    assert node0.call("echo", {"text": 1})["text"] == 1  # the connection lives on


def test_until_brings_the_result(node0: Transport) -> None:
    enough = threading.Event()
    result = node0.call("echo", {"frames": 600, "every": 0.2}, on_frame=lambda frame: enough.set(), until=enough)
    assert 1 <= result["sent"] < 20


def test_a_quiet_stream_is_not_a_dead_link(node0: Transport) -> None:
    assert node0.call("echo", {"frames": 1, "every": 18}, timeout=None)["sent"] == 1


def test_timeout_of_a_call(node0: Transport) -> None:
    with pytest.raises(RemoteError) as caught:
        node0.call("echo", {"frames": 100, "every": 1}, timeout=1)
    assert caught.value.kind == "timeout"


def test_ctrl_c_ends_a_map_at_once(lab3: Lab) -> None:
    fleet = open_fleet(of_lab(lab3))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fleet.map(lambda transport: transport.call("echo", {"frames": 60, "every": 1}))
    assert time.monotonic() - begun < 6
    assert fleet.map(lambda transport: transport.call("echo")).ok
    fleet.close()
