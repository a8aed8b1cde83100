"""Words that the mesh's findings share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import OK, Dial, Mesh
from ddpctl.spec.ranges import fold


def names(hosts: Sequence[str], beside: str, mesh: Mesh) -> str:
    """Names folded into ranges; "every other node" for all that there are beside one."""
    if len(hosts) > 1 and set(hosts) == set(mesh.hosts) - {beside}:
        return "every other node"
    return fold(hosts)


def dial_json(dial: Dial) -> dict[str, Any]:
    keys = ("dialer", "peer", "address", "port", "status", "errno", "detail", "local", "interface")
    return {key: getattr(dial, key) for key in keys if getattr(dial, key) is not None}


def fine(check: str, mesh: Mesh, text: str) -> Iterable[Finding]:
    """An ok finding, where anything was reached at all; the text may name port, master, links, hosts and note."""
    if not any(dial.status == OK for dial in mesh.dials):
        return
    links = len(mesh.pairs)
    note = f" ({mesh.note})" if mesh.note else ""
    words = text.format(port=mesh.master_port, master=mesh.master, links=links, hosts=len(mesh.hosts), note=note)
    yield Finding(check, Severity.OK, words)
