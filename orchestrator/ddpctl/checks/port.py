"""The master port on the master node: whether it is free, and which process has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, Requirements, Target, View
from ddpctl.spec.finding import Finding
from ddpctl.spec.question import Question
from ddpctl_worker.wire.contract import USUAL_PORTS

_AUTO = "set `master_port: auto` for the job"
_ANOTHER = f"{_AUTO}, or a port from {USUAL_PORTS[0]} to {USUAL_PORTS[1]}"


def _port(target: Target, want: Requirements) -> Question | None:
    asked = target.name == want.master and want.master_port is not None
    return Question("port", {"port": want.master_port}) if asked else None


def _judge(view: View) -> Iterable[Finding]:
    for host, found in view.values(_port).items():
        yield from _verdict(host, found)


def _verdict(host: str, found: dict[str, Any]) -> Iterable[Finding]:
    number, owners = found["port"], found["owners"]
    low, high = found["ephemeral"]
    if number < found["unprivileged_start"] and found["uid"] != 0:
        why = f"port {number} is privileged: only root may listen below {found['unprivileged_start']}"
        yield report.error(host, why, fix=_ANOTHER, evidence=found)
    elif found["error"] == "EADDRINUSE":
        why = f"port {number} is taken by {owners_text(owners)}"
        yield report.error(host, why, fix=_fix(owners), command=_command(owners), evidence=found)
    elif found["error"]:
        yield report.error(host, f"port {number} cannot be bound: {found['error']}", fix=_AUTO, evidence=found)
    elif low <= number <= high:
        why = f"port {number} is free now, but in the range {low}-{high} that the system hands out to any connection"
        yield report.info(host, why, fix=_ANOTHER, evidence=found)


def owners_text(owners: list[dict[str, Any]]) -> str:
    """Return ``pid 4711 (python train.py, user ada, listening on 0.0.0.0)``, for the listener if there is one."""
    if not owners:
        return "a socket that is not in /proc/net/tcp (another network namespace?)"
    first = sorted(owners, key=lambda owner: (owner["state"] != "listening", owner["pid"] is None))[0]
    where = f"{first['state']} on {first['address']}"
    if first["pid"] is None:
        return f"a process of user {first['user']} that we may not inspect ({where})"
    job = f", ddpctl job {first['job']}" if first.get("job") else ""
    return f"pid {first['pid']} ({first['command']}, user {first['user']}{job}, {where})"


def _fix(owners: list[dict[str, Any]]) -> str:
    run = next((owner["run"] for owner in owners if owner.get("run")), None)
    return f"{f'`ddpctl kill {run}`, or ' if run else ''}{_AUTO}"


def _command(owners: list[dict[str, Any]]) -> str | None:
    """Return the command that ends the owner. A visible pid belongs to the login's user; ddpctl ends its own jobs."""
    pid = next((owner["pid"] for owner in owners if owner["pid"] is not None), None)
    return None if pid is None or any(owner.get("job") for owner in owners) else f"kill {pid}"


CHECKS = (
    Check(
        "port.master",
        "the master port is free",
        _judge,
        ask=(_port,),
        cause="Another process listens on the job's master_port on the master node: a process left over from an "
        "earlier job, another user's job, a notebook. A listener on 127.0.0.1 alone is enough. A port in TIME_WAIT "
        "does no harm.",
        symptom="The server socket has failed to listen on any local network address. port: 29500, ... code: -98, "
        "name: EADDRINUSE on the master; the other nodes wait 15 minutes",
        fix="End that process, or let ddpctl pick a free port: `master_port: auto`.",
        seen=ON_HOSTS,
    ),
)
