"""Connections between nodes that failed: told apart, blamed on the right host, grouped, and each with its way out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import firewall
from ddpctl.checks.base import View
from ddpctl.checks.blame import BLOCKED, Fault, faults, wrong_address
from ddpctl.checks.firewall import Block
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import OK, Dial, Mesh
from ddpctl.spec.ranges import fold

HOW = {
    "dropped": "nothing comes back (dropped)",
    "refused": "the connection is refused by a reset",
    "rejected": "a firewall or router answers that it is prohibited",
    "error": "the connection fails",
}
STRANGERS = {"wrong_host", "foreign", "silent", "closed"}


# --- the job's own ports ---------------------------------------------------------------------------------------------


def judge_master_port(view: View) -> Iterable[Finding]:
    """The master port and the port of the nodes' watch, on the master."""
    if view.mesh is None:
        return
    groups = _grouped(view, [fault for fault in faults(view) if _role(view.mesh, fault.dial) in ("master", "gang")])
    for group in groups:
        yield _finding("mesh.master_port", Severity.ERROR, group, view, _port_words(group))
    if not groups:
        yield from _fine("mesh.master_port", view.mesh, "every node reaches the master port {port} of {master}")


def judge_ephemeral(view: View) -> Iterable[Finding]:
    """Sampled ports of each node's ephemeral range. A direction that gloo never uses is an info."""
    mesh = view.mesh
    if mesh is None:
        return
    found = faults(view)
    master_too = {(f.dial.dialer, f.dial.peer) for f in found if _role(mesh, f.dial) in ("master", "gang")}
    sampled = [f for f in found if _role(mesh, f.dial) == "sample" and (f.dial.dialer, f.dial.peer) not in master_too]
    gloo = uses_gloo(view)
    harmless = [fault for fault in sampled if gloo and _never_used_by_gloo(mesh, fault.dial)]
    harmful = [fault for fault in sampled if fault not in harmless]
    for group in _grouped(view, harmful):
        yield _finding("mesh.ephemeral", Severity.ERROR, group, view, _range_words(mesh, group))
    for group in _grouped(view, harmless):
        words = (
            f"{_range_words(mesh, group)}. Harmless under gloo, where the node with the larger address connects to the "
            f"one with the smaller; under NCCL it would be an error"
        )
        yield _finding("mesh.ephemeral", Severity.INFO, group, view, words, with_fix=False)
    if not sampled and not master_too:
        yield from _fine("mesh.ephemeral", mesh, "{links} links among {hosts} nodes pass on ephemeral ports{note}")


def uses_gloo(view: View) -> bool:
    """The backend that the job will have: its own word, else NCCL where a node has a GPU."""
    if view.want.backend:
        return view.want.backend == "gloo"
    return not any(
        _has_gpu(answer.value)
        for host in view.answers.values()
        for key, answer in host.items()
        if answer.ok and key.partition(":")[0] == "network"
    )


def _has_gpu(value: Any) -> bool:
    return bool(value.get("gpus"))


def _never_used_by_gloo(mesh: Mesh, dial: Dial) -> bool:
    """gloo connects from the larger address to the smaller, compared byte by byte."""
    local = mesh.fabric.get(dial.dialer)
    if local is None:
        return False
    return ipaddress.ip_address(local.address).packed < ipaddress.ip_address(dial.address).packed


def _role(mesh: Mesh, dial: Dial) -> str:
    """master, gang or sample; ``spare``: the master port of a node that is not the master."""
    role = mesh.ports.get(dial.peer, {}).get(dial.port, "sample")
    return "spare" if role == "master" and dial.peer != mesh.master else role


# --- groups and words ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Faults with one culprit and one way to fail, whatever the far end."""

    host: str
    status: str
    outgoing: bool
    faults: tuple[Fault, ...]

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fault.other for fault in self.faults))

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(sorted({fault.dial.port for fault in self.faults}))

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(dict.fromkeys(block for fault in self.faults for block in fault.blocks))


def _grouped(view: View, found: Sequence[Fault]) -> list[Group]:
    groups: dict[tuple[str, str, bool], list[Fault]] = {}
    for fault in found:
        groups.setdefault((fault.host, fault.dial.status, fault.outgoing), []).append(fault)
    return [Group(*key, tuple(members)) for key, members in groups.items()]


def _who(group: Group, mesh: Mesh) -> str:
    others = set(mesh.hosts) - {group.host}
    if len(group.others) > 1 and set(group.others) == others:
        return "every other node"
    return fold(group.others)


def _port_words(group: Group) -> str:
    ports = " and ".join(str(port) for port in group.ports)
    noun = "port" if len(group.ports) == 1 else "ports"
    return f"{noun} {ports}"


def _range_words(mesh: Mesh, group: Group) -> str:
    targets = dict.fromkeys(fault.dial.peer for fault in group.faults)
    low, high = mesh.ranges.get(next(iter(targets)), (32768, 60999))
    tried = {
        (dial.peer, dial.port)
        for dial in mesh.dials
        if dial.peer in targets and mesh.ports.get(dial.peer, {}).get(dial.port) == "sample"
    }
    closed = {(fault.dial.peer, fault.dial.port) for fault in group.faults}
    return f"ephemeral ports {low}-{high} ({len(closed)} of {len(tried)} tried)"


def _finding(check: str, severity: Severity, group: Group, view: View, ports: str, *, with_fix: bool = True) -> Finding:
    mesh = view.mesh
    assert mesh is not None
    who = _who(group, mesh)
    how = HOW[group.status]
    if group.outgoing:
        text = f"connections from {group.host} to {who} fail on {ports}: {how}"
    else:
        text = f"{who} cannot connect to {group.host} on {ports}: {how}"
    dump = view.firewalls.get(group.host, {})
    return Finding(
        check,
        severity,
        f"{text}; {_cause(group, dump)}" if with_fix else text,
        group.host,
        peer=group.others[0] if len(group.others) == 1 else None,
        fix=_fix(group, mesh, dump) if with_fix else None,
        evidence={
            "status": group.status,
            "peers": list(group.others),
            "ports": list(group.ports),
            "rules": [block.to_json() for block in group.blocks],
            "dials": [_dial_json(fault.dial) for fault in group.faults[:20]],
        },
    )


def _dial_json(dial: Dial) -> dict[str, Any]:
    keys = ("dialer", "peer", "address", "port", "status", "errno", "detail", "local", "interface")
    return {key: getattr(dial, key) for key in keys if getattr(dial, key) is not None}


def _cause(group: Group, dump: Any) -> str:
    if group.blocks:
        block = group.blocks[0]
        return f"{block.tool} on {group.host} does it: {block.place}: {block.rule}"
    if not firewall.readable(dump):
        return f"the firewall of {group.host} can only be read by root"
    return f"no firewall rule of {group.host} does it, so it is a filter between the nodes (switch, security group)"


def _fix(group: Group, mesh: Mesh, dump: Any) -> str:
    peers = [mesh.fabric[host].address for host in _fix_hosts(group, mesh) if host in mesh.fabric]
    if group.outgoing:
        targets = dict.fromkeys(fault.dial.peer for fault in group.faults)
        ports = [span for host in targets for span in _spans(group, mesh, host)]
    else:
        ports = _spans(group, mesh, group.host)
    if not group.blocks and firewall.readable(dump) and not firewall.manager(dump):
        spans = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in dict.fromkeys(ports))
        return f"let the filter between the nodes pass TCP {spans} to {group.host} from {', '.join(sorted(peers))}"
    hook = group.faults[0].hook
    return firewall.fix(dump, group.blocks, hook, peers, tuple(dict.fromkeys(ports)))


def _fix_hosts(group: Group, mesh: Mesh) -> tuple[str, ...]:
    """Whom to let in: every node of the job when all are kept out, else those that are."""
    return group.others


def _spans(group: Group, mesh: Mesh, host: str) -> list[tuple[int, int]]:
    """The ports to open on ``host``: what the job uses there. Whatever is blocked with it, at one go."""
    blocked = {fault.dial.port for fault in group.faults if fault.dial.peer == host}
    roles = mesh.ports.get(host, {})
    spans: list[tuple[int, int]] = []
    own = [port for port, role in roles.items() if role != "sample"]
    if any(roles.get(port) != "sample" for port in blocked):
        spans += [(port, port) for port in sorted(own)]
    failed = {dial.port for dial in mesh.dials if dial.peer == host and dial.status in BLOCKED}
    if any(roles.get(port) == "sample" for port in failed):
        spans.append(mesh.ranges.get(host, (32768, 60999)))
    return spans


def _fine(check: str, mesh: Mesh, text: str) -> Iterable[Finding]:
    if not any(dial.status == OK for dial in mesh.dials):
        return
    links = len({(dial.dialer, dial.peer) for dial in mesh.dials})
    note = f" ({mesh.note})" if mesh.note else ""
    words = text.format(port=mesh.master_port, master=mesh.master, links=links, hosts=len(mesh.hosts), note=note)
    yield Finding(check, Severity.OK, words)


# --- no route, and somebody else -------------------------------------------------------------------------------------


def judge_route(view: View) -> Iterable[Finding]:
    """A node without a way to another's address."""
    mesh = view.mesh
    if mesh is None:
        return
    lost: dict[tuple[str, str], Dial] = {}
    for dial in mesh.dials:
        if dial.status == "no_route" and not wrong_address(mesh, dial.peer):
            lost.setdefault((dial.dialer, dial.peer), dial)
    for (dialer, peer), dial in lost.items():
        yield Finding(
            "mesh.route",
            Severity.ERROR,
            f"{dialer} cannot get to {peer} at {dial.address}: {dial.detail or 'no route'}",
            dialer,
            peer,
            fix=f"on {dialer}: `ip route get {dial.address}` shows the route; add the missing one, or set "
            f"`fabric_address:` of {peer} to an address in a network that both share",
            evidence=_dial_json(dial),
        )
    if not lost:
        yield from _fine("mesh.route", mesh, "every node has a route to every other")


def judge_identity(view: View) -> Iterable[Finding]:
    """Another node or another program behind a node's address."""
    mesh = view.mesh
    if mesh is None:
        return
    groups: dict[tuple[str, str, str], list[Dial]] = {}
    for dial in mesh.dials:
        if dial.status in STRANGERS and not wrong_address(mesh, dial.peer):
            groups.setdefault((dial.peer, dial.status, dial.detail or ""), []).append(dial)
    for (peer, status, detail), dials in groups.items():
        yield _stranger(mesh, peer, status, detail, dials)
    if not groups:
        yield from _fine("mesh.identity", mesh, "the right node answers at every address")


def _stranger(mesh: Mesh, peer: str, status: str, detail: str, dials: Sequence[Dial]) -> Finding:
    dialers = tuple(dict.fromkeys(dial.dialer for dial in dials))
    ports = ", ".join(str(port) for port in sorted({dial.port for dial in dials}))
    address = dials[0].address
    who = "every other node" if len(dialers) > 1 and len(dialers) == len(mesh.hosts) - 1 else fold(dialers)
    words = {
        "wrong_host": f"another node answers {who} at {address}, the address of {peer}: {detail}",
        "foreign": f"another program answers {who} at {address} port {ports} in place of {peer}: {detail}",
        "silent": f"a program accepts {who} at {address} port {ports} in place of {peer} and says nothing",
        "closed": f"a program accepts {who} at {address} port {ports} in place of {peer} and hangs up at once",
    }[status]
    fix = (
        f"find who else has {address} (`ip neigh show {address}` on {dialers[0]}), or set `fabric_address:` of {peer}"
        if status == "wrong_host"
        else f"on {peer}: look for a forwarding of port {ports} (`sudo nft list ruleset | grep -e redirect -e dnat`, "
        f"`docker ps`) or for another machine with {address}; or use another master_port"
    )
    return Finding(
        "mesh.identity",
        Severity.ERROR,
        words,
        peer,
        peer=dialers[0] if len(dialers) == 1 else None,
        fix=fix,
        evidence={"status": status, "peers": list(dialers), "dials": [_dial_json(dial) for dial in dials[:20]]},
    )
