"""What the nodes see of each other: the address and interface of each node, every port, link and packet size.

The verdicts read the mesh that the stage measured (``View.mesh``) and the firewalls it read (``View.firewalls``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.links import judge_bandwidth, judge_bulk, judge_latency
from ddpctl.checks.ports import judge_ports
from ddpctl.checks.strangers import judge_identity, judge_route
from ddpctl.spec.fabric import HostNetwork, host_network, is_literal
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Mesh

BLOCKED = frozenset({"refused", "rejected", "dropped"})


def network_question(want: Want) -> Question:
    return Question("network", {"names": list(want.fabric_names)} if want.fabric_names else {})


def network_of(view: View) -> Callable[[Target], HostNetwork | None]:
    """How each host's network is read from the answers; None for a host that did not tell."""
    answers = view.values(lambda target, want: network_question(want))

    def read(target: Target) -> HostNetwork | None:
        value = answers.get(target.name)
        if value is None:
            return None
        wanted = _resolved(view, target)
        return host_network(target.name, value, wanted=wanted, interface=target.interface, local=target.local)

    return read


def _resolved(view: View, target: Target) -> tuple[str, ...]:
    """The inventory's fabric address of a host; a name as the other hosts see it, never as loopback."""
    name = target.fabric_address
    if name is None or is_literal(name):
        return (name,) if name else ()
    answers = view.values(lambda _, want: network_question(want))
    found = [address for answer in answers.values() for address in answer["names"].get(name, ())]
    return tuple(dict.fromkeys(a for a in found if not ipaddress.ip_address(a).is_loopback))


def hosts_to_read(mesh: Mesh) -> tuple[str, ...]:
    """The hosts whose firewalls may explain a failed connection: both ends of it."""
    ends = [host for dial in mesh.dials if dial.status in BLOCKED for host in (dial.peer, dial.dialer)]
    return tuple(dict.fromkeys(ends))


# --- the node's own address and interface ----------------------------------------------------------------------------


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (network_question(want),)


def _ask_nothing(target: Target, want: Want) -> Iterable[Question]:
    return ()


def _judge_address(view: View) -> Iterable[Finding]:
    read = network_of(view)
    for target in view.targets:
        network = read(target)
        if network is None:
            continue
        if target.fabric_address and not network.wanted:
            yield Finding(
                "fabric.address",
                Severity.ERROR,
                f"fabric_address {target.fabric_address} has no address on any node",
                target.name,
                fix="write the address itself as `fabric_address:`, or add the name to /etc/hosts on every node",
            )
            continue
        foreign = list(_not_owned(network)) if target.interface is None and len(view.targets) > 1 else []
        yield from foreign
        if view.mesh is not None and not foreign and _interface_fault(network) is None:
            yield from _other_address(view.mesh, network)


def _not_owned(network: HostNetwork) -> Iterable[Finding]:
    own = {entry.address: entry.interface for entry in network.addresses}
    if network.wanted and not any(address in own for address in network.wanted):
        listing = ", ".join(f"{address} ({interface})" for address, interface in own.items())
        yield Finding(
            "fabric.address",
            Severity.ERROR,
            f"no interface of {network.host} has the fabric address {network.wanted[0]}",
            network.host,
            fix=f"set `fabric_address:` of {network.host} to one of its own, or leave it out: {listing}",
            evidence={"wanted": list(network.wanted), "addresses": own},
        )


def _other_address(mesh: Mesh, network: HostNetwork) -> Iterable[Finding]:
    """The nodes do not reach the address that the inventory names or that SSH came in by, but they reach another."""
    better = mesh.reached.get(network.host)
    chosen = mesh.fabric.get(network.host)
    if better:
        tried = chosen.address if chosen else "none"
        where = network.owner(better[0])
        key = "interface" if network.interface else "fabric_address"
        value = network.interface if network.interface else tried
        yield Finding(
            "fabric.address",
            Severity.ERROR,
            f"the other nodes do not reach {network.host} at {tried} (`{key}: {value}`), but at {better[0]} on {where}",
            network.host,
            fix=f"leave `{key}:` of {network.host} out, or set it to {where if network.interface else better[0]}",
            evidence={"tried": tried, "reached": list(better)},
        )
    elif (
        chosen
        and network.ssh_address not in (None, chosen.address)
        and not network.wanted
        and network.interface is None
        and len(mesh.hosts) > 1
    ):
        yield Finding(
            "fabric.address",
            Severity.INFO,
            f"SSH comes in at {network.ssh_address}, which the other nodes do not all reach; they use {chosen.address} "
            f"on {chosen.interface}",
            network.host,
            evidence={"ssh": network.ssh_address, "chosen": chosen.address},
        )


def _judge_interface(view: View) -> Iterable[Finding]:
    read = network_of(view)
    for target in view.targets:
        network = read(target)
        if network is None or network.interface is None:
            continue
        names = sorted({entry.interface for entry in network.addresses if not entry.loopback and entry.up})
        message = _interface_fault(network)
        if message:
            yield Finding(
                "fabric.interface",
                Severity.ERROR,
                message,
                network.host,
                fix=f"leave `interface:` of {network.host} out, or set it to one of {', '.join(names) or 'none'}",
                evidence={"interface": network.interface, "interfaces": names},
            )


def _interface_fault(network: HostNetwork) -> str | None:
    """What is wrong with the interface that the inventory names."""
    if network.interface is None:
        return None
    mine = [entry for entry in network.addresses if entry.interface == network.interface]
    if not mine:
        return f"there is no interface {network.interface} with an address"
    if not any(entry.up for entry in mine):
        return f"interface {network.interface} is down"
    if network.wanted and not any(entry.address in network.wanted for entry in mine):
        owner = network.owner(network.wanted[0])
        where = f"it is on {owner}" if owner else f"no interface of {network.host} has it"
        return f"interface {network.interface} does not have the fabric address {network.wanted[0]}: {where}"
    return None


ADDRESS = Check(
    "fabric.address",
    "every node has an address that the others reach",
    _ask,
    _judge_address,
    Doc(
        cause="`fabric_address:` in the inventory is no address of that node, or one that the others do not reach: a "
        "container bridge (docker0 has the same address everywhere), a VPN, a management network.",
        symptom="client socket has timed out after 900000ms while trying to connect to (10.0.0.5, 29500); or Gloo "
        "connectFullMesh failed ... remote=[172.17.0.1]",
        fix="Leave `fabric_address:` out and ddpctl takes the one that answers, or write the right one.",
    ),
)
INTERFACE = Check(
    "fabric.interface",
    "the interface named in the inventory has the node's address",
    _ask,
    _judge_interface,
    Doc(
        cause="`interface:` names an interface that this node does not have (names differ between machines), that is "
        "down, or that does not own the fabric address.",
        symptom="Gloo: Unable to find address for: eth9; NCCL: Bootstrap : no socket interface found",
        fix="Leave `interface:` out, so that ddpctl sets it for each node, or write it for the node that differs.",
    ),
)
PORTS = Check(
    "mesh.ports",
    "every node reaches the ports that the job uses on every other",
    _ask_nothing,
    judge_ports,
    Doc(
        cause="A firewall on a node, or a filter on the way, drops or rejects connections to the master port, to the "
        "port by which the nodes watch each other, or to ephemeral ports. gloo and NCCL connect every pair of nodes on "
        "ports that the kernel picks (ip_local_port_range): a firewall that opens SSH and the master port alone lets "
        "the rendezvous succeed and the job hang. Under gloo the node with the smaller address listens and the other "
        "one connects, so a closed direction that is never used is only mentioned; under NCCL it is an error.",
        symptom="client socket has timed out after 900000ms while trying to connect to (HOST, 29500) on a node; Timed "
        "out after 901 seconds waiting for clients. 1/2 clients joined on the master; init_process_group hangs (gloo: "
        "5 times its timeout); Gloo connectFullMesh failed ... Connect timeout [none]; NCCL: socketPollConnect: "
        "connect returned No route to host, retrying",
        fix="ddpctl reads the firewall and prints the command for it (nft, iptables, ufw, firewalld), limited to the "
        "cluster's addresses and the job's ports. It never runs it. To confine the range: sysctl -w "
        'net.ipv4.ip_local_port_range="50000 51000" on every node, and open that.',
    ),
)
ROUTE = Check(
    "mesh.route",
    "every node has a route to every other",
    _ask_nothing,
    judge_route,
    Doc(
        cause="A node has no route to another's fabric address, or nobody answers there on its local network, though "
        "the controller reaches both: two networks, a wrong netmask, a missing route.",
        symptom="No route to host; Network is unreachable; client socket has timed out",
        fix="Add the route (`ip route get ADDRESS` on the node shows what it does now), or set `fabric_address:` to an "
        "address in a network that all nodes share.",
    ),
)
IDENTITY = Check(
    "mesh.identity",
    "the right node answers at every address",
    _ask_nothing,
    judge_identity,
    Doc(
        cause="Another node, or a program that is no part of the job, answers at a node's address: an address given "
        "twice, a cloned machine, a port forwarding (a container's published port), a proxy.",
        symptom="a hang of a minute and more without a useful word; Connection reset by peer",
        fix="Find who owns the address (`arping`, `ip neigh`), remove the forwarding, or use another port.",
    ),
)
BULK = Check(
    "mesh.mtu",
    "big packets arrive in both directions",
    _ask_nothing,
    judge_bulk,
    Doc(
        cause="Small messages pass and big packets vanish: an interface's MTU is larger than what a switch, tunnel or "
        "VPN on the way carries, and the message that would say so is filtered.",
        symptom="rendezvous and small tensors work, then: Read error ... Connection timed out; Timed out waiting "
        "1800000ms for recv operation to complete",
        fix="Set the MTU that passed (ddpctl finds it by trying): `sudo ip link set dev eth0 mtu 1500`.",
    ),
)
BANDWIDTH = Check(
    "mesh.bandwidth",
    "no link is much slower than the others",
    _ask_nothing,
    judge_bandwidth,
    Doc(
        cause="A link gives less than half of the median of all, twice in a row: a port that fell back to 100 Mbit/s, "
        "a bad cable, the management network instead of the fabric, a busy neighbour.",
        symptom="the job runs, slowly: every step waits for the slowest link",
        fix="`ethtool eth0` shows what was negotiated; set `interface:` or `fabric_address:` if it is the wrong one.",
    ),
)
LATENCY = Check(
    "mesh.latency",
    "no link takes much longer than the others",
    _ask_nothing,
    judge_latency,
    Doc(
        cause="A round trip takes three times the median and at least 2 ms more, twice in a row: a detour, another "
        "site, power saving on the interface.",
        symptom="small all-reduces are slow",
        fix="`traceroute` between the two nodes; nodes of one job belong into one site.",
    ),
)

CHECKS = (ADDRESS, INTERFACE, ROUTE, IDENTITY, PORTS, BULK, BANDWIDTH, LATENCY)
MESH_IDS = frozenset(check.id for check in CHECKS)
