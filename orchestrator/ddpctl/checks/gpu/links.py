"""The links between the GPUs of a host: NVSwitches that need a fabric manager, or PCI Express bridges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import env, python, report
from ddpctl.checks.base import Target, View
from ddpctl.checks.gpu import in_use
from ddpctl.checks.limits import FABRIC_MANAGER_S
from ddpctl.spec import nvidia
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.nvidia import KERNEL, SMI, Gpu, Smi, labels
from ddpctl.spec.question import Question
from ddpctl.spec.values import plural

FABRIC = Question("fabric_manager", deadline=FABRIC_MANAGER_S)
_DOWN = ("inactive", "failed", "activating", "deactivating")  # any other word is not an answer of systemd
_WAITING = ("In Progress", "Not Started")  # fabric.state, since Hopper
PATHS = Question("gpu_paths")
REDIRECTS = 0b1100  # ReqRedir and CmpltRedir of ACSCtl: requests and replies go up to the root
# Modules that are joined by NVLink, and desktop cards, between which the driver allows no P2P.
_NO_PCI_P2P = ("SXM", "HBM3", "H200", "B200", "B300", "GB200", "GB300", "GH200", "GeForce")


# --- NVSwitches ------------------------------------------------------------------------------------------------------


def _judge_fabric(view: View) -> Iterable[Finding]:
    exempt = _without_switches(view)
    for host, value in view.values(FABRIC).items():
        gpus = in_use.gpus(view, host)
        if host in exempt:
            continue
        live = in_use.live_devices(view, host)
        starts = live is not None and live.works and bool(live.buses)
        # A fabric manager has registered these GPUs. In a virtual machine it runs on the host below.
        registered = [gpu for gpu in gpus if gpu.cells.get("fabric.state") == "Completed"]
        fault = None if registered else _fault(view, host, value)
        waiting = _waiting(gpus)
        if fault:
            yield _not_running(view, host, fault, starts, value)
        elif waiting and not starts:
            yield _wait(view, host, waiting, live)
        elif value and not registered and _state(view, host, value) is None and not starts:
            yield report.unknown(host, "not checked: systemd does not answer here")


def _without_switches(view: View) -> Mapping[str, str]:
    found = dict(in_use.unused_gpus(view))
    for host, value in view.values(FABRIC).items():
        if value is None and not _waiting(in_use.gpus(view, host)):
            found.setdefault(host, "no NVSwitch found")
    return found


def _waiting(gpus: Iterable[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.cells.get("fabric.state") in _WAITING]


def _state(view: View, host: str, value: Mapping[str, Any]) -> str | None:
    """Return systemd's state of the fabric manager. In a container systemd's answer does not count."""
    active = value.get("active")
    word = active["stdout"].strip() if active else ""
    if word == "active":
        return "active"
    return word if word in _DOWN and not (view.value(host, nvidia.KERNEL) or {}).get("container") else None


def _fault(view: View, host: str, value: Mapping[str, Any] | None) -> str | None:
    """Return the fault of the fabric manager, if a fault is known."""
    if value is None:
        return None
    state = _state(view, host, value)
    driver = _driver(view, host)
    if state in _DOWN:
        return f"nvidia-fabricmanager is {state}"
    version = re.search(r"\d+(\.\d+)+", (value.get("version") or {}).get("stdout", ""))
    if state == "active" and version and driver and version.group() != driver:
        return f"nvidia-fabricmanager is {version.group()} and the driver {driver}: they must be the same"
    return None


def _driver(view: View, host: str) -> str | None:
    smi = in_use.smis(view).get(host)
    return smi.driver if smi else None


def _not_running(view: View, host: str, fault: str, starts: bool, value: Mapping[str, Any] | None) -> Finding:
    driver = _driver(view, host) or "the driver"
    start = report.as_root(view, host, "systemctl enable --now nvidia-fabricmanager")
    harm = (
        "CUDA works until the next reset of a GPU, then it fails with error 802"
        if starts
        else "CUDA fails with error 802 on GPUs behind NVSwitches"
    )
    return report.finding(
        Severity.WARNING if starts else Severity.ERROR,
        host,
        f"{fault}: {harm}",
        fix=f"install the nvidia-fabricmanager package of exactly the driver's version, {driver}",
        command=start if "they" not in fault else None,
        evidence=value or {},
    )


def _wait(view: View, host: str, waiting: list[Gpu], live: in_use.LiveDevices | None) -> Finding:
    """Report a wait as a warning, unless CUDA fails: after the boot the fabric manager may take minutes to start."""
    sure = live is not None and live.error is not None
    smi = in_use.smis(view)[host]
    return report.finding(
        Severity.ERROR if sure else Severity.WARNING,
        host,
        f"{labels(waiting)}: fabric state {waiting[0].cells['fabric.state']}, so CUDA fails with error 802 until the "
        f"fabric manager has registered {'it' if len(waiting) == 1 else 'them'}",
        fix="start nvidia-fabricmanager on the machine that has the NVSwitches; for a virtual machine, that is its "
        "host",
        command=f"{smi.program} -q | grep -A 3 -w Fabric",
        evidence={"fabric.state": waiting[0].cells["fabric.state"]},
    )


# --- PCI Express -----------------------------------------------------------------------------------------------------


def _without_p2p(view: View) -> dict[str, str]:
    """Exempt hosts with GPUs that do not use PCI Express to reach each other, and guests, which cannot see the path."""
    paths, kernels, every = view.values(PATHS), view.values(KERNEL), in_use.smis(view)
    asked = [t for t in view.targets if t.name in paths and t.name in kernels and t.name in every]
    reasons = {t.name: _why_not(view, t, paths[t.name], kernels[t.name], every[t.name]) for t in asked}
    return {**{host: why for host, why in reasons.items() if why}, **env.without_nccl(view)}


def _why_not(view: View, target: Target, paths: Any, kernel: Any, smi: Smi) -> str | None:
    if len(paths["gpus"]) < 2 or (target.nproc is not None and target.ranks < 2):
        return "fewer than two GPUs work together"
    if paths["virtual"]:
        return "a virtual machine"
    names = [gpu.name or "" for gpu in smi.gpus]
    joined = any(part in name for name in names for part in _NO_PCI_P2P)
    if kernel["switches"] or joined or not names:
        return "its GPUs do not talk over PCI Express"
    off = env.nccl_settings(view, target).get("NCCL_P2P_DISABLE", "0")
    return None if off in ("", "0") else f"NCCL_P2P_DISABLE={off}"


def _judge_p2p(view: View) -> Iterable[Finding]:
    away, every = _without_p2p(view), in_use.smis(view)
    for host, paths in view.values(PATHS).items():
        if host in away or host not in every:
            continue
        redirecting = [bridge for bridge, control in paths["acs"].items() if (control or 0) & REDIRECTS]
        translated = sorted({gpu["iommu"] for gpu in paths["gpus"].values() if str(gpu["iommu"]).startswith("DMA")})
        if redirecting:
            yield _acs(view, host, paths, redirecting)
        elif translated:
            yield _iommu(host, paths, translated)
        elif None in paths["acs"].values():
            yield report.unknown(host, "not checked: only root can read the bridges' ACS")


def _acs(view: View, host: str, paths: Mapping[str, Any], bridges: list[str]) -> Finding:
    clear = "; ".join(f"setpci -s {bridge} ECAP_ACS+6.w=0000" for bridge in bridges)
    return report.warning(
        host,
        f"ACS on {plural(len(bridges), 'PCI bridge')} redirects the traffic between GPUs: P2P is slow, and on some "
        "boards NCCL hangs in the first collective",
        fix="it lasts until the next reboot: disable ACS in the BIOS too. That removes the isolation that virtual "
        "machines with devices of their own need. Or set NCCL_P2P_DISABLE=1 for it (`env:`)",
        command=report.as_root(view, host, f"sh -c '{clear}'"),
        evidence={"acs": {bridge: f"{paths['acs'][bridge]:#06x}" for bridge in bridges}},
    )


def _iommu(host: str, paths: Mapping[str, Any], kinds: list[str]) -> Finding:
    return report.warning(
        host,
        f"the IOMMU translates the traffic between the GPUs ({', '.join(kinds)}): P2P is slow, and on some boards "
        "NCCL hangs in the first collective",
        fix="boot with iommu=pt on the kernel's command line; or set NCCL_P2P_DISABLE=1 for it (`env:`)",
        command="cat /proc/cmdline /sys/kernel/iommu_groups/*/type",
        evidence={"iommu": {slot: gpu["iommu"] for slot, gpu in paths["gpus"].items()}},
    )


CHECKS = (
    in_use.gpu_check(
        "gpu.fabric",
        "the NVSwitch fabric manager runs",
        _judge_fabric,
        ask=(FABRIC, *nvidia.ASK, python.live_question),
        cause="On machines with NVSwitches (HGX, DGX) CUDA starts only when nvidia-fabricmanager of exactly the "
        "driver's version runs, and has registered every GPU.",
        symptom="Error 802: system not yet initialized; cudaErrorSystemNotReady",
        fix="Install the fabric manager of the driver's version and start it.",
        exempt=_without_switches,
    ),
    in_use.gpu_check(
        "gpu.acs",
        "GPUs reach each other over PCI Express",
        _judge_p2p,
        ask=(PATHS, KERNEL, SMI, env.question),
        cause="On a machine that is not virtual, with several GPUs without NVLink: bridges with ACS switched on, or "
        "an IOMMU that translates, send the traffic between GPUs up to the root.",
        symptom="the first all-reduce hangs with all GPUs at 100 %; NCCL_P2P_DISABLE=1 makes it work",
        fix="Disable ACS in the BIOS (or by setpci), iommu=pt; NCCL_P2P_DISABLE=1 as a workaround.",
        exempt=_without_p2p,
    ),
)
