"""Traffic from GPU to GPU over PCI Express: bridges and IOMMUs that send it the long way, where it may never arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.env import RECORDED, nccl_settings, question, without_nccl
from ddpctl.checks.limits import ranks
from ddpctl.checks.nvidia import KERNEL, SMI, Smi, smis
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity

PATHS = Question("gpu_paths")
REDIRECTS = 0b1100  # ReqRedir and CmpltRedir of ACSCtl: requests and answers go up to the root
# Modules that are joined by NVLink, and cards for desktops, between which the driver allows no P2P.
_NO_PCI_P2P = ("SXM", "HBM3", "H200", "B200", "B300", "GB200", "GB300", "GH200", "GeForce")


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (PATHS, KERNEL, SMI, question(target))


def _exempt(view: View) -> dict[str, str]:
    """Where GPUs do not talk to each other over PCI Express, or where a guest cannot see how."""
    paths, kernels, every = view.values_of(PATHS), view.values_of(KERNEL), smis(view)
    asked = [t for t in view.targets if t.name in paths and t.name in kernels and t.name in every]
    reasons = {t.name: _why_not(view, t, paths[t.name], kernels[t.name], every[t.name]) for t in asked}
    return {**{host: why for host, why in reasons.items() if why}, **without_nccl(view)}


def _why_not(view: View, target: Target, paths: Any, kernel: Any, smi: Smi) -> str | None:
    if len(paths["gpus"]) < 2 or (target.nproc is not None and ranks(target) < 2):
        return "fewer than two GPUs work together"
    if paths["virtual"]:
        return "a virtual machine"
    names = [gpu.name or "" for gpu in smi.gpus]
    joined = any(part in name for name in names for part in _NO_PCI_P2P)
    if kernel["switches"] or joined or not names:
        return "its GPUs do not talk over PCI Express"
    off = nccl_settings(view, target).get("NCCL_P2P_DISABLE", "0")
    return None if off in ("", "0") else f"NCCL_P2P_DISABLE={off}"


def _judge(view: View) -> Iterable[Finding]:
    away, every = _exempt(view), smis(view)
    for host, paths in view.values_of(PATHS).items():
        if host in away or host not in every:
            continue
        redirecting = [bridge for bridge, control in paths["acs"].items() if (control or 0) & REDIRECTS]
        translated = sorted({gpu["iommu"] for gpu in paths["gpus"].values() if str(gpu["iommu"]).startswith("DMA")})
        if redirecting:
            yield _acs(view, host, paths, redirecting)
        elif translated:
            yield _iommu(host, paths, translated)
        elif None in paths["acs"].values():
            yield Finding("gpu.acs", Severity.UNKNOWN, "not looked at: the bridges' ACS is for root only", host)


def _acs(view: View, host: str, paths: Mapping[str, Any], bridges: list[str]) -> Finding:
    clear = "; ".join(f"setpci -s {bridge} ECAP_ACS+6.w=0000" for bridge in bridges)
    return Finding(
        "gpu.acs",
        Severity.WARNING,
        f"{len(bridges)} PCI bridge(s) above the GPUs redirect traffic between them (ACS): P2P is slow, and on some "
        "boards NCCL hangs in the first collective",
        host,
        fix="it lasts until the next reboot: switch ACS off in the BIOS. It takes away the isolation that virtual "
        "machines with devices of their own need. Or set NCCL_P2P_DISABLE=1 for it (`env:`)",
        command=as_root(view, host, f"sh -c '{clear}'"),
        evidence={"acs": {bridge: f"{paths['acs'][bridge]:#06x}" for bridge in bridges}},
    )


def _iommu(host: str, paths: Mapping[str, Any], kinds: list[str]) -> Finding:
    return Finding(
        "gpu.acs",
        Severity.WARNING,
        f"the IOMMU translates what the GPUs send each other ({', '.join(kinds)}): P2P is slow, and on some boards "
        "NCCL hangs in the first collective",
        host,
        fix="boot with iommu=pt on the kernel's command line; or set NCCL_P2P_DISABLE=1 for it (`env:`)",
        command="cat /proc/cmdline /sys/kernel/iommu_groups/*/type",
        evidence={"iommu": {slot: gpu["iommu"] for slot, gpu in paths["gpus"].items()}},
    )


CHECKS = (
    Check(
        "gpu.acs",
        "GPUs reach each other over PCI Express",
        _ask,
        _judge,
        Doc(
            cause="On a machine that is not virtual, with several GPUs without NVLink: bridges with ACS switched on, "
            "or an IOMMU that translates, send what goes from GPU to GPU up to the root.",
            symptom="the first all-reduce hangs with all GPUs at 100 %; NCCL_P2P_DISABLE=1 makes it work",
            fix="ACS off in the BIOS (or by setpci), iommu=pt; NCCL_P2P_DISABLE=1 as a way around.",
            verified=RECORDED,
        ),
        exempt=_exempt,
    ),
)
