"""Failed connections between nodes, by the way they fail and the host that blocks them, each with its fix."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import firewall, report
from ddpctl.checks.base import ON_HOSTS, View
from ddpctl.checks.firewall import BlockingRule
from ddpctl.checks.firewall.tool import join_spans
from ddpctl.checks.gpu.in_use import uses_gloo
from ddpctl.checks.limits import ADDRESSES_SHOWN, CROWD
from ddpctl.checks.mesh import dial_json, fold_hosts, mesh_check, network_answer, of_mesh, ok_finding
from ddpctl.checks.mesh.faults import BlockedDial, find_faults
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_by
from ddpctl.spec.mesh import Dial, Mesh
from ddpctl.spec.ranges import fold_names
from ddpctl_worker.wire.contract import DROPPED, ERROR, REFUSED, REJECTED, USUAL_PORTS

HOW = {
    DROPPED: "nothing comes back (dropped)",
    REFUSED: "the connection is refused (reset)",
    REJECTED: "a firewall or router answers that it is prohibited",
    ERROR: "the connection fails",
}
HARMLESS = (
    "harmless under gloo, where the node with the larger address connects to the one with the smaller; under NCCL it "
    "would be an error"
)
NO_COPIES = "; checkpoints that are saved on {host} get no copy on {others}, which have to connect for that"
DEFAULT_RANGE = (32768, 60999)


# --- the job's own ports ---------------------------------------------------------------------------------------------


@of_mesh
def judge_ports(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Judge the job's own ports and the sampled ephemeral ports of every node.

    A host that blocks connections gets a finding for each way in which it blocks them. A connection that gloo never
    uses is an info. With restarts every connection is needed, because hosts copy each other's checkpoints.
    """
    needed = [fault for fault in find_faults(view, mesh) if _role(mesh, fault.dial) != "spare"]
    gloo = uses_gloo(view) and not view.requirements.agents
    used = [fault for fault in needed if not (gloo and _never_used(mesh, fault.dial))]
    guilty = {fault.host for fault in used}
    groups = _grouped([fault for fault in needed if fault.host in guilty])
    crowd = _without_a_rule(groups)
    if crowd:
        yield _between(view, mesh, crowd)
    for group in groups:
        if group not in crowd:
            yield _finding(Severity.ERROR, group, view, mesh)
    for group in _grouped([fault for fault in needed if fault.host not in guilty]):
        if group.blocks or not crowd:
            yield _finding(Severity.INFO, group, view, mesh)
    if not needed and not mesh.crowded_out:
        yield from ok_finding(
            mesh,
            f"{len(mesh.pairs)} links among {len(mesh.hosts)} nodes pass on port {mesh.master_port} of {mesh.master} "
            "and on ephemeral ports",
            with_note=True,
        )


def _never_used(mesh: Mesh, dial: Dial) -> bool:
    """Return whether gloo never makes this connection: to an ephemeral port of the node with the larger address.

    gloo connects from the larger address to the smaller, compared byte by byte. Every node dials the job's own ports.
    """
    if _role(mesh, dial) != "sample":
        return False
    local = mesh.fabric.get(dial.dialer)
    if local is None:
        return False
    return ipaddress.ip_address(local.address).packed < ipaddress.ip_address(dial.address).packed


def _role(mesh: Mesh, dial: Dial) -> str:
    """Return master, gang, agent, sample, or ``spare``: the master port of a node that is not the master is unused."""
    role = mesh.ports.get(dial.peer, {}).get(dial.port, "sample")
    return "spare" if role == "master" and dial.peer != mesh.master else role


# --- groups and words ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Faults with the same culprit and the same status, whatever the far end."""

    host: str
    status: str
    outgoing: bool
    faults: tuple[BlockedDial, ...]

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fault.other for fault in self.faults))

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(sorted({fault.dial.port for fault in self.faults}))

    @property
    def blocks(self) -> tuple[BlockingRule, ...]:
        return tuple(dict.fromkeys(block for fault in self.faults for block in fault.blocks))


def _grouped(found: Sequence[BlockedDial]) -> list[_Group]:
    groups = group_by(lambda fault: (fault.host, fault.dial.status, fault.outgoing), found)
    for host, status, outgoing in list(groups):
        back, there = (host, status, True), (host, status, False)
        if outgoing and there in groups and _same(groups[back], groups[there]):
            groups[there] += groups.pop(back)
    return [_Group(*key, tuple(members)) for key, members in groups.items()]


def _same(*ways: Sequence[BlockedDial]) -> bool:
    """Return whether both directions are blocked by a common rule, or by no known rule."""
    first, second = ({block for fault in found for block in fault.blocks} for found in ways)
    return bool(first & second) or not (first or second)


def _ports_words(mesh: Mesh, group: _Group) -> str:
    """Return ``port 29500 and on ephemeral ports 32768-60999 (3 of 3 tried)``."""
    own = {f.dial.port for f in group.faults if _role(mesh, f.dial) not in ("sample", "agent")}
    words = [f"port {_listed(own)}"] if own else []
    of_agents = {f.dial.port for f in group.faults if _role(mesh, f.dial) == "agent"}
    words += [f"port {_listed(of_agents)} (for restarts)"] if of_agents else []
    closed = {(f.dial.peer, f.dial.port) for f in group.faults if _role(mesh, f.dial) == "sample"}
    if closed:
        targets = {peer for peer, _ in closed}
        low, high = mesh.ranges.get(min(targets), DEFAULT_RANGE)
        tried = {
            (d.peer, d.port) for d in mesh.dials if d.peer in targets and mesh.ports[d.peer].get(d.port) == "sample"
        }
        words.append(f"ephemeral ports {low}-{high} ({len(closed)} of {len(tried)} tried)")
    return " and on ".join(words)


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))


def _finding(severity: Severity, group: _Group, view: View, mesh: Mesh) -> Finding:
    who, ports, how = fold_hosts(group.others, group.host, mesh), _ports_words(mesh, group), HOW[group.status]
    if group.outgoing:
        text = f"connections from {group.host} to {who} fail on {ports}: {how}"
    else:
        text = f"{who} cannot connect to {group.host} on {ports}: {how}"
    dump = view.firewalls.get(group.host, {})
    harmless = severity is Severity.INFO
    command, fix = (None, None) if harmless else _remedy(group, view, mesh, dump)
    return report.finding(
        severity,
        group.host,
        f"{text}; {_harmless(group, view, who) if harmless else _cause(group, dump)}",
        peer=report.single_host(group.others),
        fix=fix,
        command=command,
        evidence={
            "status": group.status,
            "peers": list(group.others),
            "ports": list(group.ports),
            "rules": [block.to_json() for block in group.blocks],
            "dials": [dial_json(fault.dial) for fault in group.faults[:20]],
        },
    )


def _harmless(group: _Group, view: View, others: str) -> str:
    lost = NO_COPIES.format(host=group.host, others=others) if view.requirements.copies and not group.outgoing else ""
    return HARMLESS + lost


def _without_a_rule(groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups without a blocking rule if they are many: a filter between all hosts is the cause."""
    found = [group for group in groups if not group.blocks]
    return found if len({group.host for group in found}) >= CROWD else []


def _between(view: View, mesh: Mesh, crowd: Sequence[_Group]) -> Finding:
    """Report a security group or switch that separates the nodes (or rules that only root may read)."""
    hosts = tuple(dict.fromkeys(name for group in crowd for name in (group.host, *group.others)))
    everything = _Group("", crowd[0].status, False, tuple(fault for group in crowd for fault in group.faults))
    pairs = {(fault.dial.dialer, fault.dial.peer) for fault in everything.faults}
    links = len(mesh.pairs)
    hidden = [host for host in hosts if not firewall.is_readable(view.firewalls.get(host, {}))]
    spans = _spans(_opened(everything.faults, mesh))
    cause = (
        f"whether the nodes do it themselves is unknown ({hidden[0]}: "
        f"{firewall.why_unread(view.firewalls.get(hidden[0], {}))})"
        if hidden
        else "no firewall rule on them does it, so it is a filter between the nodes (switch, security group)"
    )
    return report.error(
        None,
        f"{len(pairs)} of {links} links among {fold_names(hosts)} fail on {_ports_words(mesh, everything)}: "
        f"{HOW[everything.status]}; {cause}",
        fix=f"let the nodes' addresses reach each other on TCP {spans}: in the security group, the switch or their own "
        f"firewalls",
        evidence={"hosts": list(hosts), "status": everything.status, "links": len(pairs), "of": links},
    )


def _cause(group: _Group, dump: Any) -> str:
    sure = [block for block in group.blocks if block.certain]
    if sure:
        return f"{sure[0].tool} on {group.host} does it: {sure[0].place}: {sure[0].rule}"
    if group.blocks:
        block = group.blocks[0]
        return (
            f"{block.tool} on {group.host} may do it, by a rule that ddpctl cannot evaluate: {block.place}: "
            f"{block.rule}; else it is a filter between the nodes (switch, security group)"
        )
    if not firewall.is_readable(dump):
        return f"whether {group.host} itself does it is unknown: {firewall.why_unread(dump)}"
    return f"no firewall rule of {group.host} does it, so it is a filter between the nodes (switch, security group)"


def _remedy(group: _Group, view: View, mesh: Mesh, dump: Any) -> tuple[str | None, str]:
    """Return the command that opens the host's own firewall, and a note about it."""
    peers = [mesh.fabric[host].address for host in group.others if host in mesh.fabric]
    ports = _opened(group.faults, mesh)
    if any(fault.reply for fault in group.faults):  # a reply arrives at a port that the kernel picked
        ports.append(mesh.ranges.get(group.host, DEFAULT_RANGE))
    if not group.blocks and firewall.is_readable(dump) and not firewall.manager(dump):
        return None, f"make the filter between the nodes pass TCP {_spans(ports)} to {group.host} from {_list(peers)}"
    entries = network_answer(view, group.host).get("addresses", ())
    nets = [f"{entry['address']}/{entry['prefix']}" for entry in entries]
    command, note = firewall.opening_commands(dump, group.blocks, group.faults[0].hook, peers, ports, nets)
    doubt = "" if any(block.certain for block in group.blocks) or command is None else "if that rule does it; "
    return command, doubt + note


def _opened(found: Iterable[BlockedDial], mesh: Mesh) -> list[tuple[int, int]]:
    """Return the ports to open.

    A blocked port of the job is opened itself. A blocked ephemeral port opens the host's whole range, and a blocked
    port of an agent the range that agents and later attempts pick from.
    """
    spans: dict[tuple[int, int], None] = {}
    for fault in found:
        if not fault.reply:
            spans[_span(mesh, fault.dial)] = None
    return list(spans)


def _span(mesh: Mesh, dial: Dial) -> tuple[int, int]:
    if _role(mesh, dial) == "sample":
        return mesh.ranges.get(dial.peer, DEFAULT_RANGE)
    first, last = USUAL_PORTS
    return USUAL_PORTS if mesh.agents and first <= dial.port <= last else (dial.port, dial.port)


def _spans(ports: Iterable[tuple[int, int]]) -> str:
    return ", ".join(join_spans(span) for span in sorted(set(ports)))


def _list(addresses: Sequence[str]) -> str:
    shown = ", ".join(sorted(addresses)[:ADDRESSES_SHOWN])
    return shown if len(addresses) <= ADDRESSES_SHOWN else f"{shown} and {len(addresses) - ADDRESSES_SHOWN} more"


CHECKS = (
    mesh_check(
        "mesh.ports",
        "every node reaches the ports that the job uses on every other",
        judge_ports,
        cause="A firewall on a node, or a filter on the way, drops or rejects connections to the master port, to the "
        "port on which the nodes watch each other, or to ephemeral ports. gloo and NCCL connect every pair of nodes on "
        "ports that the kernel picks (ip_local_port_range): a firewall that opens SSH and the master port alone lets "
        "the rendezvous succeed and the job hang. Under gloo the node with the smaller address listens and the other "
        "node connects, so a closed direction that is never used is only mentioned; under NCCL it is an error. With "
        "restarts every direction is needed: an agent listens on each host on a port from 29600 to 29999, a later "
        "attempt may have its master on another host, and the hosts copy each other's checkpoints.",
        symptom="client socket has timed out after 900000ms while trying to connect to (HOST, 29500) on a node; Timed "
        "out after 901 seconds waiting for clients. 1/2 clients joined on the master; init_process_group hangs (gloo: "
        "5 times its timeout); Gloo connectFullMesh failed ... Connect timeout [none]; NCCL: socketPollConnect: "
        "connect returned No route to host, retrying",
        fix="ddpctl reads the firewall and prints the command for it (nft, iptables, ufw, firewalld), limited to the "
        "cluster's addresses (many addresses: to their network) and the job's ports. A rule that it cannot judge is "
        "called possible. `ddpctl preflight --fix` runs the command once you have agreed. To confine the range: sysctl "
        "-w "
        'net.ipv4.ip_local_port_range="50000 51000" on every node, and open that.',
        seen=ON_HOSTS,
    ),
)
