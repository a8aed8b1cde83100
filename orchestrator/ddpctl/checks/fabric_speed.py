"""The speed of the job's interface, and whether the job's connections really use it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence

from ddpctl.checks import hca, report
from ddpctl.checks.base import ON_HOSTS, Check, View
from ddpctl.checks.fabric import networks_of
from ddpctl.checks.limits import FASTER_TIMES
from ddpctl.checks.mesh import mesh_check, network_question, of_mesh, one_host
from ddpctl.checks.mesh.faults import find_wrong_address
from ddpctl.spec.fabric import HostNetwork, NodeAddress
from ddpctl.spec.finding import Finding
from ddpctl.spec.fold import group_by
from ddpctl.spec.mesh import OK, Fabric, Mesh
from ddpctl.spec.ranges import fold_names

_VPN = re.compile(r"(tailscale|wg|tun|tap|zt|nebula|utun|ppp|netmaker)")


# --- a faster network ------------------------------------------------------------------------------------------------


@of_mesh
def _judge_speed(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report that another network, in which every host has an address, is faster than the chosen network."""
    networks = list(networks_of(view).values())
    if len(networks) < 2 or _exempt_speed(view):
        return
    mine = {network.host: entry for network in networks if (entry := _entry(network, mesh.fabric))}
    if len(mine) < len(networks):
        return
    shared = [found for found in _shared(networks) if not set(found.values()) & set(mine.values())]
    better = [found for found in shared if _is_better(found, mine)]
    unknown = [found for found in (mine, *shared) if _speed(found) is None]
    if better:
        yield _slower(mine, max(better, key=lambda found: _speed(found) or 0))
    elif shared and unknown:
        names = ", ".join(dict.fromkeys(map(_names, unknown)))
        yield report.unknown(None, f"not checked: no driver says how fast {names} is")


def _entry(network: HostNetwork, fabric: Mapping[str, Fabric]) -> NodeAddress | None:
    mine = fabric.get(network.host)
    return next((entry for entry in network.addresses if mine and entry.address == mine.address), None)


def _shared(networks: Sequence[HostNetwork]) -> list[dict[str, NodeAddress]]:
    """Return the networks in which every host has an address of its own: host -> address."""
    found: dict[str, dict[str, NodeAddress]] = {}
    for network in networks:
        for entry in network.addresses:
            if entry.up and not entry.loopback and not entry.container_bridge:
                net = ipaddress.ip_interface(f"{entry.address}/{entry.prefix}").network
                if net.prefixlen < net.max_prefixlen:
                    found.setdefault(str(net), {})[network.host] = entry
    return [
        entries
        for entries in found.values()
        if len(entries) == len(networks) == len({entry.address for entry in entries.values()})
    ]


def _speed(entries: Mapping[str, NodeAddress]) -> int | None:
    """Return the speed of the slowest host, if all drivers report it. A tunnel reports any value, so it is unknown."""
    speeds = [None if _VPN.match(entry.interface) else entry.speed for entry in entries.values()]
    return min((speed for speed in speeds if speed is not None), default=None) if None not in speeds else None


def _is_better(found: Mapping[str, NodeAddress], mine: Mapping[str, NodeAddress]) -> bool:
    theirs, ours = _speed(found), _speed(mine)
    if theirs is None:
        return False
    tunnels = any(_VPN.match(entry.interface) for entry in mine.values())
    return tunnels or (ours is not None and theirs >= FASTER_TIMES * ours)


def _slower(mine: Mapping[str, NodeAddress], better: Mapping[str, NodeAddress]) -> Finding:
    speed = _speed(mine)
    own = f"at {_words(speed)}" if speed else "a tunnel"
    first = next(iter(better.values())).interface
    return report.warning(
        None,
        f"the nodes talk over {_names(mine)} ({own}), and all of them have {_names(better)} too, at "
        f"{_words(_speed(better) or 0)}",
        fix=f"if they reach each other there, set `interface: {first}` for the hosts (or `fabric_address:`)",
        evidence={
            "chosen": {host: [entry.interface, entry.speed] for host, entry in mine.items()},
            "faster": {host: [entry.interface, entry.speed] for host, entry in better.items()},
        },
    )


def _names(entries: Mapping[str, NodeAddress]) -> str:
    return " or ".join(sorted({entry.interface for entry in entries.values()}))


def _words(mbit: int) -> str:
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def _exempt_speed(view: View) -> Mapping[str, str]:
    """Exempt hosts with RDMA: NCCL then sends data over RDMA and uses the interface only to set up connections."""
    if len(view.targets) == 1:
        return one_host(view)
    rdma = hca.selected_ports(view)
    return dict.fromkeys(rdma, "NCCL has RDMA on every host") if len(rdma) == len(view.answers) else {}


# --- where connections really leave ----------------------------------------------------------------------------------


@of_mesh
def _judge_source(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report a host with connections that leave from another address than its fabric address.

    gloo and NCCL take the first address of the interface, the kernel takes the address of the route. Each may differ
    from the fabric address.
    """
    dials = group_by(lambda dial: dial.dialer, (dial for dial in mesh.dials if dial.status == OK))
    for host, network in networks_of(view).items():
        mine = mesh.fabric.get(host)
        if mine is None or len(mesh.hosts) < 2 or network.local:
            continue
        if find_wrong_address(mesh, host) or network.owner(mine.address) is None:
            continue  # reported by fabric.address
        first = _first_address(network, mine)
        if first is not None:
            yield _another_first(host, mine, first)
            continue
        away = {
            dial.peer: (dial.local, dial.interface)
            for dial in dials.get(host, ())
            if dial.local not in (None, mine.address)
        }
        if away:
            yield _other_interface(host, mine, away)


def _first_address(network: HostNetwork, mine: Fabric) -> NodeAddress | None:
    """Return the first address of the interface if it is not the fabric address."""
    own = [entry for entry in network.addresses if entry.interface == mine.interface]
    if not own or own[0].address == mine.address or all(entry.address != mine.address for entry in own):
        return None
    return own[0]


def _another_first(host: str, mine: Fabric, first: NodeAddress) -> Finding:
    other_family = (":" in mine.address) != (":" in first.address)
    if other_family:
        fix = (
            "for NCCL set `env: {NCCL_SOCKET_FAMILY: AF_INET6}`; gloo has no such setting: take the IPv4 address off "
            "the interface, or set `fabric_address:` to IPv4 addresses"
        )
    else:
        fix = (
            f"set `fabric_address:` of {host} to {first.address} if the others reach that, or give {mine.address} an "
            "interface of its own, or make it the interface's first address"
        )
    return report.warning(
        host,
        f"{mine.interface} has {first.address} before the fabric address {mine.address}: gloo and NCCL take the first "
        "address of an interface",
        fix=fix,
        evidence={"interface": mine.interface, "first": first.address, "fabric": mine.address},
    )


def _other_interface(host: str, mine: Fabric, away: Mapping[str, tuple[str | None, str | None]]) -> Finding:
    ways = {interface: local for local, interface in away.values()}
    where = " and ".join(f"{interface} ({local})" for interface, local in ways.items())
    return report.warning(
        host,
        f"connections to {fold_names(list(away))} leave by {where}, not by {mine.interface} "
        f"({mine.address}), the interface "
        "that the job is given",
        fix="`ip route get` of their addresses shows why; give two interfaces in one network different metrics or "
        f"prefixes, or set `interface:` of {host} to the one that is used",
        evidence={"peers": list(away), "local": sorted({str(local) for local, _ in away.values()})},
    )


CHECKS = (
    Check(
        "fabric.speed",
        "the nodes talk over the fastest network that they share",
        _judge_speed,
        ask=(network_question, hca.PORTS),
        cause="ddpctl uses the address that SSH came in on, if the other nodes reach it. That may be a management "
        "network of 1 Gbit/s, or a VPN (tailscale), while all nodes share a faster network.",
        symptom="the job runs, slowly",
        fix="Name the fast interface in the inventory: `interface:` (or `fabric_address:`).",
        exempt=_exempt_speed,
    ),
    mesh_check(
        "fabric.source",
        "the job's connections have the fabric address",
        _judge_source,
        ask=(network_question,),
        cause="gloo and NCCL take the first address of the interface that they are given (NCCL: of the family in "
        "NCCL_SOCKET_FAMILY). If the fabric address is not the first (a second address, a /32 on lo, IPv6 beside "
        "IPv4), ranks announce another address. Or the route to the peers leaves by another interface, because two "
        "interfaces are in one network.",
        symptom="Connection refused or time-outs at an address that is in no configuration file; half the speed",
        fix="Another `fabric_address:` or `interface:`; NCCL_SOCKET_FAMILY=AF_INET6 for IPv6.",
        seen=ON_HOSTS,
    ),
)
