"""The command line of OpenSSH, read by OpenSSH: `ssh -G` prints its reading of the options."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ddpctl.spec.inventory import Inventory
from ddpctl.transport.openssh import make_ssh_command
from ddpctl.transport.route import Hop
from tests.transport.build import plain

HOP = Hop(
    label="node1",
    address="10.0.0.7",
    port=2201,
    user="train",
    key_name="10.0.0.7",
    key_port=2201,
    user_known_hosts=("/home/a b/100% known",),
    global_known_hosts=("/etc/ssh/ssh_known_hosts",),
    identities=("/home/a b/id%h",),
    certificates=("/home/a b/id%h-cert.pub",),
)


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    config = "Host *\n  StrictHostKeyChecking no\n  User nobody\n  Port 99\n  Ciphers aes128-ctr\n"
    return plain(tmp_path, config=config)


def read_options(words: list[str]) -> dict[str, str]:
    shown = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)


def test_the_way_and_the_host_keys_are_the_inventorys(inventory: Inventory) -> None:
    found = read_options(make_ssh_command(HOP, inventory, terminal=False))
    assert (found["hostname"], found["port"], found["user"]) == ("10.0.0.7", "2201", "train")
    assert found["stricthostkeychecking"] in ("true", "yes")
    assert found["userknownhostsfile"] == "/home/a b/100% known"
    assert found["identityfile"] == "/home/a b/id%%h"  # the token is expanded later
    assert found["certificatefile"] == "/home/a b/id%%h-cert.pub"
    assert found["ciphers"] == "aes128-ctr"  # ssh_config's own options stay
    assert "hostkeyalias" not in found
    assert "proxycommand" not in found


def test_an_alias_of_the_host_key(inventory: Inventory) -> None:
    found = read_options(make_ssh_command(replace(HOP, key_name="gpu7", key_port=22), inventory, terminal=True))
    assert found["hostkeyalias"] == "gpu7"
    assert found["requesttty"] in ("true", "yes")


def test_a_jump_host_is_checked_as_strictly(inventory: Inventory) -> None:
    jump = replace(HOP, label="gate", address="fe80::1", key_name="fe80::1", user="ann")
    found = read_options(make_ssh_command(replace(HOP, via=jump), inventory, terminal=False))
    proxy = shlex.split(found["proxycommand"].replace("%%", "%"))
    assert proxy[proxy.index("-W") + 1] == "10.0.0.7:2201"
    assert "StrictHostKeyChecking=yes" in proxy
    assert proxy[-1] == "gate"


def test_a_proxy_command_is_expanded_once(inventory: Inventory) -> None:
    found = read_options(make_ssh_command(replace(HOP, proxy_command="nc 100% h"), inventory, terminal=False))
    assert found["proxycommand"] == "nc 100%% h"
