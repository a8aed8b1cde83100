"""Chooses the fabric address of a node: the address that the other nodes use, and the interface that owns it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpctl.spec.limits import MOST_ADDRESSES
from ddpctl.spec.mesh import OK, Dial, Fabric

LOOPBACK = "127.0.0.1"
# Interfaces of container engines and hypervisors: their address is the same on every machine, and cannot be reached.
_BRIDGE = re.compile(r"(docker|br-|virbr|veth|cni|flannel|cali|podman|lxc|lxd|vmnet|vboxnet|kube|cbr)")


def is_literal(address: str) -> bool:
    """Return whether ``address`` is an IP address and not a name."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class NodeAddress:
    """An address of a node. ``prefix``: bits of its network. ``speed``: Mbit/s.

    ``None``: the driver does not report it.
    """

    address: str
    interface: str
    family: int = 4
    prefix: int = 24
    up: bool = True
    mtu: int | None = None
    speed: int | None = None

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def container_bridge(self) -> bool:
        return bool(_BRIDGE.match(self.interface))


@dataclass(frozen=True)
class HostNetwork:
    """A node's network. ``configured`` (resolved addresses) and ``interface`` come from the inventory."""

    host: str
    addresses: tuple[NodeAddress, ...]
    ssh_address: str | None = None
    configured: tuple[str, ...] = ()
    interface: str | None = None
    local: bool = False
    port_range: tuple[int, int] = (32768, 60999)

    def shares(self, address: str, others: Iterable[str]) -> bool:
        """Return whether any of the ``others`` is in the network of this node's ``address``."""
        own = [entry for entry in self.addresses if entry.address == address]
        nets = [ipaddress.ip_interface(f"{entry.address}/{entry.prefix}").network for entry in own]
        return any(ipaddress.ip_address(other) in net for net in nets for other in others)

    def owner(self, address: str) -> str | None:
        """Return the interface that has this address."""
        return next((entry.interface for entry in self.addresses if entry.address == address), None)


def host_network(
    host: str,
    value: Mapping[str, Any],
    *,
    configured: Iterable[str] = (),
    interface: str | None = None,
    local: bool = False,
) -> HostNetwork:
    """Return the network of a host from its answer to the question ``network``."""
    addresses = tuple(
        NodeAddress(
            address=entry["address"],
            interface=entry["interface"],
            family=int(entry["family"]),
            prefix=int(entry["prefix"]),
            up=bool(entry["up"]) and bool(entry.get("carrier", True)),
            mtu=entry.get("mtu"),
            speed=entry.get("speed"),
        )
        for entry in value["addresses"]
    )
    low, high = value["port_range"]
    return HostNetwork(
        host, addresses, value.get("ssh_address"), tuple(configured), interface, local, (int(low), int(high))
    )


def candidates(networks: Sequence[HostNetwork]) -> dict[str, tuple[str, ...]]:
    """Return the addresses of every node that are worth trying, the best first, at most MOST_ADDRESSES for a node.

    An address that several nodes have (docker0, virbr0, a cloned image) is worth trying for no node. If all hosts are
    this machine, loopback is the fabric.
    """
    if all(network.local for network in networks):
        return {network.host: network.configured or (LOOPBACK,) for network in networks}
    seen: dict[str, int] = {}
    for network in networks:
        for address in {entry.address for entry in network.addresses}:
            seen[address] = seen.get(address, 0) + 1
    common = _common_networks(networks)
    return {network.host: _ranked(network, seen, common)[:MOST_ADDRESSES] for network in networks}


def other_addresses(networks: Sequence[HostNetwork]) -> dict[str, tuple[str, ...]]:
    """Return the addresses to try if the first candidate fails.

    The remaining candidates come first. If the inventory names a node's address or interface, the other addresses of
    the node follow, so that an error can name the right address.
    """
    if all(network.local for network in networks):
        return {}
    free = candidates([replace(network, configured=(), interface=None) for network in networks])
    first = candidates(networks)
    return {
        host: tuple(address for address in dict.fromkeys((*first[host], *free[host])) if address not in first[host][:1])
        for host in first
    }


def _ranked(network: HostNetwork, seen: Mapping[str, int], common: Mapping[str, int]) -> tuple[str, ...]:
    if network.configured:
        return network.configured
    usable = [entry for entry in network.addresses if entry.up and not entry.loopback]
    if network.interface:
        usable = [entry for entry in usable if entry.interface == network.interface]
    else:
        usable = [entry for entry in usable if seen[entry.address] == 1]

    def order(entry: NodeAddress) -> tuple[Any, ...]:
        return (
            entry.container_bridge,
            entry.address != network.ssh_address,
            -common.get(_network_of(entry), 0),
            ipaddress.ip_address(entry.address).is_link_local,  # maybe that of a management controller
            entry.family,
            -(entry.speed or 0),
        )

    return tuple(entry.address for entry in sorted(usable, key=order))


def _network_of(entry: NodeAddress) -> str:
    return str(ipaddress.ip_interface(f"{entry.address}/{entry.prefix}").network)


def _common_networks(networks: Sequence[HostNetwork]) -> dict[str, int]:
    """Return the number of nodes that have an address in each network."""
    count: dict[str, int] = {}
    for network in networks:
        for name in {_network_of(entry) for entry in network.addresses if not entry.loopback}:
            count[name] = count.get(name, 0) + 1
    return count


def choose_fabric(networks: Sequence[HostNetwork], dials: Iterable[Dial]) -> dict[str, Fabric]:
    """Return, for every node, the address that most peers reached; between equal addresses, the better candidate.

    So without dials (a single host, or no mesh) the best candidate is chosen. Nodes without candidates are left out.
    """
    ranked = candidates(networks)
    reached: dict[tuple[str, str], set[str]] = {}
    for dial in dials:
        if dial.status == OK:
            reached.setdefault((dial.peer, dial.address), set()).add(dial.dialer)
    chosen: dict[str, Fabric] = {}
    for network in networks:
        addresses = ranked[network.host]
        if addresses:
            best = max(addresses, key=lambda address: len(reached.get((network.host, address), ())))
            chosen[network.host] = Fabric(best, _interface(network, best))
    return chosen


def _interface(network: HostNetwork, address: str) -> str | None:
    """Return the interface from the inventory, else the interface that owns the address."""
    if network.interface:
        return network.interface
    owner = network.owner(address)
    if owner is None and ipaddress.ip_address(address).is_loopback:
        return next((entry.interface for entry in network.addresses if entry.loopback), None)
    return owner
