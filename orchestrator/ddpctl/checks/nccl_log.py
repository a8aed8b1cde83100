"""The network that NCCL took in the rehearsal, in its own words (NCCL_DEBUG=INFO)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddpctl.checks import hca
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.gpu import RECORDED
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.ranges import fold

CHECK = "deep.network"
SOCKET = "Socket"
_USING = re.compile(r"Using network (.+)")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for ")


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return ()


def _judge(view: View) -> Iterable[Finding]:
    told = {host: answer.get("nccl", ()) for host, answer in (view.rehearsal or {}).items() if _by_nccl(answer)}
    used = {host: _networks(lines) for host, lines in told.items()}
    for host in (host for host, names in used.items() if not names):
        yield Finding(CHECK, Severity.UNKNOWN, "not looked at: NCCL did not say what network it uses", host)
    kinds = {names for names in used.values() if names}
    if len(kinds) > 1:
        yield _differ(used)
        return
    found = [finding for host, lines in told.items() for finding in _of_host(view, host, used[host], lines)]
    yield from found
    if kinds and not found:
        yield Finding(CHECK, Severity.OK, f"NCCL uses the network {', '.join(next(iter(kinds)))} on {fold(list(used))}")


def _by_nccl(answer: Mapping[str, Any]) -> bool:
    """Whether a rank there got far enough with NCCL to have chosen a network."""
    reports = [rank.get("report") or {} for rank in answer.get("ranks", {}).values()]
    return any(report.get("ok") and report.get("backend") == "nccl" for report in reports)


def _networks(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({match.group(1).strip() for line in lines if (match := _USING.search(line))}))


def _differ(used: Mapping[str, tuple[str, ...]]) -> Finding:
    hosts: dict[tuple[str, ...], list[str]] = {}
    for host, names in used.items():
        if names:
            hosts.setdefault(names, []).append(host)
    words = "; ".join(f"{', '.join(names)} on {fold(own)}" for names, own in hosts.items())
    return Finding(
        CHECK,
        Severity.WARNING,
        f"NCCL does not use the same network everywhere: {words}",
        fix="the hosts must have the same network plugins and working RDMA devices; NCCL's own lines are in the "
        "evidence (`ddpctl preflight --deep --json`)",
        evidence={"networks": {host: list(names) for host, names in used.items()}},
    )


def _of_host(view: View, host: str, names: tuple[str, ...], lines: Sequence[str]) -> Iterable[Finding]:
    up = hca.used_and_up(view).get(host, [])
    if names == (SOCKET,) and up:
        why = next((line for line in lines if line.startswith("NET/IB") and "Using" not in line), None)
        yield Finding(
            CHECK,
            Severity.WARNING,
            f"NCCL sends over TCP (Using network {SOCKET}) though {up[0]['device']} port {up[0]['port']} is active"
            f"{f': {why}' if why else ''}",
            host,
            fix="the job must be able to open /dev/infiniband/uverbs* and to load libibverbs (in a container both have "
            "to be passed in), and NCCL_IB_DISABLE and NCCL_NET must not say otherwise",
            command="ls -l /dev/infiniband; ldconfig -p | grep -e ibverbs -e mlx5; env | grep ^NCCL_",
            evidence={"nccl": list(lines)},
        )
    direct = {match.group(1) for line in lines if "NET/Socket" not in line and (match := _GDR.search(line))}
    if names and SOCKET not in names and direct == {"Disabled"}:
        yield Finding(
            CHECK,
            Severity.WARNING,
            f"NCCL copies through the host's memory: {next(line for line in lines if _GDR.search(line))}",
            host,
            fix="GPU Direct RDMA takes the module nvidia_peermem, or DMA-BUF (Linux 5.12, the open GPU kernel modules, "
            "NCCL 2.12), and a GPU that can (no GeForce); a distance in the line means that the GPU and the HCA are "
            "too far apart for it",
            command="lsmod | grep -e nvidia_peermem -e nv_peer_mem; nvidia-smi topo -m",
            evidence={"nccl": list(lines)},
        )


NETWORK = Check(
    CHECK,
    "NCCL uses the network that the hosts have (--deep)",
    _ask,
    _judge,
    Doc(
        cause="NCCL falls back to TCP without a word where it finds no RDMA device that it can open, and copies "
        "through the host's memory where GPU Direct RDMA does not work.",
        symptom="NCCL INFO NET/IB : No device found. / Using network Socket; GPU Direct RDMA Disabled for HCA 0; the "
        "job runs, at a fraction of the speed",
        fix="Pass /dev/infiniband and libibverbs into the container; load nvidia_peermem.",
        verified=RECORDED,
    ),
)
