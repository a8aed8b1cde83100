"""SSH against real sshds: the protocol over it, many calls and many controllers at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddpctl.transport.base import Frame, Transport
from ddpctl.transport.bootstrap import payload
from ddpctl.transport.fleet import SSHFleet, open_fleet
from ddpctl_worker.wire import contract
from tests.lab import Lab
from tests.transport.build import of_lab
from tests.transport.support import workers_of_host


def test_every_host_answers(fleet: SSHFleet) -> None:
    outcome = fleet.map(lambda transport: transport.call("echo", {"text": transport.host}))
    assert {name: result["text"] for name, result in outcome.results.items()} == {name: name for name in fleet.hosts}


def test_hundred_megabytes(node0: Transport) -> None:
    got = 0

    def count(frame: Frame) -> None:
        nonlocal got
        got += len(frame.raw)

    before = time.process_time()
    node0.call("echo", {"frames": 100, "raw": 1 << 20}, on_frame=count)
    assert got == 100 << 20
    used = time.process_time() - before
    assert used < 10, f"{used} s of CPU"  # measured: 0.3; a slow path (fabric's) needs two minutes


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


def test_a_quiet_stream_is_not_a_dead_link(node0: Transport) -> None:
    """The worker's heartbeat comes every 4 s."""
    assert node0.call("echo", {"frames": 1, "every": contract.LINK_DEAD_S + 2}, timeout=None)["sent"] == 1


def test_ctrl_c_ends_a_map_at_once(lab3: Lab, fleet: SSHFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call would end by itself."""
    monkeypatch.setattr(contract, "LINK_DEAD_S", 3600.0)

    def press() -> None:
        while not all(workers_of_host(host) for host in lab3):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        fleet.map(lambda transport: transport.call("echo", {"frames": 1, "every": 3600}, timeout=None))
    presser.join()
    deadline = time.monotonic() + 60
    while left := [host.name for host in lab3 if workers_of_host(host)]:
        assert time.monotonic() < deadline, f"workers are left on {left}"
        time.sleep(0.05)
    assert fleet.map(lambda transport: transport.call("echo")).ok
