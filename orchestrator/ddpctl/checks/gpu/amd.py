"""AMD GPUs: the kernel's report, and whether the login may use them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import View
from ddpctl.spec.finding import Finding
from ddpctl.spec.question import Question
from ddpctl.spec.values import plural

GPUS = Question("amd_gpus")


def gpus(view: View, host: str) -> list[dict[str, Any]]:
    """Return the GPUs that the kernel's compute driver has and that have device nodes."""
    value = view.value(host, GPUS)
    if not value or "/dev/kfd" in value["missing"]:
        return []
    return [gpu for gpu in value["gpus"] if gpu["render"] not in value["missing"]]


def has_gpus(view: View, host: str) -> bool:
    """Return whether the host has AMD GPUs at all, usable or not."""
    value = view.value(host, GPUS)
    return bool(value and (value["gpus"] or value["pci"]))


def model(gpu: dict[str, Any]) -> str:
    """Return the GPU as ``gfx942 192 GB``: the kernel knows no marketing names."""
    size = f" {gpu['total'] / (1 << 30):.0f} GB" if gpu["total"] else ""
    return f"{target_name(gpu['gfx'])}{size}"


def target_name(packed: int) -> str:
    """Return ``gfx90a`` for 90010: decimal major, minor and step, the last two as hexadecimal digits."""
    return f"gfx{packed // 10000}{packed // 100 % 100:x}{packed % 100:x}"


def driver_faults(view: View, host: str, value: dict[str, Any]) -> Iterable[Finding]:
    """Report why a process of this login cannot use the host's AMD GPUs."""
    if value["pci"] and not value["gpus"]:
        yield report.warning(
            host,
            f"{plural(len(value['pci']), 'AMD GPU')} on the PCI bus, but the amdgpu driver has none of them: torch "
            "would run on the CPU",
            fix="if there is no such module, install AMD's driver (amdgpu-dkms) and reboot",
            command=report.as_root(view, host, "modprobe amdgpu"),
            evidence=value,
        )
    elif value["closed"]:
        first, *others = value["closed"]
        yield report.error(
            host,
            f"{value['user']} may not open {first}{f' and {len(others)} more' if others else ''}: HIP sees no GPU",
            fix="it takes effect at the next login: end running connections to the host first",
            command=report.as_root(view, host, f"usermod -aG render,video {shlex.quote(value['user'])}"),
            evidence=value,
        )
