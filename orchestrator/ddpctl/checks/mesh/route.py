"""Missing routes to a node, and other nodes or programs at a node's address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, View
from ddpctl.checks.mesh import dial_json, fold_hosts, mesh_check, of_mesh, ok_finding
from ddpctl.checks.mesh.faults import find_wrong_address
from ddpctl.spec.finding import Finding
from ddpctl.spec.fold import group_by, group_pairs_by_culprit
from ddpctl.spec.mesh import Dial, Mesh, Pair
from ddpctl_worker.wire.contract import CLOSED, FOREIGN, NO_ROUTE, SILENT, WRONG_HOST

IMPOSTORS = {WRONG_HOST, FOREIGN, SILENT, CLOSED}


@of_mesh
def _judge_route(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report nodes without a route to another node's address."""
    lost: dict[Pair, Dial] = {}
    for dial in mesh.dials:
        if dial.status == NO_ROUTE and not find_wrong_address(mesh, dial.peer) and dial not in mesh.crowded_out:
            lost.setdefault((dial.dialer, dial.peer), dial)
    for host, dials in _by_host(lost).items():
        yield _no_route(mesh, host, dials)
    if not lost and not mesh.crowded_out:
        yield from ok_finding(mesh, "every node has a route to every other")


def _by_host(lost: Mapping[Pair, Dial]) -> dict[str, list[Dial]]:
    """Group the lost pairs by culprit.

    A node that several nodes cannot reach, or that cannot reach several, appears once. Any other pair appears under its
    dialer.
    """
    groups: dict[str, list[Dial]] = {}
    ends = ((("from", dialer), ("to", peer)) for dialer, peer in lost)
    for (_, host), pairs in group_pairs_by_culprit(ends).items():
        groups.setdefault(host, []).extend(lost[dialer, peer] for (_, dialer), (_, peer) in pairs)
    return groups


def _no_route(mesh: Mesh, host: str, dials: Sequence[Dial]) -> Finding:
    leaving = dials[0].dialer == host
    others = tuple(dict.fromkeys(dial.peer if leaving else dial.dialer for dial in dials))
    who = fold_hosts(others, host, mesh)
    addresses = ", ".join(dict.fromkeys(dial.address for dial in dials))
    text = f"{host} cannot reach {who}" if leaving else f"{who} cannot reach {host}"
    return report.error(
        host,
        f"{text} at {addresses}: {dials[0].detail or 'no route'}",
        peer=report.single_host(others),
        fix=f"look at the routes of {dials[0].dialer} to {dials[0].address} and add the one that is missing, or set "
        f"`fabric_address:` to addresses in a network that all nodes share",
        command=f"ip route get {dials[0].address}" if leaving else "ip -brief address; ip route",
        evidence={"peers": list(others), "dials": [dial_json(dial) for dial in dials[:20]]},
    )


@of_mesh
def _judge_identity(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report another node or another program at a node's address."""
    wrong = [dial for dial in mesh.dials if dial.status in IMPOSTORS and not find_wrong_address(mesh, dial.peer)]
    groups = group_by(lambda dial: (dial.peer, dial.status, dial.detail or ""), wrong)
    for (peer, status, detail), dials in groups.items():
        yield _impostor(view, mesh, peer, status, detail, dials)
    if not groups:
        yield from ok_finding(mesh, "the right node answers at every address")


def _impostor(view: View, mesh: Mesh, peer: str, status: str, detail: str, dials: Sequence[Dial]) -> Finding:
    dialers = tuple(dict.fromkeys(dial.dialer for dial in dials))
    ports = ", ".join(str(port) for port in sorted({dial.port for dial in dials}))
    address = dials[0].address
    who = fold_hosts(dialers, peer, mesh)
    words = {
        WRONG_HOST: f"another node answers {who} at {address}, the address of {peer}: {detail}",
        FOREIGN: f"another program answers {who} at {address} port {ports} in place of {peer}: {detail}",
        SILENT: f"a program accepts {who} at {address} port {ports} in place of {peer} and sends nothing",
        CLOSED: f"a program accepts {who} at {address} port {ports} in place of {peer} and closes the "
        "connection at once",
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
        look = report.as_root(view, peer, "nft list ruleset") + " | grep -e redirect -e dnat"
    return report.error(
        peer,
        words,
        peer=report.single_host(dialers),
        fix=fix,
        command=look,
        evidence={"status": status, "peers": list(dialers), "dials": [dial_json(dial) for dial in dials[:20]]},
    )


CHECKS = (
    mesh_check(
        "mesh.route",
        "every node has a route to every other",
        _judge_route,
        cause="A node has no route to another's fabric address, or nothing answers there on its local network, though "
        "this machine reaches both: two networks, a wrong netmask, a missing route.",
        symptom="No route to host; Network is unreachable; client socket has timed out",
        fix="Add the route (`ip route get ADDRESS` on the node shows what it does now), or set `fabric_address:` to "
        "an address in a network that all nodes share.",
        seen=ON_HOSTS,
    ),
    mesh_check(
        "mesh.identity",
        "the right node answers at every address",
        _judge_identity,
        cause="Another node, or a program outside the job, answers at a node's address: two machines with "
        "one address, a cloned machine, a port forwarding (a container's published port), a proxy.",
        symptom="a hang of a minute or more without a useful message; Connection reset by peer",
        fix="Find who owns the address (`arping`, `ip neigh`), remove the forwarding, or use another port.",
        seen=ON_HOSTS,
    ),
)
