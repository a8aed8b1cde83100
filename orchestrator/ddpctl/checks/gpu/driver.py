"""GPUs: whether the driver works, the hosts are alike, and every process of the job has a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import python, report
from ddpctl.checks.base import Target, View
from ddpctl.checks.gpu import amd, in_use
from ddpctl.spec import nvidia
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_by, name_hosts
from ddpctl.spec.nvidia import KERNEL, Gpu, Smi, labels
from ddpctl.spec.values import plural

# (fault, fix, command that shows more). No command ends a process or reboots the host.
_BROKEN = {
    nvidia.HUNG: (
        "nvidia-smi hangs: the driver or a GPU is stuck",
        "reboot the host: a process that is stuck in the driver cannot be killed",
        "dmesg -T | grep -i nvrm",
    ),
    nvidia.MISMATCH: (
        "the driver's library was upgraded and the loaded module was not",
        "reboot the host, or end every process on its GPUs and reload the modules; restart a container",
        "cat /proc/driver/nvidia/version",
    ),
    nvidia.LOST: ("a GPU no longer answers", "reboot the host", "dmesg -T | grep -i xid"),
    nvidia.FAILED: ("nvidia-smi fails", None, "nvidia-smi"),
}
# words of nvidia-smi's message -> what ends the fault
_FIXES = {
    "Unknown Error": "in a container: restart it; `systemctl daemon-reload` on its host took its access to the GPUs",
    "Insufficient Permissions": "this login may not open /dev/nvidia*: see its groups, SELinux, and the options of the "
    "nvidia module",
    "libnvidia-ml.so": "in a container: start it with NVIDIA's container runtime, or run ldconfig in it; elsewhere "
    "install NVIDIA's driver libraries",
}
# The command of each family of distributions that rebuilds the boot image.
_INITRAMFS = {
    "debian": "update-initramfs -u",
    "rhel": "dracut --force",
    "fedora": "dracut --force",
    "suse": "dracut --force",
    "arch": "mkinitcpio -P",
}


# --- the driver ------------------------------------------------------------------------------------------------------


def _judge_driver(view: View) -> Iterable[Finding]:
    found = in_use.smis(view)
    for host, smi in found.items():
        kernel = view.value(host, KERNEL) or {}
        if smi.state in _BROKEN:
            yield _broken(view, host, smi)
        elif smi.state == nvidia.NO_DRIVER and kernel.get("wsl"):
            yield report.warning(
                host,
                f"WSL2 finds no NVIDIA driver: {smi.text}",
                fix="install NVIDIA's driver in Windows, none in Linux, and restart WSL (`wsl --shutdown` in Windows)",
                evidence={"text": smi.text},
            )
        elif smi.state != nvidia.OK and in_use.has_gpus(view, host, smi) and not kernel["driver_gpus"]:
            yield _no_driver(view, host, kernel)
        elif smi.state in (nvidia.NO_DEVICES, nvidia.NO_DRIVER) and kernel.get("driver_gpus"):
            yield _no_start(view, host, smi, kernel)
        yield from _recovery(view, host)
        yield from _faults(view, host, smi)
    for host, value in view.values(amd.GPUS).items():
        yield from amd.driver_faults(view, host, value)
    yield from report.differences(
        Severity.INFO,
        {host: smi.driver for host, smi in found.items() if smi.driver},
        what="NVIDIA driver",
        fix="harmless as long as each is new enough for the torch build; install the same one when convenient",
    )


def _no_start(view: View, host: str, smi: Smi, kernel: Mapping[str, Any]) -> Finding:
    cards = plural(len(kernel["driver_gpus"]), "GPU")
    return report.error(
        host,
        f"the NVIDIA driver is loaded for {cards}, but cannot start or reach {'it' if cards == '1 GPU' else 'them'}: "
        f"{smi.text}",
        fix="the kernel log has the reason (RmInitAdapter, Xid); on a new machine, turn on Above 4G Decoding and "
        "Resizable BAR in the firmware",
        command=report.as_root(view, host, "dmesg -T") + " | grep -i nvrm",
        evidence={"text": smi.text, "driver_gpus": kernel["driver_gpus"]},
    )


def _faults(view: View, host: str, smi: Smi) -> Iterable[Finding]:
    """Report the GPUs whose values nvidia-smi replaces by a fault, and its warnings beside the table."""
    asked = {gpu.index for gpu in in_use.gpus(view, host) if gpu.cells.get("gpu_recovery_action") not in (None, "None")}
    faults = group_by(lambda gpu: gpu.fault or "", (gpu for gpu in smi.gpus if gpu.index not in asked))
    faults.pop("", None)
    for fault, gpus in faults.items():
        reset = "reset" in fault.lower()
        must = (
            " must be reset: CUDA cannot start there"
            if reset
            else " has a fault"
            if len(gpus) == 1
            else " have a fault"
        )
        yield report.finding(
            Severity.ERROR if reset else Severity.WARNING,
            host,
            f"{labels(gpus)}{must}; nvidia-smi shows [{fault}]",
            fix="nothing may run on the GPUs meanwhile; where the driver refuses, reboot the host"
            if reset
            else "the kernel log has the reason; where CUDA fails on the GPU too, drain the host and reboot it",
            command=in_use.reset(view, host, gpus) if reset else smi.program,
            evidence={"fault": fault, "gpus": [gpu.index for gpu in gpus]},
        )
    for line in smi.warnings:
        yield report.warning(
            host,
            f"nvidia-smi warns: {line.removeprefix('WARNING: ')}",
            fix="the GPU works; report it to the vendor",
            evidence={"line": line},
        )


def _broken(view: View, host: str, smi: Smi) -> Finding:
    what, fix, command = _BROKEN[smi.state]
    fix = fix or next((known for words, known in _FIXES.items() if words in smi.text), None)
    return report.error(
        host,
        f"{what}{f': {smi.text}' if smi.text else ''}",
        fix=fix,
        command=report.as_root(view, host, command) if command.startswith("dmesg") else command,
        evidence={"state": smi.state, "text": smi.text, "seconds": smi.seconds},
    )


def _no_driver(view: View, host: str, kernel: Mapping[str, Any]) -> Finding:
    cards = len(kernel["gpus"])
    if "nouveau" in kernel["modules"]:
        message = f"{plural(cards, 'NVIDIA GPU')} held by the nouveau driver: CUDA cannot use them"
        command = _without_nouveau(view, host, kernel.get("distribution") or ())
        fix = "then install NVIDIA's driver and reboot: nouveau stays loaded until then"
    else:
        message = f"{plural(cards, 'NVIDIA GPU')} on the PCI bus, but no driver is loaded: torch would run on the CPU"
        command = report.as_root(view, host, "modprobe nvidia")
        fix = "if there is no such module, install NVIDIA's driver"
    severity = Severity.INFO if view.requirements.backend == "gloo" else Severity.WARNING
    return report.finding(severity, host, message, fix=fix, command=command, evidence=kernel)


def _without_nouveau(view: View, host: str, distribution: Iterable[str]) -> str:
    lines = ("blacklist nouveau", "options nouveau modeset=0")
    write = report.write_as_root(view, host, "/etc/modprobe.d/blacklist-nouveau.conf", *lines)
    image = next((command for name, command in _INITRAMFS.items() if name in distribution), None)
    return f"{write} && {report.as_root(view, host, image)}" if image else write


def _recovery(view: View, host: str) -> Iterable[Finding]:
    """Report the recovery action that the driver asks for.

    After some faults nvidia-smi works and its counters are 0, but CUDA does not start.
    """
    actions = group_by(lambda gpu: gpu.cells.get("gpu_recovery_action") or "None", in_use.gpus(view, host))
    actions.pop("None", None)
    for action, gpus in actions.items():
        reboot, reset = "reboot" in action.lower(), action.lower().endswith("reset") and "drain" not in action.lower()
        these = labels(gpus)
        message = (
            f"{these}: the host must be rebooted before CUDA can start"
            if reboot
            else f"{these} must be reset: CUDA cannot start on {'it' if len(gpus) == 1 else 'them'}"
            if reset
            else f"{these}: the driver asks for: {action}"
        )
        yield report.finding(
            Severity.ERROR if reboot or reset else Severity.WARNING,
            host,
            message,
            fix="reboot it"
            if reboot
            else "nothing may run on the GPUs meanwhile; where the driver refuses, reboot the host",
            command=None if reboot else in_use.reset(view, host, gpus),
            evidence={"gpu_recovery_action": action, "gpus": [gpu.index for gpu in gpus]},
        )


def _no_gpu(view: View) -> Mapping[str, str]:
    """Exempt only hosts without GPUs: the driver has to work even if the GPUs are hidden from the job."""
    return {host: why for host, why in in_use.unused_gpus(view).items() if why == in_use.NO_GPU}


# --- alike -----------------------------------------------------------------------------------------------------------


def _judge_model(view: View) -> Iterable[Finding]:
    yield from in_use.report_unseen(view)
    models = {host: name for host in in_use.smis(view) if (name := _models(view, host))}
    yield from report.differences(
        Severity.WARNING,
        models,
        what="GPUs",
        fix="DDP runs at the pace of the slowest; put different machines into separate jobs (`labels:`, `nodes:`)",
    )


def _models(view: View, host: str) -> str:
    if host in in_use.unused_gpus(view):
        return ", ".join(sorted({amd.model(gpu) for gpu in amd.gpus(view, host)}))
    gpus = in_use.gpus(view, host)
    return ", ".join(sorted({_describe_model(gpu) for gpu in gpus}))


def _describe_model(gpu: Gpu) -> str:
    """Return name and memory. A GPU that shares the memory of its host (GB10) has no memory of its own."""
    memory = gpu.number("memory.total")
    return gpu.name or "?" if memory is None else f"{gpu.name} {memory / 1024:.0f} GB"


def _judge_count(view: View) -> Iterable[Finding]:
    if view.requirements.backend == "gloo":
        return
    yield from in_use.report_unseen(view, lambda host: in_use.devices(view, view.target(host)) is None)
    asked = [target for target in view.targets if target.name in in_use.smis(view)]
    found = {target.name: count for target in asked if (count := in_use.devices(view, target)) is not None}
    some = {host: count for host, count in found.items() if count}
    if some or view.requirements.backend == "nccl":
        yield from _without(view, found, some)
    for target in view.targets:
        count = some.get(target.name, 0)
        if count and target.nproc is not None and target.nproc > count:
            yield _too_few(view, target, count)
    yield from _shared(view)
    auto = {target.name: some[target.name] for target in view.targets if target.nproc is None and target.name in some}
    yield from report.differences(
        Severity.WARNING,
        auto,
        what="GPUs:",
        fix="fine if the machines differ; otherwise a GPU is missing: compare `nvidia-smi -L` of the hosts",
    )


def _without(view: View, found: Mapping[str, int], some: Mapping[str, int]) -> Iterable[Finding]:
    for host, count in found.items():
        smi = in_use.smis(view)[host]
        broken = smi.state not in (nvidia.OK, *nvidia.NO_GPU)
        if count or broken or (smi.count and host not in in_use.unused_gpus(view)):
            continue  # reported by gpu.driver, or by gpu.cuda
        yield report.error(
            host,
            f"{_asks_for_nccl(view)}{host} shows no usable GPU ({_why_none(view, host, smi)}){_others(some)}",
            fix=f"NCCL needs a GPU on every node: leave {host} out (`nodes:` of the job), or run the job with gloo",
            evidence={"gpus": dict(found)},
        )


def _asks_for_nccl(view: View) -> str:
    return f"{view.requirements.backend_place} asks for nccl, and " if view.requirements.backend_place else ""


def _others(some: Mapping[str, int]) -> str:
    if not some:
        return ""
    host, count = next(iter(some.items()))
    return f"; {host} has {count}" if len(some) == 1 else f"; {name_hosts(list(some))} have some"


def _why_none(view: View, host: str, smi: Smi) -> str:
    hidden = in_use.unused_gpus(view).get(host, "")
    if smi.gpus and all(gpu.is_on("mig.mode.current") for gpu in smi.gpus) and not smi.mig_devices:
        return "MIG is on, and it has no instance"
    if hidden.startswith(in_use.HIDDEN):
        return hidden.partition("(")[2].rstrip(")") or hidden
    if amd.has_gpus(view, host):
        return "its AMD GPUs cannot be opened"
    return {
        nvidia.ABSENT: "nvidia-smi not found",
        nvidia.NO_DRIVER: "its NVIDIA driver does not answer"
        if (view.value(host, KERNEL) or {}).get("driver_gpus")
        else "no NVIDIA driver is loaded",
        nvidia.NO_DEVICES: "nvidia-smi finds no device",
    }.get(smi.state, hidden or "torch sees none")


def _too_few(view: View, target: Target, count: int) -> Finding:
    live, smi = in_use.live_devices(view, target.name), in_use.smis(view).get(target.name)
    why = f" ({live.chosen})" if live and live.chosen else ""
    if smi and smi.mig_devices and not why:
        why = f" (MIG: a process sees one of the {smi.mig_devices} devices)"
    return report.error(
        target.name,
        f"{target.nproc} processes, but {plural(count, 'GPU')}{why}: each needs one of its own",
        fix=f"set `slots: {count}` for {target.name}, or `nproc_per_node: auto`"
        + (f"; where the login sets {live.chosen}, remove it from the profile" if live and live.chosen else ""),
        evidence={"nproc": target.nproc, "gpus": count},
    )


def _shared(view: View) -> Iterable[Finding]:
    """Report a GPU under two names: two containers of a machine, or a machine twice in the inventory."""
    owners: dict[str, list[str]] = {}
    for target in view.targets:
        for gpu in in_use.gpus(view, target.name):
            uuid = gpu.cells.get("uuid")
            if uuid and uuid.startswith("GPU-") and not gpu.is_on("mig.mode.current"):
                owners.setdefault(uuid, []).append(target.name)
    shared = [uuid for uuid, hosts in owners.items() if len(hosts) > 1]
    for names, uuids in group_by(lambda uuid: tuple(owners[uuid]), shared).items():
        yield report.error(
            None,
            f"{name_hosts(list(names))} use the same {plural(len(uuids), 'GPU')} "
            f"({uuids[0]}{', ...' if len(uuids) > 1 else ''}): NCCL refuses a GPU that two ranks have, or hangs",
            fix="give each its own (CUDA_VISIBLE_DEVICES in `env:`, or the container's devices), or keep one of them",
            evidence={"hosts": list(names), "uuids": uuids},
        )


CHECKS = (
    in_use.gpu_check(
        "gpu.driver",
        "the GPU driver works",
        _judge_driver,
        ask=(*nvidia.ASK, amd.GPUS),
        cause="nvidia-smi hangs or fails: a GPU fell off the bus, the driver's package was upgraded without a reboot, "
        "the nouveau driver holds the cards, or there is no driver at all. A GPU waits for a reset. AMD: the login may "
        "not open /dev/kfd.",
        symptom="Failed to initialize NVML: Driver/library version mismatch; NVIDIA-SMI has failed because it couldn't "
        "communicate with the NVIDIA driver; Unable to determine the device handle for GPU; nvidia-smi never returns",
        fix="Reboot after a driver upgrade or a lost GPU; blacklist nouveau and install NVIDIA's driver.",
        exempt=_no_gpu,
    ),
    in_use.gpu_check(
        "gpu.model",
        "the hosts have the same GPUs",
        _judge_model,
        ask=(*nvidia.ASK, amd.GPUS),
        cause="Different GPU models or memory sizes in one job.",
        symptom="out of memory on one node only; every step as slow as the slowest GPU",
        fix="Put different machines into separate jobs.",
        exempt=in_use.hosts_without_gpus,
    ),
    in_use.gpu_check(
        "gpu.count",
        "every process has a GPU",
        _judge_count,
        ask=(*nvidia.ASK, amd.GPUS, python.live_question),
        cause="More processes than torch sees GPUs on a node (CUDA_VISIBLE_DEVICES in a profile, MIG), a node without "
        "GPUs among nodes with GPUs, different numbers of GPUs, or one GPU under two names of the inventory.",
        symptom="CUDA error: invalid device ordinal; Duplicate GPU detected: rank 1 and rank 0 both on CUDA device",
        fix="`slots: auto` and `nproc_per_node: auto` take the GPUs that are there.",
        exempt=in_use.hosts_without_gpus,
    ),
)
