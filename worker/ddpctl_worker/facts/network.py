"""This node's addresses and ephemeral ports, how SSH came in, and what names mean here."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List

from ddpctl_worker.addresses import network_facts
from ddpctl_worker.facts import amd, nvidia


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
