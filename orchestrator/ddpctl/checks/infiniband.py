"""InfiniBand and RoCE: ports that are down where others are up, memory that may not be pinned, addresses that "
"differ."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences, where
from ddpctl.checks.gpu import RECORDED
from ddpctl.checks.host import MACHINE
from ddpctl.spec.finding import Finding, Severity

PORTS = Question("infiniband")
LEAST_MEMLOCK = 1 << 30  # bytes; NCCL pins its buffers, some hundred MB a rank


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (PORTS,)


def _ask_memlock(target: Target, want: Want) -> Iterable[Question]:
    return (PORTS, MACHINE)


def is_active(port: dict[str, Any]) -> bool:
    """``4: ACTIVE``."""
    return "ACTIVE" in str(port["state"]).upper()


def active(value: dict[str, Any]) -> list[dict[str, Any]]:
    return [port for port in value["ports"] if is_active(port)]


def _label(port: dict[str, Any]) -> str:
    return f"{port['device']} port {port['port']}"


def _judge_ports(view: View) -> Iterable[Finding]:
    found = view.values_of(PORTS)
    up: dict[str, list[str]] = {}
    for host, value in found.items():
        for port in active(value):
            up.setdefault(_label(port), []).append(host)
    chosen = {target.name: target.env.get("NCCL_IB_HCA", "") for target in view.targets}
    for host, value in found.items():
        for port in value["ports"]:
            others = [one for one in up.get(_label(port), []) if one != host]
            named = names_device(chosen[host], port["device"])
            if is_active(port) or not (others or named):
                continue  # a port that is down everywhere is a port without a cable
            why = "NCCL_IB_HCA names it" if named else f"it is up on {where(others)}"
            yield Finding(
                "ib.port",
                Severity.ERROR if named else Severity.WARNING,
                f"{_label(port)} is {_word(port['state'])} ({_word(port['phys_state'])}); {why}",
                host,
                fix=f"check the cable and the subnet manager: ssh {host} ibstat {port['device']}; or keep NCCL off it: "
                f"NCCL_IB_HCA=^{port['device']}",
                evidence=port,
            )
    rates = {host: _rates(value) for host, value in found.items() if active(value)}
    yield from differences(
        "ib.port",
        rates,
        what="active ports at",
        severity=Severity.WARNING,
        fix="a link that came up slower than its peers has a bad cable or a wrong port: ibstat",
    )


def names_device(chosen: str, device: str) -> bool:
    """Whether a value of NCCL_IB_HCA (``mlx5_0:1,mlx5_1``, ``=mlx5_0``; ``^`` excludes) asks for a device."""
    if not chosen or chosen.startswith("^"):
        return False
    exact = chosen.startswith("=")
    names = [part.split(":")[0] for part in chosen.lstrip("=").split(",") if part]
    return any(device == name if exact else device.startswith(name) for name in names)


def _word(text: str) -> str:
    return text.partition(":")[2].strip() or text or "unknown"


def _rates(value: dict[str, Any]) -> str:
    """``2 x 200 Gb/sec``."""
    kinds: dict[str, int] = {}
    for port in active(value):
        match = re.match(r"[\d.]+ \S+", port["rate"])
        rate = match.group() if match else port["rate"]
        kinds[rate] = kinds.get(rate, 0) + 1
    return ", ".join(f"{count} x {rate}" for rate, count in sorted(kinds.items()))


def _judge_memlock(view: View) -> Iterable[Finding]:
    machines = view.values_of(MACHINE)
    for host, value in view.values_of(PORTS).items():
        if not active(value) or host not in machines:
            continue
        soft, hard = machines[host]["limits"]["memlock"]
        if hard is not None and hard < LEAST_MEMLOCK and machines[host]["uid"] != 0:
            yield Finding(
                "ib.memlock",
                Severity.ERROR,
                f"a login may pin {hard // 1024} KiB of memory (ulimit -l), and NCCL over InfiniBand pins hundreds of "
                "MB",
                host,
                fix=f"ssh {host} \"printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' | sudo tee "
                '/etc/security/limits.d/90-memlock.conf", then log in again',
                evidence={"memlock": [soft, hard]},
            )


def _judge_gid(view: View) -> Iterable[Finding]:
    found = view.values_of(PORTS)
    for target in view.targets:
        wanted = target.env.get("NCCL_IB_GID_INDEX", "")
        if not wanted.isdigit() or target.name not in found:
            continue
        for port in active(found[target.name]):
            if port["link_layer"] == "Ethernet" and not _is_v2(port, int(wanted)):
                good = [gid["index"] for gid in port["gids"] if _is_v2(port, gid["index"])]
                yield Finding(
                    "ib.gid",
                    Severity.ERROR,
                    f"NCCL_IB_GID_INDEX={wanted} is no RoCE v2 address with IPv4 on {_label(port)}; such are {good}",
                    target.name,
                    fix=f"set NCCL_IB_GID_INDEX={good[0]} for {target.name}, or leave it out: NCCL 2.21 and newer "
                    "find it"
                    if good
                    else f"give the interface of {port['device']} an IPv4 address",
                    evidence=port,
                )


def _is_v2(port: dict[str, Any], index: int) -> bool:
    """RoCE v2 with an IPv4 address (``::ffff:a.b.c.d``)."""
    return any(
        gid["index"] == index and gid["type"] == "RoCE v2" and gid["gid"].startswith("0000:0000:0000:0000:0000:ffff:")
        for gid in port["gids"]
    )


CHECKS = (
    Check(
        "ib.port",
        "InfiniBand ports are up",
        _ask,
        _judge_ports,
        Doc(
            cause="A port of an InfiniBand or RoCE adapter is not ACTIVE, or slower, while the same port of other "
            "hosts is fine. A port that is down on every host is taken for one without a cable.",
            symptom="Got completion with error 12 ... vendor err 129; or silence, and NCCL over slow TCP",
            fix="Cable, switch port, subnet manager; NCCL_IB_HCA to keep off the port.",
            verified=RECORDED,
        ),
    ),
    Check(
        "ib.memlock",
        "memory may be pinned for InfiniBand",
        _ask_memlock,
        _judge_memlock,
        Doc(
            cause="The limit of locked memory (ulimit -l) of a login over SSH is too small for RDMA buffers.",
            symptom="Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            fix="memlock unlimited in /etc/security/limits.d, then a new login.",
            verified=RECORDED,
        ),
    ),
    Check(
        "ib.gid",
        "the RoCE address index fits",
        _ask,
        _judge_gid,
        Doc(
            cause="NCCL_IB_GID_INDEX picks an entry of the adapter's address table that is not RoCE v2 over IPv4.",
            symptom="ibv_modify_qp failed with error Connection timed out",
            fix="The index of the entry with type RoCE v2 and an IPv4 address, which may differ by host.",
            verified=RECORDED,
        ),
    ),
)
