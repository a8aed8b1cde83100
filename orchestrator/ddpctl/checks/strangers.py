"""No way to a node, and somebody else at its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ddpctl.checks.base import View
from ddpctl.checks.blame import wrong_address
from ddpctl.checks.meshwords import dial_json, fine, names, not_dialled
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Dial, Mesh
from ddpctl_worker.contract import CLOSED, FOREIGN, NO_ROUTE, SILENT, WRONG_HOST

STRANGERS = {WRONG_HOST, FOREIGN, SILENT, CLOSED}


def judge_route(view: View) -> Iterable[Finding]:
    """A node without a way to another's address."""
    yield from not_dialled("mesh.route", view)
    mesh = view.mesh
    if mesh is None:
        return
    lost: dict[tuple[str, str], Dial] = {}
    for dial in mesh.dials:
        if dial.status == NO_ROUTE and not wrong_address(mesh, dial.peer) and dial not in mesh.crowded_out:
            lost.setdefault((dial.dialer, dial.peer), dial)
    for host, dials in _by_culprit(lost).items():
        yield _no_route(mesh, host, dials)
    if not lost and not mesh.crowded_out:
        yield from fine("mesh.route", mesh, "every node has a route to every other")


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
    who = names(others, host, mesh)
    addresses = ", ".join(dict.fromkeys(dial.address for dial in dials))
    text = f"{host} cannot get to {who}" if leaving else f"{who} cannot get to {host}"
    return Finding(
        "mesh.route",
        Severity.ERROR,
        f"{text} at {addresses}: {dials[0].detail or 'no route'}",
        host,
        peer=others[0] if len(others) == 1 else None,
        fix=f"look at the routes of {dials[0].dialer} to {dials[0].address} and add the one that is missing, or set "
        f"`fabric_address:` to addresses in a network that all nodes share",
        command=f"ip route get {dials[0].address}" if leaving else "ip -brief address; ip route",
        evidence={"peers": list(others), "dials": [dial_json(dial) for dial in dials[:20]]},
    )


def judge_identity(view: View) -> Iterable[Finding]:
    """Another node or another program at a node's address."""
    yield from not_dialled("mesh.identity", view)
    mesh = view.mesh
    if mesh is None:
        return
    groups: dict[tuple[str, str, str], list[Dial]] = {}
    for dial in mesh.dials:
        if dial.status in STRANGERS and not wrong_address(mesh, dial.peer):
            groups.setdefault((dial.peer, dial.status, dial.detail or ""), []).append(dial)
    for (peer, status, detail), dials in groups.items():
        yield _stranger(view, mesh, peer, status, detail, dials)
    if not groups:
        yield from fine("mesh.identity", mesh, "the right node answers at every address")


def _stranger(view: View, mesh: Mesh, peer: str, status: str, detail: str, dials: Sequence[Dial]) -> Finding:
    dialers = tuple(dict.fromkeys(dial.dialer for dial in dials))
    ports = ", ".join(str(port) for port in sorted({dial.port for dial in dials}))
    address = dials[0].address
    who = names(dialers, peer, mesh)
    words = {
        WRONG_HOST: f"another node answers {who} at {address}, the address of {peer}: {detail}",
        FOREIGN: f"another program answers {who} at {address} port {ports} in place of {peer}: {detail}",
        SILENT: f"a program accepts {who} at {address} port {ports} in place of {peer} and says nothing",
        CLOSED: f"a program accepts {who} at {address} port {ports} in place of {peer} and hangs up at once",
    }[status]
    look = None
    if status == WRONG_HOST:
        fix = (
            f"find who else has {address} (the neighbour table of {dialers[0]} has the hardware address that answers), "
            f"or set `fabric_address:` of {peer}"
        )
    else:
        fix = (
            f"look for a forwarding of port {ports} (nftables, a container's published port) or for another machine "
            f"with {address}; or use another master_port"
        )
        look = as_root(view, peer, "nft list ruleset") + " | grep -e redirect -e dnat"
    return Finding(
        "mesh.identity",
        Severity.ERROR,
        words,
        peer,
        peer=dialers[0] if len(dialers) == 1 else None,
        fix=fix,
        command=look,
        evidence={"status": status, "peers": list(dialers), "dials": [dial_json(dial) for dial in dials[:20]]},
    )
