"""Connections between nodes that failed: told apart, blamed on the right host, grouped, and each with its way out."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import firewall
from ddpctl.checks.base import View
from ddpctl.checks.blame import Fault, faults, wrong_address
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
HARMLESS = (
    "harmless under gloo, where the node with the larger address connects to the one with the smaller; under NCCL it "
    "would be an error"
)
DEFAULT_RANGE = (32768, 60999)
STRANGERS = {"wrong_host", "foreign", "silent", "closed"}


# --- the job's own ports ---------------------------------------------------------------------------------------------


def judge_ports(view: View) -> Iterable[Finding]:
    """The job's own ports on the master and sampled ephemeral ports of every node; one finding for each host that
    blocks, and each way in which it does. What gloo never uses is an info."""
    mesh = view.mesh
    if mesh is None:
        return
    needed = [fault for fault in faults(view) if _role(mesh, fault.dial) != "spare"]
    gloo = uses_gloo(view)
    used = [fault for fault in needed if not (gloo and _never_used(mesh, fault.dial))]
    guilty = {fault.host for fault in used}
    for group in _grouped([fault for fault in needed if fault.host in guilty]):
        yield _finding(Severity.ERROR, group, view)
    for group in _grouped([fault for fault in needed if fault.host not in guilty]):
        yield _finding(Severity.INFO, group, view)
    if not needed:
        yield from _fine(
            "mesh.ports",
            mesh,
            "{links} links among {hosts} nodes pass on port {port} of {master} and on ephemeral ports{note}",
        )


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


def _never_used(mesh: Mesh, dial: Dial) -> bool:
    """An ephemeral port of the node with the larger address: gloo connects from there to the smaller one, compared
    byte by byte. Everybody dials the job's own ports."""
    if _role(mesh, dial) != "sample":
        return False
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


def _grouped(found: Sequence[Fault]) -> list[Group]:
    groups: dict[tuple[str, str, bool], list[Fault]] = {}
    for fault in found:
        groups.setdefault((fault.host, fault.dial.status, fault.outgoing), []).append(fault)
    for host, status, outgoing in list(groups):
        back, there = (host, status, True), (host, status, False)
        if outgoing and there in groups and _rules(groups[back]) & _rules(groups[there]):
            groups[there] += groups.pop(back)  # one rule that stops what comes in, answers included
    return [Group(*key, tuple(members)) for key, members in groups.items()]


def _rules(found: Sequence[Fault]) -> set[Block]:
    return {block for fault in found for block in fault.blocks}


def _names(hosts: Sequence[str], beside: str, mesh: Mesh) -> str:
    """Names folded into ranges; "every other node" for all that there are beside one."""
    if len(hosts) > 1 and set(hosts) == set(mesh.hosts) - {beside}:
        return "every other node"
    return fold(hosts)


def _ports_words(mesh: Mesh, group: Group) -> str:
    """``port 29500 and on ephemeral ports 32768-60999 (3 of 3 tried)``."""
    own = sorted({f.dial.port for f in group.faults if _role(mesh, f.dial) != "sample"})
    words = [f"port {', '.join(str(port) for port in own)}"] if own else []
    closed = {(f.dial.peer, f.dial.port) for f in group.faults if _role(mesh, f.dial) == "sample"}
    if closed:
        targets = {peer for peer, _ in closed}
        low, high = mesh.ranges.get(min(targets), DEFAULT_RANGE)
        tried = {
            (d.peer, d.port) for d in mesh.dials if d.peer in targets and mesh.ports[d.peer].get(d.port) == "sample"
        }
        words.append(f"ephemeral ports {low}-{high} ({len(closed)} of {len(tried)} tried)")
    return " and on ".join(words)


def _finding(severity: Severity, group: Group, view: View) -> Finding:
    mesh = view.mesh
    assert mesh is not None
    who, ports, how = _names(group.others, group.host, mesh), _ports_words(mesh, group), HOW[group.status]
    if group.outgoing:
        text = f"connections from {group.host} to {who} fail on {ports}: {how}"
    else:
        text = f"{who} cannot connect to {group.host} on {ports}: {how}"
    dump = view.firewalls.get(group.host, {})
    harmless = severity is Severity.INFO
    return Finding(
        "mesh.ports",
        severity,
        f"{text}; {HARMLESS if harmless else _cause(group, dump)}",
        group.host,
        peer=group.others[0] if len(group.others) == 1 else None,
        fix=None if harmless else _fix(group, mesh, dump),
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
    peers = [mesh.fabric[host].address for host in group.others if host in mesh.fabric]
    ports: list[tuple[int, int]] = []
    for fault in group.faults:
        if fault.reply:  # what comes back to us comes to a port that our kernel picked
            ports.append(mesh.ranges.get(group.host, DEFAULT_RANGE))
        else:
            ports += _spans(group, mesh, fault.dial.peer)
    if not group.blocks and firewall.readable(dump) and not firewall.manager(dump):
        spans = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in dict.fromkeys(ports))
        return f"let the filter between the nodes pass TCP {spans} to {group.host} from {', '.join(sorted(peers))}"
    hook = group.faults[0].hook
    return firewall.fix(dump, group.blocks, hook, peers, tuple(dict.fromkeys(ports)))


def _spans(group: Group, mesh: Mesh, host: str) -> list[tuple[int, int]]:
    """The ports to open on ``host``: those of the job's own that are blocked, and the whole ephemeral range where a
    sample of it is."""
    blocked = [fault.dial for fault in group.faults if fault.dial.peer == host]
    spans = [(dial.port, dial.port) for dial in blocked if _role(mesh, dial) != "sample"]
    if any(_role(mesh, dial) == "sample" for dial in blocked):
        spans.append(mesh.ranges.get(host, DEFAULT_RANGE))
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
    for host, dials in _by_culprit(lost).items():
        yield _no_route(mesh, host, dials)
    if not lost:
        yield from _fine("mesh.route", mesh, "every node has a route to every other")


def _by_culprit(lost: Mapping[tuple[str, str], Dial]) -> dict[str, list[Dial]]:
    """A node that several others cannot get to, or that cannot get to several, once; any other pair by its dialer."""
    left = dict(lost)
    groups: dict[str, list[Dial]] = {}
    while left:
        arriving = Counter(peer for _, peer in left)
        leaving = Counter(dialer for dialer, _ in left)
        peer, count = arriving.most_common(1)[0]
        dialer, other = leaving.most_common(1)[0]
        side, host = (1, peer) if count > other else (0, dialer)
        groups[host] = groups.get(host, []) + [dial for pair, dial in left.items() if pair[side] == host]
        left = {pair: dial for pair, dial in left.items() if pair[side] != host}
    return groups


def _no_route(mesh: Mesh, host: str, dials: Sequence[Dial]) -> Finding:
    leaving = dials[0].dialer == host
    others = tuple(dict.fromkeys(dial.peer if leaving else dial.dialer for dial in dials))
    who = _names(others, host, mesh)
    addresses = ", ".join(dict.fromkeys(dial.address for dial in dials))
    text = f"{host} cannot get to {who}" if leaving else f"{who} cannot get to {host}"
    return Finding(
        "mesh.route",
        Severity.ERROR,
        f"{text} at {addresses}: {dials[0].detail or 'no route'}",
        host,
        peer=others[0] if len(others) == 1 else None,
        fix=f"on {dials[0].dialer}: `ip route get {dials[0].address}` shows the way; add the route that is missing, or "
        f"set `fabric_address:` to addresses in a network that all nodes share",
        evidence={"peers": list(others), "dials": [_dial_json(dial) for dial in dials[:20]]},
    )


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
    who = _names(dialers, peer, mesh)
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
