"""The network as this node sees it: addresses, ports, how SSH came in, what names mean here, the kernel's tables."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Dict, List

from ddpctl_worker.facts import amd, number, nvidia
from ddpctl_worker.machine.net import addresses, neighbour_table, port_range, ssh_address


def network(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """What the mesh needs to know of a node.

    ``addresses``: [{"address", "family": 4|6, "prefix", "interface", "up", "mtu", "speed" (Mbit/s or None),
    "virtual"}], without link-local ones, in the kernel's order; ``ssh_address``: the address of this node that SSH came
    in by, or None; ``neighbours``: see ``neighbour_table``; ``gpus``: their device nodes; ``cores`` that we may use;
    ``machine``: its type as the kernel calls it; ``names``: each of ``params["names"]`` as it resolves here.
    """
    return {
        "addresses": addresses(),
        "ssh_address": ssh_address(),
        "port_range": list(port_range()),
        "hostname": socket.gethostname(),
        "neighbours": neighbour_table(),
        "gpus": nvidia.devices() or amd.usable(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": os.uname().machine,
        "uid": os.getuid(),
        "names": {name: _resolve(name) for name in params.get("names", ())},
    }


def _resolve(name: str) -> List[str]:
    """Every address of a name as this node sees it; empty when it has none."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(answer[4][0]).split("%")[0] for answer in answers})


def names(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """What this host's own name resolves to, in the resolver's order: gloo binds to the first address unless it is
    told an interface. ``local`` says of each address whether this host really has it."""
    hostname = os.uname().nodename
    started = time.monotonic()
    try:
        rows = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
        error = None
    except OSError as fault:
        rows, error = [], str(fault)
    addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))
    return {
        "hostname": hostname,
        "addresses": addresses,
        "local": [is_local(address) for address in addresses],
        "error": error,
        "seconds": round(time.monotonic() - started, 3),
    }


def is_local(address: str) -> bool:
    """Whether a socket can be bound to it here."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
        return True
    except OSError:
        return False


def tables(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Tables of the kernel's network that may be full; None: there is no such table here."""
    folder = "/proc/sys/net/"
    return {
        "uid": os.getuid(),
        "conntrack": number(folder + "netfilter/nf_conntrack_count"),
        "conntrack_max": number(folder + "netfilter/nf_conntrack_max"),
        "somaxconn": number(folder + "core/somaxconn"),
    }
