"""Addresses, routes, packet sizes and speed among real hosts: each fault gives exactly its finding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpctl.spec.finding import Severity
from tests.conftest import MakeLab
from tests.lab import Lab
from tests.lab_preflight.preflight import infos, preflight, run_fix, trouble, where


@pytest.fixture(autouse=True)
def _tidy(lab3: Lab) -> Iterator[None]:
    yield
    for host in lab3:
        host.run("ip route flush table main proto static; ip link del docker0", check=False)
        host.run("ip link set dev eth0 mtu 1500 gso_max_segs 65535")


@pytest.fixture(scope="module")
def fabric_lab_module(make_module_lab: MakeLab) -> Lab:
    return make_module_lab(3, fabric=True)


@pytest.fixture
def fabric_lab(fabric_lab_module: Lab) -> Iterator[Lab]:
    yield fabric_lab_module
    fabric_lab_module.heal()
    for host in fabric_lab_module:
        host.run("ip link set dev eth1 mtu 1500")


def test_no_route_though_the_controller_reaches_both(lab3: Lab) -> None:
    lab3[1].run(f"ip route add unreachable {lab3[2].address} proto static")
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.route", "error", "node1", "node2")]
    assert lab3[2].address in found.message


@pytest.mark.full(covered_by="tests/lab_preflight/test_links.py::test_no_route_though_the_controller_reaches_both")
def test_no_route_to_anybody(lab3: Lab) -> None:
    lab3[1].run(f"for a in {lab3[0].address} {lab3[2].address}; do ip route add unreachable $a proto static; done")
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.route", "error", "node1", None)]


def test_nobody_answers_on_the_local_network(fabric_lab: Lab) -> None:
    fabric_lab[2].run("ip link set eth1 arp off")
    (found,) = trouble(preflight(fabric_lab, defaults={"interface": "eth1"}))
    fabric_lab[2].run("ip link set eth1 arp on")
    assert where([found]) == [("mesh.route", "error", "node2", None)]
    assert "no answer at" in found.message


def test_interface_without_a_cable(fabric_lab: Lab) -> None:
    fabric_lab[2].cable(False, interface="eth1")
    (found,) = trouble(preflight(fabric_lab, defaults={"interface": "eth1"}))
    assert where([found]) == [("fabric.interface", "error", "node2", None)]
    assert "down" in found.message


def test_interface_that_there_is_not(lab3: Lab) -> None:
    report = preflight(lab3, hosts={"node1": {"interface": "eth9"}})
    (found,) = trouble(report)
    assert where([found]) == [("fabric.interface", "error", "node1", None)]
    assert "eth0" in str(found.fix)


def test_a_variable_for_an_interface_that_there_is_not(lab3: Lab) -> None:
    (found,) = trouble(preflight(lab3, hosts={"node1": {"env": {"GLOO_SOCKET_IFNAME": "enP7s7"}}}))
    assert where([found]) == [("fabric.interface", "error", "node1", None)]
    assert "GLOO_SOCKET_IFNAME=enP7s7" in found.message


def test_interface_that_leads_nowhere(lab3: Lab) -> None:
    """docker0 has the same address on every machine: a host that connects to it reaches itself."""
    for host in lab3:
        host.run("ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up")
    assert where(trouble(preflight(lab3))) == []
    (found,) = trouble(preflight(lab3, hosts={"node1": {"interface": "docker0"}}))
    assert where([found]) == [("fabric.address", "error", "node1", None)]
    assert "eth0" in str(found.fix)


def test_fabric_address_of_another_host(lab3: Lab) -> None:
    (found,) = trouble(preflight(lab3, hosts={"node1": {"fabric_address": lab3[2].address}}))
    assert where([found]) == [("fabric.address", "error", "node1", None)]
    assert lab3[1].address in str(found.fix)


def test_two_hosts_of_one_address_are_refused(make_lab: MakeLab) -> None:
    """Containers with published SSH ports are like this: SSH comes in, but a host that connects to its peer reaches
    itself.
    """
    lab = make_lab(2)
    for host in lab:
        network = lab.claim.networks[0]
        host.run(f"ip addr add 172.17.0.2/16 dev eth0 && ip addr del {host.address}/{network.prefixlen} dev eth0")
        host.run(f"ip route add local {host.address} dev eth0 && ip route add {network} dev eth0")
    report = preflight(lab)
    assert report.exit_code == 3
    assert where(trouble(report)) == [("fabric.address", "error", name, None) for name in ("node0", "node1")]
    assert "172.17.0.2 (eth0) is also an address of node1" in trouble(report)[0].message
    passed = {finding.check for finding in report.findings if finding.severity is Severity.OK}
    assert {
        check for check in passed if check.startswith(("mesh.", "fabric.")) and check != "fabric.interface"
    } == set()


def test_fabric_address_by_name(lab3: Lab) -> None:
    report = preflight(lab3, hosts={"node1": {"fabric_address": "node1"}})
    assert where(trouble(report)) == []
    assert report.fabric["node1"].address == lab3[1].address
    (found,) = trouble(preflight(lab3, hosts={"node1": {"fabric_address": "nosuchname"}}))
    assert where([found]) == [("fabric.address", "error", "node1", None)]


@pytest.mark.full(covered_by="tests/lab_preflight/test_links.py::test_big_packets_lost_in_one_direction")
def test_mtu_black_hole(fabric_lab: Lab) -> None:
    """Each of the transfers that stall is waited for."""
    fabric_lab[1].mtu_black_hole(1300, interface="eth1")
    (found,) = trouble(preflight(fabric_lab, count=2, defaults={"interface": "eth1"}))
    assert (found.check, found.severity.value, {found.host, found.peer}) == ("mesh.mtu", "error", {"node0", "node1"})
    run_fix(found, next(host for host in fabric_lab if host.name == found.host))
    assert where(trouble(preflight(fabric_lab, count=2, defaults={"interface": "eth1"}))) == []


def test_big_packets_lost_in_one_direction(lab3: Lab) -> None:
    for host in lab3:
        host.run("ip link set eth0 gso_max_segs 1")
        host.slow("100mbit")  # sent packet by packet, the speed depends on the processors, and a link may seem slow
    lab3[1].firewall(f"ip saddr {lab3[2].address} meta length > 1300 drop")
    (found,) = trouble(preflight(lab3))
    lab3[1].clear_firewall()
    assert where([found]) in ([("mesh.mtu", "error", "node2", "node1")], [("mesh.mtu", "error", "node1", "node2")])
    assert found.evidence["directions"] == [["node2", "node1"]]


def test_slow_link(lab3: Lab) -> None:
    lab3[2].slow("20mbit")
    report = preflight(lab3)
    found = [one for one in trouble(report, speeds=True) if one.check == "mesh.bandwidth"]
    assert {one.severity.value for one in found} == {"warning"}
    # Either of its links: a busy machine may not measure both, and may slow down other links too.
    assert any("node2" in link for one in found for link in one.evidence["links"])
    assert report.exit_code == 0


def test_addresses_found_on_a_second_network(fabric_lab: Lab) -> None:
    """SSH comes in by eth0, and the nodes keep each other out there."""
    for host in fabric_lab:
        host.firewall(*(f'iifname "eth0" ip saddr {peer.address} drop' for peer in fabric_lab if peer is not host))
    report = preflight(fabric_lab)
    assert where(trouble(report)) == []
    assert {host: entry.interface for host, entry in report.fabric.items()} == dict.fromkeys(
        ("node0", "node1", "node2"), "eth1"
    )
    assert {finding.check for finding in infos(report)} == {"fabric.address"}
