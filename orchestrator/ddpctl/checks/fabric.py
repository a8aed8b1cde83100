"""Each node's address and interface for the job, and the kernel's neighbour table.

fabric.speed and fabric.source are in fabric_speed.py.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, Target, View
from ddpctl.checks.gpu.in_use import uses_gloo
from ddpctl.checks.limits import NEIGHBOURS_GIVEN
from ddpctl.checks.mesh import fold_hosts, mesh_check, network_answer, network_question, report_not_dialled
from ddpctl.spec.fabric import HostNetwork, candidates, host_network, is_literal
from ddpctl.spec.finding import Finding
from ddpctl.spec.fold import group_by
from ddpctl.spec.mesh import Dial, Mesh
from ddpctl.spec.ranges import fold_names

_LARGER_TABLE = (
    "give the kernel a larger table. All containers of a machine share one: set it on the machine itself. It is lost "
    "at a reboot unless the same keys are in /etc/sysctl.d/"
)


def networks_of(view: View) -> dict[str, HostNetwork]:
    """Return host -> network, for every host that reported its network."""
    found: dict[str, HostNetwork] = {}
    for host, value in view.values(network_question).items():
        target = view.target(host)
        configured = _resolved(view, target)
        found[host] = host_network(host, value, configured=configured, interface=target.interface, local=target.local)
    return found


def _resolved(view: View, target: Target) -> tuple[str, ...]:
    """Return the inventory's fabric address of a host. All hosts resolve a name; loopback addresses are dropped."""
    name = target.fabric_address
    if name is None or is_literal(name):
        return (name,) if name else ()
    answers = view.values(network_question).values()
    found = [address for answer in answers for address in answer["names"].get(name, ())]
    return tuple(dict.fromkeys(a for a in found if not ipaddress.ip_address(a).is_loopback))


def _judge_address(view: View) -> Iterable[Finding]:
    yield from report_not_dialled(view)
    networks = networks_of(view)
    yield from _homeless(list(networks.values()))
    for host, network in networks.items():
        target = view.target(host)
        if target.fabric_address and not network.configured:
            yield report.error(
                target.name,
                f"fabric_address {target.fabric_address} has no address on any node",
                fix="write the address itself as `fabric_address:`, or add the name to /etc/hosts on every node",
            )
            continue
        foreign = list(_not_owned(network)) if target.interface is None and len(view.targets) > 1 else []
        yield from foreign
        if view.mesh is not None and not foreign and _interface_fault(network) is None:
            yield from _other_address(view.mesh, network)


def _homeless(networks: Sequence[HostNetwork]) -> Iterable[Finding]:
    """Report hosts without an address that the other hosts could dial.

    All of their addresses also belong to another host, as with two containers that are both 172.17.0.2.
    """
    if len(networks) < 2:
        return
    usable = candidates(networks)
    for network in networks:
        if usable[network.host] or _interface_fault(network) is not None:
            continue
        own = [entry for entry in network.addresses if entry.up and not entry.loopback]
        shared = [f"{entry.address} ({entry.interface}) is {_twins(entry.address, network, networks)}" for entry in own]
        yield report.error(
            network.host,
            f"{network.host} has no address of its own that the others could reach: "
            f"{', '.join(shared) or 'no interface but loopback is up'}",
            fix="give each host an address of its own in a network that all of them are in; a container gets one by "
            "`--network host`, a macvlan or an overlay network",
            evidence={"addresses": {entry.address: entry.interface for entry in own}},
        )


def _twins(address: str, network: HostNetwork, networks: Sequence[HostNetwork]) -> str:
    hosts = [other.host for other in networks if other is not network and other.owner(address)]
    return f"also an address of {fold_names(hosts)}"


def _not_owned(network: HostNetwork) -> Iterable[Finding]:
    own = {entry.address: entry.interface for entry in network.addresses}
    if network.configured and not any(address in own for address in network.configured):
        listing = ", ".join(f"{address} ({interface})" for address, interface in own.items())
        yield report.error(
            network.host,
            f"no interface of {network.host} has the fabric address {network.configured[0]}",
            fix=f"set `fabric_address:` of {network.host} to one of its own, or leave it out: {listing}",
            evidence={"wanted": list(network.configured), "addresses": own},
        )


def _other_address(mesh: Mesh, network: HostNetwork) -> Iterable[Finding]:
    """Report a host that the nodes reach only at another address than that of the inventory or of SSH."""
    better = mesh.reached.get(network.host)
    chosen = mesh.fabric.get(network.host)
    if better:
        tried = chosen.address if chosen else "none"
        where = network.owner(better[0])
        key = "interface" if network.interface else "fabric_address"
        value = network.interface if network.interface else tried
        yield report.error(
            network.host,
            f"the other nodes do not reach {network.host} at {tried} (`{key}: {value}`), but at {better[0]} on {where}",
            fix=f"leave `{key}:` of {network.host} out, or set it to {where if network.interface else better[0]}",
            evidence={"tried": tried, "reached": list(better)},
        )
    elif (
        chosen
        and network.ssh_address not in (None, chosen.address)
        and not network.configured
        and network.interface is None
        and len(mesh.hosts) > 1
    ):
        yield report.info(
            network.host,
            f"SSH comes in at {network.ssh_address}, which not all other nodes reach; they use {chosen.address} on "
            f"{chosen.interface}",
            evidence={"ssh": network.ssh_address, "chosen": chosen.address},
        )


def _judge_interface(view: View) -> Iterable[Finding]:
    for network in networks_of(view).values():
        names = sorted({entry.interface for entry in network.addresses if not entry.loopback and entry.up})
        yield from _judge_interface_variables(view, network, names)
        if network.interface is None:
            continue
        message = _interface_fault(network)
        if message:
            yield report.error(
                network.host,
                message,
                fix=f"leave `interface:` of {network.host} out, or set it to one of {', '.join(names) or 'none'}",
                evidence={"interface": network.interface, "interfaces": names},
            )


def _judge_interface_variables(view: View, network: HostNetwork, names: Sequence[str]) -> Iterable[Finding]:
    """Report the inventory's variables for interfaces that would leave gloo or NCCL without an interface."""
    env, backend = view.target(network.host).env, view.requirements.backend
    unused = {"GLOO_SOCKET_IFNAME": backend == "nccl", "NCCL_SOCKET_IFNAME": uses_gloo(view)}
    for variable in (name for name in unused if env.get(name) and not unused[name]):
        wanted = env[variable]
        missing = find_missing_interfaces(
            variable, wanted, {entry.interface for entry in network.addresses if entry.up}
        )
        if not missing:
            continue
        owner = network.owner(missing[0])
        why = f"takes a name, and {owner} has this address" if owner else "no such interface has an address here"
        yield report.error(
            network.host,
            f"{variable}={wanted} in the inventory: {why}",
            fix=f"leave {variable} out, because ddpctl sets it; or set it to {owner or ', '.join(names) or 'none'}",
            evidence={"variable": variable, "value": wanted, "interfaces": list(names)},
        )


def find_missing_interfaces(variable: str, wanted: str, names: Collection[str]) -> list[str]:
    """Return the parts of the variable's value that select no interface of ``names``.

    gloo needs every interface of its list. NCCL takes prefixes, or exact names after ``=``, and needs a single match; a
    list after ``^`` excludes. Source: NCCL's documentation of NCCL_SOCKET_IFNAME.
    """
    if variable == "GLOO_SOCKET_IFNAME":
        return [name for name in wanted.split(",") if name and name not in names]
    exact = wanted.startswith("=")
    parts = [part.partition(":")[0] for part in wanted.removeprefix("=").split(",")]
    if wanted.startswith("^") or any(
        name == part if exact else name.startswith(part) for part in parts for name in names
    ):
        return []
    return parts


def _interface_fault(network: HostNetwork) -> str | None:
    """Return the fault of the interface that the inventory names, if it has a fault."""
    if network.interface is None:
        return None
    mine = [entry for entry in network.addresses if entry.interface == network.interface]
    if not mine:
        return f"there is no interface {network.interface} with an address"
    if not any(entry.up for entry in mine):
        return f"interface {network.interface} is down"
    if network.configured and not any(entry.address in network.configured for entry in mine):
        owner = network.owner(network.configured[0])
        where = f"it is on {owner}" if owner else f"no interface of {network.host} has it"
        return f"interface {network.interface} does not have the fabric address {network.configured[0]}: {where}"
    return None


# --- the neighbour table ---------------------------------------------------------------------------------------------


def _judge_neighbours(view: View) -> Iterable[Finding]:
    """Report connections that failed because a neighbour table was full, and tables too small for the job."""
    yield from report_not_dialled(view)
    mesh = view.mesh or Mesh()
    full = _crowded(mesh)
    for host, dials in full.items():
        yield _overflow(view, mesh, host, dials)
    needs = _room(view, mesh)
    for target in view.targets:
        answer, need = network_answer(view, target.name), needs.get(target.name, 0)
        table = answer.get("neighbours")
        if answer and table is None:
            yield report.unknown(target.name, "not checked: the kernel did not give its size")
        elif table and target.name not in full and need > table["limit"]:
            yield _too_small(view, target.name, need, table)


def _crowded(mesh: Mesh) -> dict[str, list[Dial]]:
    """Return the failed connections by the host with the full table; if both tables were full, by the dialer."""

    def full(dial: Dial) -> str:
        table = mesh.neighbours.get(dial.dialer)
        return dial.dialer if table and table.overflows else dial.peer

    return group_by(full, (dial for dial in mesh.dials if dial in mesh.crowded_out))


def _room(view: View, mesh: Mesh) -> dict[str, int]:
    """Return, for each host, the number of other nodes in the network of its fabric address."""
    mine: dict[str, str] = {}
    for host, fabric in mesh.fabric.items():
        for entry in network_answer(view, host).get("addresses", ()):
            if entry["address"] == fabric.address and entry["family"] == 4:
                mine[host] = str(ipaddress.ip_network(f"{entry['address']}/{entry['prefix']}", strict=False))
    count = Counter(mine.values())
    return {host: count[net] - 1 for host, net in mine.items()}


def _overflow(view: View, mesh: Mesh, host: str, dials: list[Dial]) -> Finding:
    table = mesh.neighbours[host]
    others = tuple(dict.fromkeys(dial.peer if dial.dialer == host else dial.dialer for dial in dials))
    return report.error(
        host,
        f"{host} had no room for {table.overflows} neighbours "
        f"while connections to {fold_hosts(others, host, mesh)} failed: "
        f"its kernel's neighbour table holds {table.limit} (neighbour table overflow)",
        fix=_LARGER_TABLE,
        command=_command(view, host, 0),
        evidence={**vars(table), "peers": list(others)},
    )


def _too_small(view: View, host: str, need: int, table: Mapping[str, int]) -> Finding:
    return report.warning(
        host,
        f"the kernel's neighbour table holds {table['limit']}, and {need} other nodes are in the network of {host}: "
        "connections fail at random once it is full",
        fix=_LARGER_TABLE,
        command=_command(view, host, need),
        evidence={**table, "need": need},
    )


def _command(view: View, host: str, need: int) -> str:
    limit = max(NEIGHBOURS_GIVEN, 4 * need)
    keys = [f"net.ipv4.neigh.default.gc_thresh{n}={limit >> (3 - n)}" for n in (3, 2, 1)]
    return report.as_root(view, host, f"sysctl -w {' '.join(keys)}")


CHECKS = (
    Check(
        "fabric.address",
        "every node has an address that the other nodes reach",
        _judge_address,
        ask=(network_question,),
        cause="`fabric_address:` in the inventory is not an address of that node, or the other nodes do not "
        "reach: a container bridge (docker0 has the same address everywhere), a VPN, a management network.",
        symptom="client socket has timed out after 900000ms while trying to connect to (10.0.0.5, 29500); or Gloo "
        "connectFullMesh failed ... remote=[172.17.0.1]",
        fix="Leave `fabric_address:` out, and ddpctl takes an address that answers; or write the right address.",
        seen=ON_HOSTS,
    ),
    Check(
        "fabric.interface",
        "the interfaces named in the inventory are there",
        _judge_interface,
        ask=(network_question,),
        cause="`interface:`, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface that this node does not have "
        "(names differ between machines), that is down, or that does not own the fabric address.",
        symptom="Gloo: Unable to find address for: eth9; NCCL: Bootstrap : no socket interface found",
        fix="Leave them out, so that ddpctl sets the interface for each node, or write it for the node that differs.",
        seen=ON_HOSTS,
    ),
    mesh_check(
        "fabric.neighbours",
        "the kernel's neighbour table has room for the nodes",
        _judge_neighbours,
        ask=(network_question,),
        cause="Many nodes in one network, or many containers on one machine, and a neighbour (ARP) table of the usual "
        "1024 entries (gc_thresh3): the kernel drops packets to neighbours without an entry.",
        symptom="No route to host, or connections that time out, between changing pairs of nodes; kernel log: "
        "neighbour: arp_cache: neighbor table overflow!",
        fix="sysctl net.ipv4.neigh.default.gc_thresh1, 2 and 3 on every node, several times the number of nodes.",
        seen=ON_HOSTS,
    ),
)
