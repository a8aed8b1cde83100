"""This node's addresses and ephemeral ports, how SSH came in, and what names mean here."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List

from ddpctl_worker.facts import amd, nvidia
from ddpctl_worker.net import addresses, neighbour_table, port_range, ssh_address


def network(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """``network_facts``, ``cores`` that we may use, ``gpus`` (their device nodes), ``uid``, and ``names``: each of
    ``params["names"]`` as it resolves here."""
    found = network_facts()
    found["gpus"] = nvidia.devices() or amd.usable()
    found["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found["uid"] = os.getuid()
    found["names"] = {name: _resolve(name) for name in params.get("names", ())}
    return found


def _resolve(name: str) -> List[str]:
    """Every address of a name as this node sees it; empty when it has none."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(answer[4][0]).split("%")[0] for answer in answers})


def network_facts() -> Dict[str, Any]:
    """What the mesh needs to know of a node: its addresses, how SSH came in, its ephemeral ports, its neighbours.

    ``addresses``: [{"address", "family": 4|6, "prefix", "interface", "up", "mtu", "speed" (Mbit/s or None),
    "virtual"}], without link-local ones, in the kernel's order; ``ssh_address``: the address of this node that SSH came
    in by, or None; ``neighbours``: see ``neighbour_table``.
    """
    return {
        "addresses": addresses(),
        "ssh_address": ssh_address(),
        "port_range": list(port_range()),
        "hostname": socket.gethostname(),
        "neighbours": neighbour_table(),
    }
