"""Each node's address and interface: the one that the other nodes reach, and that the job is told."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.meshwords import network_question, not_dialled
from ddpctl.spec.fabric import HostNetwork, candidates, host_network, is_literal
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Mesh
from ddpctl.spec.ranges import fold


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


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (network_question(want),)


def _judge_address(view: View) -> Iterable[Finding]:
    yield from not_dialled("fabric.address", view)
    read = network_of(view)
    yield from _homeless([network for network in map(read, view.targets) if network is not None])
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


def _homeless(networks: Sequence[HostNetwork]) -> Iterable[Finding]:
    """Hosts without any address that the others could dial: what they have, others have too (two containers that are
    both 172.17.0.2)."""
    if len(networks) < 2:
        return
    usable = candidates(networks)
    for network in networks:
        if usable[network.host] or _interface_fault(network) is not None:
            continue
        own = [entry for entry in network.addresses if entry.up and not entry.loopback]
        shared = [f"{entry.address} ({entry.interface}) is {_twins(entry.address, network, networks)}" for entry in own]
        yield Finding(
            "fabric.address",
            Severity.ERROR,
            f"{network.host} has no address of its own that the others could reach: "
            f"{', '.join(shared) or 'no interface but loopback is up'}",
            network.host,
            fix="give each host an address of its own in a network that all of them are in; a container gets one by "
            "`--network host`, a macvlan or an overlay network",
            evidence={"addresses": {entry.address: entry.interface for entry in own}},
        )


def _twins(address: str, network: HostNetwork, networks: Sequence[HostNetwork]) -> str:
    hosts = [other.host for other in networks if other is not network and other.owner(address)]
    return f"also an address of {fold(hosts)}"


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

CHECKS = (ADDRESS, INTERFACE)
