"""The connections between the nodes: every port, link and packet size.

The verdicts read the mesh that the stage measured (``View.mesh``) and the firewalls that it read (``View.firewalls``).
This module holds the helpers that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import Check, Requirements, Target, View
from ddpctl.checks.limits import REASONS_SHOWN
from ddpctl.spec.finding import Finding
from ddpctl.spec.mesh import OK, Dial, Mesh, Pair
from ddpctl.spec.question import Question
from ddpctl.spec.ranges import fold_names


def fold_hosts(hosts: Sequence[str], beside: str, mesh: Mesh) -> str:
    """Return names folded into ranges, or "every other node" for all nodes except ``beside``."""
    if len(hosts) > 1 and set(hosts) == set(mesh.hosts) - {beside}:
        return "every other node"
    return fold_names(hosts)


def dial_json(dial: Dial) -> dict[str, Any]:
    keys = ("dialer", "peer", "address", "port", "status", "errno", "detail", "local", "interface")
    return {key: getattr(dial, key) for key in keys if getattr(dial, key) is not None}


def network_question(target: Target, want: Requirements) -> Question:
    return Question("network", {"names": list(want.fabric_names)} if want.fabric_names else {})


def network_answer(view: View, host: str) -> Mapping[str, Any]:
    """Return the host's answer to the ``network`` question."""
    return view.named(host, "network") or {}


def interface_of(mesh: Mesh, host: str) -> str | None:
    """Return the interface with the host's fabric address, if it is known."""
    fabric = mesh.fabric.get(host)
    return fabric.interface if fabric else None


def one_host(view: View) -> Mapping[str, str]:
    """Exempt a single host, which has no peer to dial."""
    return {view.targets[0].name: "one host"} if len(view.targets) == 1 else {}


mesh_check = partial(Check, exempt=one_host)


def ok_finding(mesh: Mesh, text: str, *, with_note: bool = False) -> Iterable[Finding]:
    """Yield an ok finding if every link was dialled."""
    if mesh.scheduled - mesh.pairs or not any(dial.status == OK for dial in mesh.dials):
        return
    yield report.ok(text + (f" ({mesh.note})" if mesh.note and with_note else ""))


def of_mesh(judge: Callable[[View, Mesh], Iterable[Finding]]) -> Callable[[View], Iterable[Finding]]:
    """Return a verdict that reports undialled links first, and then judges the dialled links."""

    def judged(view: View) -> Iterable[Finding]:
        yield from report_not_dialled(view)
        if view.mesh is not None:
            yield from judge(view, view.mesh)

    return judged


def report_not_dialled(view: View) -> Iterable[Finding]:
    """Report links that were scheduled but not tried: their state is unknown."""
    mesh = view.mesh
    if mesh is None:
        if len(view.targets) > 1:
            yield report.unknown(
                None,
                "not checked: the nodes did not connect to each other, because the master or every other host did "
                "not answer",
            )
        return
    missing = mesh.scheduled - mesh.pairs
    if missing:
        why = _reasons(mesh, missing)
        shown = "; ".join(f"{host}: {reason}" for host, reason in list(why.items())[:REASONS_SHOWN])
        more = f"; and {len(why) - REASONS_SHOWN} more hosts" if len(why) > REASONS_SHOWN else ""
        yield report.unknown(
            report.single_host(list(why)),
            f"not checked: {len(missing)} of {len(mesh.scheduled)} links were not tried ({shown}{more})",
            evidence={"hosts": list(why), "links": [list(pair) for pair in sorted(missing)[:20]]},
        )


def _reasons(mesh: Mesh, missing: Iterable[Pair]) -> dict[str, str]:
    """Return the hosts that explain why these links were not dialled."""
    found: dict[str, str] = {}
    for pair in sorted(missing):
        absent = next((host for host in reversed(pair) if host in mesh.absent), None)
        homeless = next((host for host in reversed(pair) if host not in mesh.fabric), None)
        if absent is not None:
            found[absent] = mesh.absent[absent]
        elif homeless is not None:
            found[homeless] = "no address that the others could reach"
        else:
            found.setdefault(pair[0], "it did not report on its connections")
    return found
