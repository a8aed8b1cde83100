"""Files from node to node on real hosts: their cost, and a failure on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ddpctl.errors import ConnectError, ProvisionError
from tests.conftest import MakeLab
from tests.lab import Lab
from tests.lab_environment.scene import (
    BASE,
    MB,
    Watch,
    holds,
    inventory,
    noise,
    parts,
    slow_links,
    spread,
    then_full_speed,
)
from tests.transport.support import shorten_tcp_limits

SIZE = 40 * MB
RATE = "20mbit"  # a file is on its way for 16 s: an event in the middle of it may take seconds on a busy machine
SEEDS = iter(range(1, 1000))


@pytest.fixture(scope="module")
def hosts4(make_module_lab: MakeLab) -> Lab:
    return make_module_lab(4)


@pytest.fixture
def lab(hosts4: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    shorten_tcp_limits(monkeypatch)
    yield hosts4
    hosts4.heal()
    for host in hosts4:
        host.run(f"rm -rf {BASE}")


def test_the_controller_sends_one_copy_and_every_node_has_it(lab: Lab, tmp_path: Path) -> None:
    where, source = inventory(lab, tmp_path), noise(SIZE, next(SEEDS))
    delivery = spread(where, [source])
    assert delivery.ok
    assert delivery.traffic.sent_by_controller == SIZE
    assert delivery.traffic.relayed == 3 * SIZE
    assert all(holds(lab, index, source) for index in range(4))
    again = spread(where, [source])
    assert (again.traffic.sent_by_controller, again.traffic.relayed, again.traffic.reused) == (0, 0, 4 * SIZE)


@pytest.mark.full(covered_by="tests/lab_environment/test_managed.py::test_a_push_reaches_two_hosts_and_a_refusal_none")
def test_a_new_node_gets_its_files_from_a_node_that_has_them(lab: Lab, tmp_path: Path) -> None:
    where, source = inventory(lab, tmp_path), noise(SIZE, next(SEEDS))
    spread(where, [source])
    lab[2].run(f"rm -rf {BASE}")
    delivery = spread(where, [source])
    assert delivery.ok
    assert delivery.traffic.sent_by_controller == 0
    assert delivery.traffic.relayed == SIZE
    assert holds(lab, 2, source)


@pytest.mark.parametrize(
    "how",
    [
        "drop",
        pytest.param(
            "reject",
            marks=pytest.mark.full(
                covered_by="tests/lab_environment/test_spread.py::test_where_nodes_cannot_reach_each_other_the_controller_sends"
            ),
        ),
    ],
)
def test_where_nodes_cannot_reach_each_other_the_controller_sends(lab: Lab, tmp_path: Path, how: str) -> None:
    source = noise(SIZE // 4, next(SEEDS))
    for host in lab:
        for other in lab:
            if other is not host:
                (host.drop if how == "drop" else host.reject)(from_=other)
    delivery = spread(inventory(lab, tmp_path), [source])
    assert delivery.ok
    assert delivery.traffic.sent_by_controller == 4 * source.size
    assert all(holds(lab, index, source) for index in range(4))


@pytest.mark.full(
    covered_by="tests/lab_environment/test_spread.py::"
    "test_the_first_node_dies_and_the_second_goes_on_from_its_last_byte"
)
def test_a_node_that_loses_power_is_cut_out(lab: Lab, tmp_path: Path) -> None:
    where, source = inventory(lab, tmp_path), noise(SIZE, next(SEEDS))
    watch = Watch("node1", 0.5, then_full_speed(lab, lab[1].power_off))
    with slow_links(lab, RATE):
        delivery = spread(where, [source], watch)
        watch.join()
        assert set(delivery.errors) == {"node1"}
        assert isinstance(delivery.errors["node1"], ConnectError)
        assert set(delivery.done) == {"node0", "node2", "node3"}
        assert delivery.traffic.sent_by_controller < 1.2 * SIZE
        assert all(holds(lab, index, source) for index in (0, 2, 3))
    lab[1].boot()
    assert spread(where, [source]).traffic.sent_by_controller == 0
    assert holds(lab, 1, source)


def test_the_first_node_dies_and_the_second_goes_on_from_its_last_byte(lab: Lab, tmp_path: Path) -> None:
    source = noise(SIZE, next(SEEDS))
    watch = Watch("node0", 0.4, then_full_speed(lab, lab[0].power_off))
    with slow_links(lab, RATE):
        delivery = spread(inventory(lab, tmp_path), [source], watch)
        watch.join()
    assert set(delivery.errors) == {"node0"}
    assert set(delivery.done) == {"node1", "node2", "node3"}
    # Bytes that node0 had received and not passed on are sent twice, and no more.
    assert delivery.traffic.sent_by_controller < 1.5 * SIZE
    assert all(holds(lab, index, source) for index in (1, 2, 3))


def test_a_cut_cable_costs_only_what_is_missing(lab: Lab, tmp_path: Path) -> None:
    where, source = inventory(lab, tmp_path), noise(SIZE, next(SEEDS))
    watch = Watch("node2", 0.5, then_full_speed(lab, lambda: lab[2].cable(False)))
    with slow_links(lab, RATE):
        delivery = spread(where, [source], watch)
        watch.join()
        assert set(delivery.errors) == {"node2"}
        assert set(delivery.done) == {"node0", "node1", "node3"}
    lab[2].cable(True)
    deadline = time.monotonic() + 120
    while left := lab[2].processes():  # the cut-off worker keeps its part to itself until it has noticed
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    there = parts(lab, 2)
    assert there
    assert there[0] > 0.4 * SIZE
    again = spread(where, [source])
    assert again.ok
    assert again.traffic.relayed + again.traffic.sent_by_controller == SIZE - there[0]
    assert holds(lab, 2, source)
    assert parts(lab, 2) == []


def test_a_disk_that_fills_up_on_the_way_is_that_nodes_error(lab: Lab, tmp_path: Path) -> None:
    where, source = inventory(lab, tmp_path), noise(SIZE, next(SEEDS))
    lab[1].small_tmpfs(BASE, "80m")
    lab[1].run(f"chmod 700 {BASE}")
    fill = then_full_speed(lab, lambda: lab[1].run(f"cat /dev/zero > {BASE}/filler", check=False))
    watch = Watch("node1", 0.6, fill)
    with slow_links(lab, RATE):
        delivery = spread(where, [source], watch)
    watch.join()
    assert set(delivery.errors) == {"node1"}
    assert isinstance(delivery.errors["node1"], ProvisionError)
    assert "full" in str(delivery.errors["node1"])
    assert "gc" in str(delivery.errors["node1"])
    assert set(delivery.done) == {"node0", "node2", "node3"}
    assert delivery.traffic.sent_by_controller < 1.2 * SIZE
    assert not holds(lab, 1, source)
    lab[1].run(f"rm {BASE}/filler")
    assert spread(where, [source]).ok
    assert holds(lab, 1, source)


def test_too_little_room_is_said_before_a_byte_is_sent(lab: Lab, tmp_path: Path) -> None:
    lab[3].small_tmpfs(BASE, "30m")
    lab[3].run(f"chmod 700 {BASE}")
    delivery = spread(inventory(lab, tmp_path), [noise(SIZE, next(SEEDS))])
    assert set(delivery.errors) == {"node3"}
    assert "MB are free" in str(delivery.errors["node3"])
    assert parts(lab, 3) == []


@pytest.mark.full(covered_by="tests/lab_environment/test_spread.py::test_a_cut_cable_costs_only_what_is_missing")
def test_a_node_that_hangs_does_not_hold_up_the_others(lab: Lab, tmp_path: Path) -> None:
    source = noise(SIZE, next(SEEDS))
    done_at: dict[str, float] = {}

    class Clocked(Watch):
        def __call__(self, event: object) -> None:
            super().__call__(event)  # type: ignore[arg-type]
            for host, count in self.at.items():
                if count == SIZE:
                    done_at.setdefault(host, time.monotonic())

    watch = Clocked("node1", 0.3, lab[1].freeze)
    with slow_links(lab, RATE):
        delivery = spread(inventory(lab, tmp_path), [source], watch)
        watch.join()
    lab[1].thaw()
    assert set(delivery.done) == {"node0", "node2", "node3"}
    assert set(delivery.errors) == {"node1"}
    assert all(holds(lab, index, source) for index in (0, 2, 3))


@pytest.mark.full(covered_by="tests/environment/test_pull.py::test_a_slow_node_is_left_for_a_node_that_has_much_more")
def test_a_slow_node_is_cut_out(lab: Lab, tmp_path: Path) -> None:
    """node1 gets a tenth of the other nodes' speed: the nodes behind it must not wait for it."""
    source = noise(2 * SIZE, next(SEEDS))
    behind: dict[str, int] = {}

    class Ahead(Watch):
        def __call__(self, event: object) -> None:
            super().__call__(event)  # type: ignore[arg-type]
            if not behind and self.at.get("node3") == source.size:
                behind["node1"] = self.at.get("node1", 0)

    watch = Ahead()
    with slow_links(lab, "160mbit"):
        lab[1].slow("16mbit")
        delivery = spread(inventory(lab, tmp_path), [source], watch)
    assert delivery.ok
    assert behind["node1"] < 0.9 * source.size, "node3 waited for node1"
    assert delivery.traffic.sent_by_controller < 1.2 * source.size
    assert any("slow" in note for note in watch.notes)


@pytest.mark.full(covered_by="tests/lab_environment/test_spread.py::test_a_cut_cable_costs_only_what_is_missing")
def test_a_controller_that_is_killed_leaves_parts_and_the_next_try_sends_the_rest(lab: Lab, tmp_path: Path) -> None:
    where, seed = inventory(lab, tmp_path), next(SEEDS)
    program = (
        "import sys\n"
        "from ddpctl.files.inventory import load_inventory\n"
        "from pathlib import Path\n"
        "from tests.lab_environment.scene import *\n"
        "watch = Watch('node2', 0.3, lambda: print('now', flush=True))\n"
        "spread(load_inventory(Path(sys.argv[1])), [noise(int(sys.argv[2]), int(sys.argv[3]))], watch)\n"
    )
    with slow_links(lab, RATE):
        controller = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "inventory.yaml"), str(SIZE), str(seed)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert controller.stdout
        assert controller.stdout.readline() == b"now\n"
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        controller.stdout.close()
        until = time.monotonic() + 120
        while any(lab[index].run("pgrep python", check=False).stdout for index in range(4)):
            assert time.monotonic() < until
            time.sleep(0.2)
    source = noise(SIZE, seed)
    left = [parts(lab, index) for index in range(4)]
    assert all(sizes and sizes[0] > 0.2 * SIZE for sizes in left), left
    assert not any(holds(lab, index, source) for index in range(4))
    again = spread(where, [source])
    assert again.ok
    sent = again.traffic.sent_by_controller + again.traffic.relayed
    assert sent == 4 * SIZE - sum(sizes[0] for sizes in left)
    assert all(holds(lab, index, source) for index in range(4))
    assert json.dumps(asdict(again.traffic))


@pytest.mark.full(covered_by="tests/worker/store/test_relay.py::test_junk_gets_nothing_and_harms_nobody")
def test_strangers_on_the_clusters_network_get_nothing(lab: Lab, tmp_path: Path) -> None:
    """While files are on their way, another machine of the network tries the relay's port."""
    source = noise(SIZE, next(SEEDS))
    said: list[str] = []
    attempt = (
        "import socket, ssl, sys\n"
        "ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); ctx.check_hostname = False; ctx.verify_mode = ssl.CERT_NONE\n"
        "for line in open('/proc/net/tcp6'): pass\n"
        "got = 0\n"
        "for port in map(int, sys.argv[2:]):\n"
        "    for tls in (False, True):\n"
        "        s = socket.create_connection((sys.argv[1], port), 5); s.settimeout(5)\n"
        "        try:\n"
        "            if tls: s = ctx.wrap_socket(s)\n"
        '            s.sendall(b\'{"to": "node0", "files": []}\\n\')\n'
        "            while True:\n"
        "                data = s.recv(65536)\n"
        "                if not data: break\n"
        "                got += len(data)\n"
        "        except OSError: pass\n"
        "        finally: s.close()\n"
        "print('tried', len(sys.argv) - 2, 'got', got)\n"
    )

    def intrude() -> None:
        ports = lab[0].run("ss -ltnH | awk '{print $4}' | sed 's/.*://' | grep -v '^22$' | sort -u").stdout.split()
        said.append(lab[3].run(["python3", "-c", attempt, lab[0].address, *ports]).stdout)

    watch = Watch("node0", 0.2, then_full_speed(lab, intrude))
    with slow_links(lab, RATE):
        delivery = spread(inventory(lab, tmp_path), [source], watch)
    watch.join()
    assert delivery.ok
    words = said[0].split()
    assert int(words[1]) >= 1
    assert int(words[3]) < 200  # TLS alerts, not a byte of a file
