"""The network as this node sees it: addresses, ports, the SSH connection's address, names, the kernel's tables."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Dict, List

from ddpctl_worker.facts import amd, number, nvidia
from ddpctl_worker.machine.net import addresses, neighbour_table, port_range, ssh_address


def network(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return this node's part of the input for the mesh.

    addresses     [{"address", "family": 4|6, "prefix", "interface", "up", "mtu", "speed" (Mbit/s or ``None``),
                  "virtual"}], without link-local addresses, in the kernel's order
    ssh_address   this node's address of the SSH connection, or ``None``
    neighbours    see ``neighbour_table``
    gpus          the number of their device nodes
    cores         the cores that this process may use
    machine       the machine type as the kernel names it
    names         each of ``params["names"]`` as it resolves here
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
    """Return every address of a name as this node sees it; empty without an address."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(answer[4][0]).split("%")[0] for answer in answers})


def names(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the addresses of this host's own name, in the resolver's order.

    gloo binds to the first address unless an interface is set. ``local``: for each address whether this host has it.
    """
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
    """Return whether a socket can be bound to the address here."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
        return True
    except OSError:
        return False


def tables(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the fill of the kernel's network tables; ``None`` for a table that does not exist here."""
    folder = "/proc/sys/net/"
    return {
        "uid": os.getuid(),
        "conntrack": number(folder + "netfilter/nf_conntrack_count"),
        "conntrack_max": number(folder + "netfilter/nf_conntrack_max"),
        "somaxconn": number(folder + "core/somaxconn"),
    }
