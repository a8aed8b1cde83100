"""What the nodes see of each other: every port, link and packet size.

The verdicts read the mesh that the stage measured (``View.mesh``) and the firewalls it read (``View.firewalls``).
"""

from __future__ import annotations

from collections.abc import Iterable

from ddpctl.checks import fabric, neighbours, nics
from ddpctl.checks.base import Check, Doc, Question, Target, Want
from ddpctl.checks.links import judge_bandwidth, judge_bulk, judge_latency
from ddpctl.checks.meshwords import one_host
from ddpctl.checks.ports import judge_ports
from ddpctl.checks.strangers import judge_identity, judge_route
from ddpctl.spec.mesh import Mesh
from ddpctl_worker.contract import DROPPED, REFUSED, REJECTED

BLOCKED = frozenset({REFUSED, REJECTED, DROPPED})


def hosts_to_read(mesh: Mesh) -> tuple[str, ...]:
    """The hosts whose firewalls may explain a failed connection: both ends of it."""
    ends = [host for dial in mesh.dials if dial.status in BLOCKED for host in (dial.peer, dial.dialer)]
    return tuple(dict.fromkeys(ends))


def _ask_nothing(target: Target, want: Want) -> Iterable[Question]:
    return ()


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
        "cluster's addresses (many of them: to their network) and the job's ports. A rule that it cannot judge is "
        "called possible. It never runs it. To confine the range: sysctl -w "
        'net.ipv4.ip_local_port_range="50000 51000" on every node, and open that.',
    ),
    one_host,
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
    one_host,
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
    one_host,
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
    one_host,
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
    one_host,
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
    one_host,
)

CHECKS = (*fabric.CHECKS, *nics.CHECKS, neighbours.NEIGHBOURS, ROUTE, IDENTITY, PORTS, BULK, BANDWIDTH, LATENCY)
MESH_IDS = frozenset(check.id for check in CHECKS)
