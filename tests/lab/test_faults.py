"""Every fault of a host does as its name says, and can be undone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Host, Lab, LabError
from tests.lab.process import call
from tests.lab.traffic import UNREACHABLE, banner, fetch, serve


@pytest.fixture
def served(lab3: Lab) -> Lab:
    """A listener on node1 that hands out 300 KB to each that comes."""
    serve(lab3[1], 29500, 300_000)
    return lab3


# -- power --------------------------------------------------------------------------------------------------------


def test_power_loss_is_silent(served: Lab) -> None:
    """The peer of an open connection hears no goodbye: a dead host differs from a suspended host in this."""
    with socket.create_connection((served[1].address, 22), timeout=60) as link:
        assert link.recv(4) == b"SSH-"
        while link.recv(4096)[-1:] != b"\n":
            pass
        served[1].power_off()
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.recv(1)
    assert not served[1].running
    with pytest.raises(LabError, match="power"):
        served[1].run("true")


def test_reboot_keeps_the_disk_and_nothing_else(lab3: Lab) -> None:
    host = lab3[1]
    before = host.boot_id()
    for path in ("/root/kept", "/var/tmp/kept", "/tmp/lost", "/run/lost", "/dev/shm/lost"):
        host.write(path, "x")
    host.drop(port=29500)
    host.reboot()
    assert host.boot_id() != before
    assert host.exists("/root/kept")
    assert host.exists("/var/tmp/kept")
    assert not any(host.exists(path) for path in ("/tmp/lost", "/run/lost", "/dev/shm/lost"))
    assert host.run("nft list ruleset").stdout == ""
    assert lab3.ssh("node1", "echo back").stdout == "back\n"


def test_heal_switches_on_again(lab3: Lab) -> None:
    lab3[2].power_off()
    lab3.heal()
    assert lab3.ssh("node2", "echo back").stdout == "back\n"


# -- network ------------------------------------------------------------------------------------------------------


def test_drop_is_silence_and_reject_is_an_answer(served: Lab) -> None:
    reader, host, _ = served
    assert fetch(reader, host, 29500)[:2] == ("got", 300_000)
    host.drop(port=29500)
    assert fetch(reader, host, 29500, timeout=1)[0] == "TimeoutError"
    host.clear_firewall()
    host.reject(port="29000-29999")
    assert fetch(reader, host, 29500)[0] == "ConnectionRefusedError"
    host.clear_firewall()
    assert fetch(reader, host, 29500)[0] == "got"


def test_a_drop_for_one_host_leaves_the_others(served: Lab) -> None:
    served[1].drop(from_=served[0])
    assert fetch(served[0], served[1], 29500, timeout=1)[0] == "TimeoutError"
    assert fetch(served[2], served[1], 29500)[0] == "got"


def test_a_pulled_cable(served: Lab) -> None:
    served[1].cable(False)
    assert served[1].read("/sys/class/net/eth0/carrier").strip() == "0"
    assert fetch(served[0], served[1], 29500, timeout=1)[0] in ("TimeoutError", "OSError")
    served[1].cable(True)
    assert fetch(served[0], served[1], 29500)[0] == "got"


@pytest.mark.parametrize("reader", [0, 1])
def test_a_slow_link_is_slow_both_ways(served: Lab, reader: int) -> None:
    """Reader 0 takes from the slow host, reader 1 is the slow host."""
    serve(served[0], 29501, 300_000)
    served[1].slow("8mbit")
    before = delayed(served[1])
    assert fetch(served[reader], served[1 - reader], 29500 + reader)[:2] == ("got", 300_000)
    after = delayed(served[1])
    assert [there > here for here, there in zip(before, after, strict=True)] == [reader == 0, reader == 1]
    served[1].full_speed()
    assert delayed(served[1]) == (0, 0)
    assert fetch(served[reader], served[1 - reader], 29500 + reader)[:2] == ("got", 300_000)


def delayed(host: Host) -> tuple[int, int]:
    """How often a packet out of the host and a packet into it had to wait for the cap of its speed."""
    look = ["tc", "-s", "qdisc", "show", "dev"]
    said = host.run([*look, "eth0"]).stdout, host.lab.switch.call([*look, host.cables[0].port]).stdout
    out, into = (sum(map(int, re.findall(r"overlimits (\d+)", text))) for text in said)
    return out, into


def test_an_mtu_black_hole_takes_the_long_packets_only(served: Lab) -> None:
    served[1].mtu_black_hole(1000)
    serve(served[1], 29502, 500)
    assert fetch(served[0], served[1], 29502)[:2] == ("got", 500)
    assert fetch(served[0], served[1], 29500, timeout=1)[0] == "TimeoutError"
    served.heal()
    assert fetch(served[0], served[1], 22, timeout=0.3)[0] == "TimeoutError"  # the banner came; then it waits for us


def test_port_free_knows_who_listens(served: Lab) -> None:
    assert not served[1].port_free(29500)
    assert served[0].port_free(29500)


def test_a_second_network_among_the_hosts(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, fabric=True)
    serve(lab[1], 29500)
    assert lab[1].fabric_address != lab[1].address
    assert fetch(lab[0], lab[1], 29500)[0] == "got"
    with pytest.raises(OSError, match=UNREACHABLE):
        socket.create_connection((lab[1].fabric_address, 29500), timeout=0.3)


def test_hosts_behind_a_jump_host(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3, jump=True)
    assert lab.ssh("node2", "hostname").stdout == "node2\n"
    with pytest.raises(OSError, match=UNREACHABLE):
        socket.create_connection((lab[2].address, 22), timeout=0.3)


# -- SSH ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hurt", "words"),
    [
        (Host.no_ssh, "Connection refused"),
        (Host.wrong_host_key, "REMOTE HOST IDENTIFICATION HAS CHANGED"),
        (Host.refuse_key, "Permission denied"),
        (lambda host: host.drop(port=22), "timed out"),
    ],
)
def test_what_openssh_says_of_a_host_that_refuses(lab3: Lab, hurt: Callable[[Host], None], words: str) -> None:
    hurt(lab3[1])
    patience = 1 if words == "timed out" else 60
    argv = ["ssh", "-F", str(lab3.ssh_config), "-o", "BatchMode=yes", "node1", "true"]
    done = call([*argv[:3], "-o", f"ConnectTimeout={patience}", *argv[3:]], check=False)
    assert done.returncode == 255
    assert words in done.stderr
    lab3.heal()
    assert call(argv).returncode == 0


def test_a_silent_sshd_accepts_and_says_nothing(lab3: Lab) -> None:
    lab3[1].silent_sshd()
    assert banner(lab3[1], patience=0.5) == b""
    lab3.heal()
    assert banner(lab3[1]) == b"SSH-2.0-"


def test_sshd_settings(lab3: Lab) -> None:
    lab3[1].sshd_config("AllowUsers nobody")
    assert lab3.ssh("node1", "true").returncode == 255
    lab3.heal()
    assert lab3.ssh("node1", "true").returncode == 0


def test_a_chatty_profile(lab3: Lab) -> None:
    lab3[0].bashrc("echo hello from the profile")
    assert lab3.ssh("node0", "echo done").stdout == "hello from the profile\ndone\n"


def test_a_home_of_one_s_own(lab3: Lab, tmp_path: Path) -> None:
    home = lab3.home("second")
    argv = ["ssh", "-F", str(home / ".ssh/config"), "node2", "hostname"]
    assert call(argv, env={"HOME": str(home), "PATH": os.environ["PATH"]}).stdout == "node2\n"
    inventory = json.loads(lab3.inventory(tmp_path / "inventory.yaml", jobs={"a": {"script": "x.py"}}).read_text())
    assert inventory["hosts"][1] == {"name": "node1", "address": lab3[1].address}


# -- the machine as a whole ---------------------------------------------------------------------------------------


def test_a_frozen_host_accepts_and_says_nothing(lab3: Lab) -> None:
    lab3[1].freeze()
    assert lab3[1].frozen
    assert banner(lab3[1], patience=0.5) == b""
    lab3.heal()
    assert not lab3[1].frozen
    assert banner(lab3[1]) == b"SSH-2.0-"


def test_a_frozen_host_loses_power(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    lab[0].freeze()
    lab[0].reboot()
    assert banner(lab[0]) == b"SSH-2.0-"


def test_who_takes_too_much_memory_is_killed(lab3: Lab) -> None:
    lab3[1].memory_limit("100M")
    taker = "/usr/bin/python3 -c 'print(len(bytearray(%d << 20)))'; exit $?"
    assert lab3.ssh("node1", taker % 50).stdout == f"{50 << 20}\n"
    assert lab3.ssh("node1", taker % 200).returncode == 128 + signal.SIGKILL
    lab3.heal()
    assert lab3.ssh("node1", taker % 200).returncode == 0


def test_a_pid_is_used_again(lab3: Lab) -> None:
    lab3[1].next_pid(4321)
    assert lab3[1].run("echo $$").stdout in ("4321\n", "4322\n", "4323\n")
