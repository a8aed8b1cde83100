"""Which node dials which node, and which address of a node is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.fabric import HostNetwork, NodeAddress, candidates, choose_fabric, other_addresses
from ddpctl.spec.mesh import OK, Dial, Mesh, Speed, late_links, slow_links, suspects
from ddpctl.spec.schedule import schedule, tournament
from tests.examples import few

sizes = st.integers(min_value=1, max_value=90)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


@given(sizes)
def test_every_pair_meets_once_and_nobody_twice_in_a_round(count: int) -> None:
    rounds = tournament(names(count))
    met = Counter(frozenset(pair) for pairs in rounds for pair in pairs)
    assert len(met) == count * (count - 1) // 2
    assert set(met.values()) <= {1}
    for pairs in rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))


@given(st.integers(min_value=65, max_value=400), st.integers(min_value=0, max_value=399), st.text(max_size=5))
@few
def test_sample_gives_every_host_its_partners_and_little_to_do(count: int, where: int, seed: str) -> None:
    hosts = names(count)
    master = hosts[where % count]
    order = schedule(hosts, master, seed)
    assert order == schedule(hosts, master, seed)
    for place, host in enumerate(hosts):
        targets = order.targets[host]
        assert len(targets) == len(set(targets)) <= 16
        assert host not in targets
        assert host == master or master in targets
        ring = {hosts[place - 1], hosts[(place + 1) % count]}
        assert ring <= set(targets)
        partners = set(targets) - ring - {master}
        assert 8 <= len(partners) <= 16
        assert all(host in order.targets[peer] for peer in partners | ring)
    assert order.note


@given(st.integers(min_value=1, max_value=64))
def test_mesh_of_few_hosts_is_whole(count: int) -> None:
    hosts = names(count)
    order = schedule(hosts, hosts[0])
    assert order.note is None
    assert order.pairs == {(one, other) for one in hosts for other in hosts if one != other}


@pytest.mark.parametrize("count", [100, 300, 1000])
def test_sample_meets_any_filter_between_two_racks(count: int) -> None:
    """Racks of 32 hosts with names in a row: whichever two racks are kept apart, some sampled link joins them."""
    hosts = names(count)
    racks = {host: place // 32 for place, host in enumerate(hosts)}
    joined = {(racks[one], racks[other]) for one, other in schedule(hosts, hosts[0], "lab").pairs}
    full = range(count // 32)
    assert joined >= {(a, b) for a in full for b in full}


def node(host: str, *addresses: tuple[str, str], **keys: object) -> HostNetwork:
    entries = (NodeAddress("127.0.0.1", "lo", prefix=8), *(NodeAddress(a, i) for i, a in addresses))
    return HostNetwork(host, entries, **keys)  # type: ignore[arg-type]


def dial(dialer: str, peer: str, address: str, status: str = OK) -> Dial:
    return Dial(dialer, peer, address, 29500, status)


def test_address_that_several_nodes_have_belongs_to_none() -> None:
    nodes = [node(f"n{i}", ("docker0", "172.17.0.1"), ("eth0", f"10.0.0.{i}")) for i in range(2)]
    assert candidates(nodes) == {"n0": ("10.0.0.0",), "n1": ("10.0.0.1",)}


def test_address_of_ssh_comes_first_and_the_one_that_answers_is_taken() -> None:
    nodes = [
        node(f"n{i}", ("eth1", f"10.1.0.{i}"), ("eth0", f"10.0.0.{i}"), ssh_address=f"10.0.0.{i}") for i in range(3)
    ]
    assert candidates(nodes)["n1"] == ("10.0.0.1", "10.1.0.1")
    dials = [dial(a, b, f"10.1.0.{b[1]}") for a in ("n0", "n1", "n2") for b in ("n0", "n1", "n2") if a != b]
    dials.append(dial("n0", "n1", "10.0.0.1"))
    chosen = choose_fabric(nodes, dials)
    assert {host: (entry.address, entry.interface) for host, entry in chosen.items()} == {
        "n0": ("10.1.0.0", "eth1"),
        "n1": ("10.1.0.1", "eth1"),
        "n2": ("10.1.0.2", "eth1"),
    }
    assert choose_fabric(nodes, [])["n1"].address == "10.0.0.1"


def test_hosts_in_a_ring_of_cables_meet_in_the_network_that_all_share() -> None:
    cables = (
        (("a", "192.168.0.1"), ("b", "192.168.2.2")),
        (("a", "192.168.0.2"), ("b", "192.168.1.1")),
        (("a", "192.168.1.2"), ("b", "192.168.2.1")),
    )
    nodes = [node(f"n{i}", *ends, ("eth0", f"10.0.0.{i}"), ssh_address=f"10.0.0.{i}") for i, ends in enumerate(cables)]
    assert [first for first, *_ in candidates(nodes).values()] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    unreported = [replace(found, ssh_address=None) for found in nodes]
    assert [first for first, *_ in candidates(unreported).values()] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]


def test_what_the_inventory_says_is_what_is_used_and_the_rest_only_helps_to_explain() -> None:
    nodes = [
        node("n0", ("eth0", "10.0.0.1"), ("eth1", "10.1.0.1"), interface="eth1"),
        node("n1", ("eth0", "10.0.0.2"), configured=("10.9.9.9",)),
    ]
    assert candidates(nodes) == {"n0": ("10.1.0.1",), "n1": ("10.9.9.9",)}
    assert other_addresses(nodes) == {"n0": ("10.0.0.1",), "n1": ("10.0.0.2",)}
    assert choose_fabric(nodes, [dial("n0", "n1", "10.0.0.2")])["n1"].address == "10.9.9.9"


def test_this_machine_alone_uses_loopback() -> None:
    chosen = choose_fabric([node("a", local=True), node("b", ("eth0", "10.0.0.1"), local=True)], [])
    assert {(entry.address, entry.interface) for entry in chosen.values()} == {("127.0.0.1", "lo")}


def mesh_of(rates: dict[tuple[str, str], float]) -> Mesh:
    speeds = tuple(Speed(a, b, 0.1, value, None) for (a, b), value in rates.items())
    return Mesh(hosts=("a", "b", "c"), speeds=speeds)


def test_slow_is_under_half_the_median_and_never_where_the_processor_is_the_limit() -> None:
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    assert slow_links(mesh_of(dict.fromkeys(pairs, 940.0) | {("a", "b"): 400.0})) == {("a", "b"): 400.0}
    assert slow_links(mesh_of(dict.fromkeys(pairs, 940.0) | {("a", "b"): 500.0})) == {}
    assert slow_links(mesh_of(dict.fromkeys(pairs, 30000.0) | {("a", "b"): 5000.0})) == {}
    assert slow_links(mesh_of(dict.fromkeys(pairs, 9000.0) | {("a", "b"): 3100.0})) == {}
    assert slow_links(mesh_of(dict.fromkeys(pairs, 9000.0) | {("a", "b"): 2100.0})) == {("a", "b"): 2100.0}
    assert set(slow_links(mesh_of(dict.fromkeys(pairs, 9.0)))) == set(pairs)
    assert suspects(mesh_of(dict.fromkeys(pairs, 940.0) | {("a", "b"): 400.0})) == (("a", "b"),)


def test_a_link_that_swallows_bulk_data_is_neither_slow_nor_late_as_well() -> None:
    """It was measured among the other nodes only, so its numbers say nothing."""
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    mesh = mesh_of(dict.fromkeys(pairs, 940.0) | {("a", "b"): 10.0, ("b", "a"): 10.0})
    first, *others = mesh.speeds
    late = (replace(first, rtt_ms=9.0), *others)
    assert set(late_links(replace(mesh, speeds=late))) == {("a", "b")}
    holed = replace(mesh, speeds=(replace(late[0], push="stalled"), *others))
    assert slow_links(holed) == late_links(holed) == {}
    assert suspects(holed) == ()
