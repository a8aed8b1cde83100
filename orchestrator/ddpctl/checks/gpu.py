"""GPUs: does the driver work, and are the hosts alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import amd, nvidia, use
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences
from ddpctl.checks.nvidia import KERNEL, Gpu, Smi, labels, smis
from ddpctl.checks.shell import as_root, write_as_root
from ddpctl.spec.finding import Finding, Severity

RECORDED = "recorded output only, never run on real hardware here"

# What is wrong, what a person does, and a command that looks; none of them ends a process or reboots by itself.
_BROKEN = {
    nvidia.HUNG: (
        "nvidia-smi does not end: the driver or a GPU is stuck",
        "reboot the host: no process that hangs in the driver can be ended",
        "dmesg -T | grep -i nvrm",
    ),
    nvidia.MISMATCH: (
        "the driver's library was upgraded and the loaded module was not",
        "reboot the host, or end every process on its GPUs and load the modules again; start a container anew",
        "cat /proc/driver/nvidia/version",
    ),
    nvidia.LOST: ("a GPU does not answer any more", "reboot the host", "dmesg -T | grep -i xid"),
    nvidia.FAILED: ("nvidia-smi fails", None, "nvidia-smi"),
}
# How each family of distributions makes its boot image anew.
_INITRAMFS = {
    "debian": "update-initramfs -u",
    "rhel": "dracut --force",
    "fedora": "dracut --force",
    "suse": "dracut --force",
    "arch": "mkinitcpio -P",
}


# --- the driver ------------------------------------------------------------------------------------------------------


def _ask_driver(target: Target, want: Want) -> Iterable[Question]:
    return (*nvidia.ask(target, want), amd.GPUS)


def _judge_driver(view: View) -> Iterable[Finding]:
    found = smis(view)
    for host, smi in found.items():
        kernel = view.value(host, KERNEL) or {}
        if smi.state in _BROKEN:
            yield _broken(view, host, smi)
        elif smi.state == nvidia.NO_DRIVER and kernel.get("wsl"):
            yield _no_windows_driver(host, smi)
        elif smi.state != nvidia.OK and nvidia.has_gpus(view, host, smi) and not kernel["driver_gpus"]:
            yield _no_driver(view, host, kernel)
        yield from _recovery(view, host)
    for host, value in view.values_of(amd.GPUS).items():
        fault = amd.driver_fault(view, host, value)
        if fault is not None:
            yield fault
    yield from differences(
        "gpu.driver",
        {host: smi.driver for host, smi in found.items() if smi.driver},
        what="NVIDIA driver",
        severity=Severity.INFO,
        fix="harmless as long as each is new enough for the torch build; install the same one when convenient",
    )


def _broken(view: View, host: str, smi: Smi) -> Finding:
    what, fix, command = _BROKEN[smi.state]
    return Finding(
        "gpu.driver",
        Severity.ERROR,
        f"{what}{f': {smi.text}' if smi.text else ''}",
        host,
        fix=fix,
        command=as_root(view, host, command) if command.startswith("dmesg") else command,
        evidence={"state": smi.state, "text": smi.text, "seconds": smi.seconds},
    )


def _no_windows_driver(host: str, smi: Smi) -> Finding:
    return Finding(
        "gpu.driver",
        Severity.WARNING,
        f"WSL2 reaches no NVIDIA driver: {smi.text}",
        host,
        fix="install NVIDIA's driver in Windows, none in Linux, and start WSL anew (`wsl --shutdown` in Windows)",
        evidence={"text": smi.text},
    )


def _no_driver(view: View, host: str, kernel: Mapping[str, Any]) -> Finding:
    cards = len(kernel["gpus"])
    if "nouveau" in kernel["modules"]:
        message = f"{cards} NVIDIA GPU(s), but the nouveau driver holds them: CUDA cannot use them"
        command = _without_nouveau(view, host, kernel.get("distribution") or ())
        fix = "then install NVIDIA's driver and reboot: nouveau stays loaded until then"
    else:
        message = f"{cards} NVIDIA GPU(s) on the PCI bus, but no driver is loaded: torch would run on the processor"
        command = as_root(view, host, "modprobe nvidia")
        fix = "where there is no such module, install NVIDIA's driver"
    severity = Severity.INFO if view.want.backend == "gloo" else Severity.WARNING
    return Finding("gpu.driver", severity, message, host, fix=fix, command=command, evidence=kernel)


def _without_nouveau(view: View, host: str, distribution: Iterable[str]) -> str:
    lines = ("blacklist nouveau", "options nouveau modeset=0")
    write = write_as_root(view, host, "/etc/modprobe.d/blacklist-nouveau.conf", *lines)
    image = next((command for name, command in _INITRAMFS.items() if name in distribution), None)
    return f"{write} && {as_root(view, host, image)}" if image else write


def _recovery(view: View, host: str) -> Iterable[Finding]:
    """What the driver asks for: after some faults nvidia-smi works, its counters are 0, and CUDA does not start."""
    wanted: dict[str, list[Gpu]] = {}
    for gpu in use.gpus(view, host):
        action = gpu.cells.get("gpu_recovery_action") or "None"
        if action != "None":
            wanted.setdefault(action, []).append(gpu)
    for action, gpus in wanted.items():
        reboot, reset = "reboot" in action.lower(), action.lower().endswith("reset") and "drain" not in action.lower()
        these = labels(gpus)
        message = (
            f"{these}: the host must be rebooted before CUDA can start"
            if reboot
            else f"{these} must be reset: CUDA cannot start on {'it' if len(gpus) == 1 else 'them'}"
            if reset
            else f"{these}: the driver asks for: {action}"
        )
        yield Finding(
            "gpu.driver",
            Severity.ERROR if reboot or reset else Severity.WARNING,
            message,
            host,
            fix="reboot it"
            if reboot
            else "nothing may run on the GPUs meanwhile; where the driver refuses, reboot the host",
            command=None if reboot else reset_command(view, host, gpus),
            evidence={"gpu_recovery_action": action, "gpus": [gpu.index for gpu in gpus]},
        )


def reset_command(view: View, host: str, gpus: Iterable[Gpu]) -> str:
    """nvidia-smi refuses it while a process is on the GPU."""
    numbers = ",".join(gpu.index for gpu in gpus)
    smi = nvidia.smi_of(view, host)
    return as_root(view, host, f"{smi.program if smi else 'nvidia-smi'} --gpu-reset -i {numbers}")


def _no_gpu(view: View) -> Mapping[str, str]:
    """Hosts without any: what hides GPUs from the job does not make the driver well."""
    return {host: why for host, why in use.unused(view).items() if why == use.NO_GPU}


# --- alike -----------------------------------------------------------------------------------------------------------


def _judge_model(view: View) -> Iterable[Finding]:
    yield from use.unseen("gpu.model", view)
    models = {host: name for host in smis(view) if (name := _models(view, host))}
    yield from differences(
        "gpu.model",
        models,
        what="GPUs",
        severity=Severity.WARNING,
        fix="DDP runs at the pace of the slowest; put unlike machines into jobs of their own (`labels:`, `nodes:`)",
    )


def _models(view: View, host: str) -> str:
    if host in use.unused(view):
        return ", ".join(sorted({amd.model(gpu) for gpu in amd.gpus(view, host)}))
    gpus = use.gpus(view, host)
    names = {f"{gpu.name} {(gpu.number('memory.total') or 0) / 1024:.0f} GB" for gpu in gpus}
    return ", ".join(sorted(names))


DRIVER = Check(
    "gpu.driver",
    "the GPU driver works",
    _ask_driver,
    _judge_driver,
    Doc(
        cause="nvidia-smi hangs or fails: a GPU fell off the bus, the driver's package was upgraded without a reboot, "
        "the nouveau driver holds the cards, or there is no driver at all. A GPU waits for a reset. AMD: the login may "
        "not open /dev/kfd.",
        symptom="Failed to initialize NVML: Driver/library version mismatch; NVIDIA-SMI has failed because it couldn't "
        "communicate with the NVIDIA driver; Unable to determine the device handle for GPU; nvidia-smi that never ends",
        fix="Reboot after a driver upgrade or a lost GPU; blacklist nouveau and install NVIDIA's driver.",
        verified=RECORDED,
    ),
    exempt=_no_gpu,
)
MODEL = Check(
    "gpu.model",
    "the hosts have the same GPUs",
    _ask_driver,
    _judge_model,
    Doc(
        cause="Different GPU models or memory sizes in one job.",
        symptom="out of memory on one node only; every step as slow as the slowest GPU",
        fix="Put unlike machines into jobs of their own.",
        verified=RECORDED,
    ),
    exempt=use.without_gpus,
)
CHECKS = (DRIVER, MODEL)
