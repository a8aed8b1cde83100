"""The kernel's neighbour (ARP) table: room for every node that a host has in its own network."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.meshwords import names, network_answer, network_question, not_dialled, one_host
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Dial, Mesh

CHECK = "fabric.neighbours"
LEAST_ROOM = 8192  # what is proposed


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (network_question(want),)


def judge_neighbours(view: View) -> Iterable[Finding]:
    """Connections that failed because a host had no room for a neighbour, and tables too small for the job."""
    yield from not_dialled(CHECK, view)
    mesh = view.mesh
    full = _crowded(mesh) if mesh is not None else {}
    for host, dials in full.items():
        assert mesh is not None
        yield _overflow(view, mesh, host, dials)
    needs = _room(view)
    for target in view.targets:
        answer, need = network_answer(view, target.name), needs.get(target.name, 0)
        table = answer.get("neighbours")
        if answer and table is None:
            yield Finding(CHECK, Severity.UNKNOWN, "not looked at: the kernel did not tell its size", target.name)
        elif table and target.name not in full and need > table["limit"]:
            yield _too_small(view, target.name, need, table)


def _crowded(mesh: Mesh) -> dict[str, list[Dial]]:
    """The connections that failed, by the host whose table was full; where both were, by the dialer."""
    found: dict[str, list[Dial]] = {}
    for dial in mesh.dials:
        if dial in mesh.crowded_out:
            table = mesh.neighbours.get(dial.dialer)
            found.setdefault(dial.dialer if table and table.overflows else dial.peer, []).append(dial)
    return found


def _room(view: View) -> dict[str, int]:
    """How many other nodes of the job each host has in the network of its own fabric address."""
    mesh = view.mesh
    mine: dict[str, str] = {}
    for host, fabric in mesh.fabric.items() if mesh else ():
        for entry in network_answer(view, host).get("addresses", ()):
            if entry["address"] == fabric.address and entry["family"] == 4:
                mine[host] = str(ipaddress.ip_network(f"{entry['address']}/{entry['prefix']}", strict=False))
    count = Counter(mine.values())
    return {host: count[net] - 1 for host, net in mine.items()}


def _overflow(view: View, mesh: Mesh, host: str, dials: list[Dial]) -> Finding:
    table = mesh.neighbours[host]
    others = tuple(dict.fromkeys(dial.peer if dial.dialer == host else dial.dialer for dial in dials))
    return Finding(
        CHECK,
        Severity.ERROR,
        f"{host} had no room for {table.overflows} neighbours while connections to {names(others, host, mesh)} failed: "
        f"its kernel's neighbour table holds {table.limit} (neighbour table overflow)",
        host,
        fix=_words(),
        command=_command(view, host, 0),
        evidence={**vars(table), "peers": list(others)},
    )


def _too_small(view: View, host: str, need: int, table: Mapping[str, int]) -> Finding:
    return Finding(
        CHECK,
        Severity.WARNING,
        f"the kernel's neighbour table holds {table['limit']}, and {need} other nodes are in the network of {host}: "
        "connections fail at random once it is full",
        host,
        fix=_words(),
        command=_command(view, host, need),
        evidence={**table, "need": need},
    )


def _command(view: View, host: str, need: int) -> str:
    limit = max(LEAST_ROOM, 4 * need)
    keys = [f"net.ipv4.neigh.default.gc_thresh{n}={limit >> (3 - n)}" for n in (3, 2, 1)]
    return as_root(view, host, f"sysctl -w {' '.join(keys)}")


def _words() -> str:
    return (
        "give the kernel a larger table. All containers of a machine share one: set it on the machine itself. It is "
        "gone after a reboot unless the same keys stand in /etc/sysctl.d/"
    )


NEIGHBOURS = Check(
    CHECK,
    "the kernel's neighbour table has room for the nodes",
    _ask,
    judge_neighbours,
    Doc(
        cause="Many nodes in one network, or many containers on one machine, and a neighbour (ARP) table of the usual "
        "1024 entries (gc_thresh3): the kernel drops what it has no entry for.",
        symptom="No route to host, or connections that time out, between ever other nodes; kernel log: neighbour: "
        "arp_cache: neighbor table overflow!",
        fix="sysctl net.ipv4.neigh.default.gc_thresh1, 2 and 3 on every node, several times the number of nodes.",
    ),
    one_host,
)
