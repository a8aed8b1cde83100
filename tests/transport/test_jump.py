"""Hosts behind a jump host: a shared connection, its faults distinguished from the hosts' faults."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl.errors import HostKeyUnknown, LinkLost, Unreachable
from ddpctl.spec.inventory import Host
from ddpctl.stages import trust
from ddpctl.transport import dial as dial_module
from ddpctl.transport import jumps, link, ssh
from ddpctl.transport.dial import Resolver, dial
from ddpctl.transport.fleet import SSHFleet, open_fleet
from ddpctl.transport.route import Hop
from ddpctl_worker.wire import contract
from tests.e2e.site import until
from tests.lab import Lab, Process
from tests.transport.build import OnFifth, of_lab


@pytest.fixture(scope="module")
def jump_lab(make_module_lab) -> Lab:  # type: ignore[no-untyped-def]
    """node0 is the jump host of six."""
    lab: Lab = make_module_lab(7, jump=True)
    return lab


@pytest.fixture
def lab(jump_lab: Lab) -> Iterator[Lab]:
    yield jump_lab
    jump_lab.heal()


@pytest.fixture
def fleet(lab: Lab) -> Iterator[SSHFleet]:
    fleet = open_fleet(of_lab(lab), [f"node{n}" for n in range(1, 7)])
    yield fleet
    fleet.close()


def test_six_hosts_over_one_connection(lab: Lab, fleet: SSHFleet) -> None:
    outcome = fleet.map(lambda transport: transport.call("echo"))
    assert outcome.ok, {name: str(error) for name, error in outcome.errors.items()}

    def logins() -> list[Process]:
        return [process for process in lab[0].processes(system=True) if process.argv[0].startswith("sshd: root")]

    until(lambda: len(logins()) == 1, trouble=lambda: f"{logins()}")


def test_the_jump_host_as_an_inventory_key(lab: Lab, tmp_path: Path) -> None:
    """No ssh_config: `jump:` names a host of the inventory; a chain takes two."""
    key: dict[str, Any] = {"user": "root", "identity_file": str(lab.key)}
    hosts = [
        Host(name="gate", address=lab[0].address, **key),
        Host(name="a", address=lab[1].address, jump="gate", **key),
        Host(name="b", address=lab[2].address, jump="a", **key),
        Host(name="c", address=lab[3].address, jump=f"gate,root@{lab[1].address}:22", **key),
    ]
    empty = tmp_path / "config"
    empty.write_text("")
    fleet = open_fleet(of_lab(lab, *hosts, ssh_config=str(empty)))
    outcome = fleet.map(lambda transport: transport.call("echo", {"text": transport.host})["text"])
    fleet.close()
    assert outcome.ok, {name: str(error) for name, error in outcome.errors.items()}
    assert dict(outcome.results) == {name: name for name in ("gate", "a", "b", "c")}


def test_a_jump_host_with_an_unknown_key(lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("".join(line for line in lab.known_hosts.read_text().splitlines(True) if "node0" not in line))
    config = tmp_path / "config"
    config.write_text(lab.ssh_config.read_text().replace(str(lab.known_hosts), str(known)))
    fleet = open_fleet(of_lab(lab, ssh_config=str(config), known_hosts=str(known)))
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert len(outcome.errors) == 7
    assert all(isinstance(error, HostKeyUnknown) for error in outcome.errors.values())
    assert "jump host node0" in str(outcome.errors["node3"])


def test_a_jump_host_that_is_down(lab: Lab, fleet: SSHFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried once for all hosts, not once for each host."""
    dialled: list[str] = []

    def noted(hop: Hop, names: Resolver) -> socket.socket:
        dialled.append(hop.address)
        return dial(hop, names)

    monkeypatch.setattr(ssh, "dial", noted)
    monkeypatch.setattr(dial_module, "CONNECT_S", 3.0)
    monkeypatch.setattr(jumps, "JUMP_DOWN_S", 60.0)  # all threads ask within this time, on a busy machine too
    lab[0].drop(port=22)
    outcome = fleet.map(lambda transport: transport.call("echo"))
    assert len(outcome.errors) == 6
    assert dialled == [lab[0].address]
    for name, error in outcome.errors.items():
        assert isinstance(error, Unreachable)
        assert str(error).startswith(f"{name}: jump host node0: no answer")


def test_hosts_behind_it_that_refuse_drop_and_are_silent(
    lab: Lab, fleet: SSHFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline is short only for the host that it is about, and for connected hosts."""
    lab[1].no_ssh()
    lab[2].drop(port=22)
    lab[3].silent_sshd()
    lab[4].wrong_host_key()
    texts: dict[str, str] = {}

    def ask(*bad: str) -> None:
        outcome = fleet.map(lambda transport: transport.call("echo"), [*bad, "node5", "node6"])
        assert set(outcome.results) == {"node5", "node6"}
        texts.update({name: str(error) for name, error in outcome.errors.items()})

    ask("node1", "node4")
    assert "node0 cannot connect to" in texts["node1"]
    assert "refused" in texts["node1"]
    assert "has changed" in texts["node4"]
    for module in (dial_module, link):
        monkeypatch.setattr(module, "FIRST_BYTE_S", 4.0)
    ask("node3")
    assert "sends nothing for 4 s" in texts["node3"]
    monkeypatch.setattr(link, "CHANNEL_S", 5.0)
    ask("node2")
    assert "through node0 within 5 s" in texts["node2"]


def test_forwarding_forbidden(lab: Lab, fleet: SSHFleet) -> None:
    lab[0].sshd_config("AllowTcpForwarding no")
    outcome = fleet.map(lambda transport: transport.call("echo"))
    assert len(outcome.errors) == 6
    assert all("AllowTcpForwarding" in str(error) for error in outcome.errors.values())


def test_the_link_behind_the_jump_host_is_cut(lab: Lab, fleet: SSHFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """No TCP connection of ours dies; the missing heartbeat shows it."""
    with monkeypatch.context() as patch:

        def cut() -> None:
            patch.setattr(contract, "LINK_DEAD_S", 7.0)
            lab[1].cable(False)

        hurt = OnFifth(cut)
        with pytest.raises(LinkLost, match="the connection is dead: no data for "):
            fleet.transport("node1").call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert hurt.done
    assert fleet.transport("node2").call("echo", {"text": 1})["text"] == 1


def test_proxy_command(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "config"
    base = lab.ssh_config.read_text().replace("  ProxyJump node0", "")
    first = f"Host node1\n  ProxyCommand ssh -F {lab.ssh_config} -W %h:%p node0\n"
    config.write_text(first + "Host node2\n  ProxyCommand sh -c 'echo no way >&2; exit 5'\n" + base)
    fleet = open_fleet(of_lab(lab, ssh_config=str(config)), ["node1", "node2"])
    outcome = fleet.map(lambda transport: transport.call("echo", {"frames": 4, "raw": 1 << 20}))
    fleet.close()
    assert set(outcome.results) == {"node1"}, str(outcome.errors)
    assert "no way" in str(outcome.errors["node2"])


def test_trust_through_a_jump_host(lab: Lab, tmp_path: Path) -> None:
    """First the jump host's key, then the keys of the hosts behind it."""
    config = tmp_path / "config"
    config.write_text(lab.ssh_config.read_text().replace(str(lab.known_hosts), "none"))
    known = tmp_path / "new" / "known_hosts"
    inventory = of_lab(lab, ssh_config=str(config), known_hosts=str(known))
    first = {report.host: report for report in trust.survey(inventory)}
    assert {name for name, report in first.items() if report.state == "unknown"} == {"node0"}
    assert isinstance(first["node3"].error, HostKeyUnknown)
    assert len(trust.add(list(first.values()), known)) == 1
    second = trust.survey(inventory)
    assert [report.state for report in second] == ["known"] + ["unknown"] * 6
    assert len(trust.add(second, known)) == 6
    assert known.stat().st_mode & 0o777 == 0o600
    assert {report.state for report in trust.survey(inventory)} == {"known"}
    fleet = open_fleet(inventory)
    assert fleet.map(lambda transport: transport.call("echo")).ok
    fleet.close()
