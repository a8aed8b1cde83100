"""GPUs: are they there, does the driver work, does it fit torch, and are the hosts alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import nvidia, torch
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences, where
from ddpctl.checks.nvidia import KERNEL, Smi, smis
from ddpctl.spec.finding import Finding, Severity

RECORDED = "recorded output only, never run on real hardware here"

# The oldest driver that runs programs built with a CUDA release (CUDA release notes, minor version compatibility).
_LEAST_DRIVER = {
    "13": "580.0",
    "12": "525.60.13",
    "11": "450.80.02",
    "10.2": "440.33",
    "10.1": "418.39",
    "10.0": "410.48",
    "9.2": "396.26",
    "9.0": "384.81",
}

_BROKEN = {
    nvidia.HUNG: ("nvidia-smi does not end: the driver or a GPU is stuck", "reboot {host}; `dmesg -T | grep -i nvrm`"),
    nvidia.MISMATCH: (
        "the driver's library was upgraded and the loaded module was not",
        "reboot {host} (or, with no process on the GPUs: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia)",
    ),
    nvidia.LOST: ("a GPU does not answer any more", "reboot {host}; `dmesg -T | grep -i xid` names the GPU"),
    nvidia.FAILED: ("nvidia-smi fails", "ssh {host} nvidia-smi"),
}


def kernels(view: View) -> dict[str, dict[str, Any]]:
    """host -> what the kernel says about NVIDIA devices."""
    return view.values_of(KERNEL)


def has_gpus(view: View) -> bool:
    """Whether any host has a GPU that works: then the job is taken to run on GPUs unless it says gloo."""
    return any(smi.count for smi in smis(view).values())


def _judge_driver(view: View) -> Iterable[Finding]:
    found = smis(view)
    for host, smi in found.items():
        kernel = kernels(view).get(host, {})
        if smi.state in _BROKEN:
            what, fix = _BROKEN[smi.state]
            said = f": {smi.text}" if smi.text else ""
            yield Finding(
                "gpu.driver", Severity.ERROR, f"{what}{said}", host, fix=fix.format(host=host), evidence=_evidence(smi)
            )
        elif smi.state != nvidia.OK and kernel.get("gpus") and not kernel.get("driver_gpus"):
            yield _no_driver(view, host, kernel)
    drivers = {host: smi.driver for host, smi in found.items() if smi.driver}
    yield from differences(
        "gpu.driver",
        drivers,
        what="NVIDIA driver",
        severity=Severity.INFO,
        fix="harmless as long as each is new enough for the torch build; install the same one when convenient",
    )


def _no_driver(view: View, host: str, kernel: Mapping[str, Any]) -> Finding:
    cards = len(kernel["gpus"])
    if "nouveau" in kernel["modules"]:
        message = f"{cards} NVIDIA GPU(s), but the nouveau driver holds them: CUDA cannot use them"
        fix = (
            "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee "
            "/etc/modprobe.d/blacklist-nouveau.conf && sudo update-initramfs -u && sudo reboot, with NVIDIA's driver "
            "installed"
        )
    else:
        message = f"{cards} NVIDIA GPU(s) on the PCI bus, but no driver is loaded: torch would run on the processor"
        fix = f"install NVIDIA's driver on {host}, or load it: sudo modprobe nvidia"
    quiet = view.want.backend == "gloo" or kernel.get("container")
    severity = Severity.INFO if quiet else Severity.WARNING
    return Finding("gpu.driver", severity, message, host, fix=fix, evidence=kernel)


def _evidence(smi: Smi) -> dict[str, Any]:
    return {"state": smi.state, "text": smi.text, "seconds": smi.seconds}


def visible(target: Target, count: int) -> int:
    """How many of the GPUs a process of the job sees, by the CUDA_VISIBLE_DEVICES of the inventory."""
    chosen = target.env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    seen = 0
    for part in (piece.strip() for piece in chosen.split(",")):
        if not part or part == "-1" or (part.isdigit() and int(part) >= count):
            break  # CUDA ignores everything from the first invalid entry on
        seen += 1
    return min(seen, count)


def counts(view: View) -> dict[str, int]:
    """host -> GPUs that the job can see there; hosts whose driver is broken are left to gpu.driver."""
    good = (nvidia.OK, nvidia.ABSENT, nvidia.NO_DRIVER, nvidia.NO_DEVICES)
    targets = {target.name: target for target in view.targets}
    return {host: visible(targets[host], smi.count) for host, smi in smis(view).items() if smi.state in good}


def _judge_count(view: View) -> Iterable[Finding]:
    if view.want.backend == "gloo":
        return
    found = counts(view)
    some = {host: count for host, count in found.items() if count}
    if some or view.want.backend == "nccl":
        yield from _without(found, some)
    for target in view.targets:
        count = some.get(target.name, 0)
        if count and target.nproc is not None and target.nproc > count:
            yield Finding(
                "gpu.count",
                Severity.ERROR,
                f"{target.nproc} processes, but {count} GPU(s): each needs one of its own",
                target.name,
                fix=f"set `slots: {count}` for {target.name}, or `nproc_per_node: auto`",
                evidence={"nproc": target.nproc, "gpus": count},
            )
    auto = {target.name: some[target.name] for target in view.targets if target.nproc is None and target.name in some}
    yield from differences(
        "gpu.count",
        auto,
        what="GPUs:",
        severity=Severity.WARNING,
        fix="right if the machines differ; otherwise look for the missing GPU (`nvidia-smi -L`, `lspci | grep -i "
        "nvidia`)",
    )


def _without(found: Mapping[str, int], some: Mapping[str, int]) -> Iterable[Finding]:
    for host, count in found.items():
        if count == 0:
            others = f", {where(list(some))} {'has' if len(some) == 1 else 'have'}" if some else ""
            yield Finding(
                "gpu.count",
                Severity.ERROR,
                f"no GPU that CUDA can use{others}: NCCL needs one on every node",
                host,
                fix=f"leave {host} out (`nodes:` of the job), or run the job with gloo on all",
                evidence={"gpus": dict(found)},
            )


def _judge_model(view: View) -> Iterable[Finding]:
    models = {host: _models(smi) for host, smi in smis(view).items() if smi.gpus}
    yield from differences(
        "gpu.model",
        models,
        what="GPUs",
        severity=Severity.WARNING,
        fix="DDP runs at the pace of the slowest; put unlike machines into jobs of their own (`labels:`, `nodes:`)",
    )


def _models(smi: Smi) -> str:
    names = [f"{gpu.name} {(gpu.number('memory.total') or 0) / 1024:.0f} GB" for gpu in smi.gpus]
    return ", ".join(sorted(set(names)))


# --- torch and the driver --------------------------------------------------------------------------------------------


def _ask_cuda(target: Target, want: Want) -> Iterable[Question]:
    return (*nvidia.ask(target, want), *torch.ask_import(target, want))


def _judge_cuda(view: View) -> Iterable[Finding]:
    imported = torch.imports(view)
    for host, installed in torch.versions(view).items():
        smi = nvidia.smi_of(view, host)
        if smi is None or not smi.count or not installed["torch"] or view.want.backend == "gloo":
            continue
        build, version = installed["torch"]["cuda"], installed["torch"]["version"]
        if build is None:
            yield _cpu_only(host, smi, version, installed["torch"].get("hip"))
            continue
        real = imported.get(host) or {}
        if real.get("devices"):
            continue  # torch itself saw the GPUs: no table knows better
        least = least_driver(build)
        if least and smi.driver and older(smi.driver, least):
            yield _too_old(host, smi, version, build, least)
        elif real.get("error") is None and "devices" in real and not _hidden(view, host):
            said = real.get("cuda_warning") or "torch.cuda.is_available() is False"
            yield Finding(
                "gpu.cuda",
                Severity.ERROR,
                f"torch {version} finds none of the {smi.count} GPU(s): {said}",
                host,
                fix=f"ssh {host} 'python -c \"import torch; torch.cuda.init()\"' prints the whole reason",
                evidence=real,
            )


def _hidden(view: View, host: str) -> bool:
    target = next(one for one in view.targets if one.name == host)
    return visible(target, 1) == 0


def _cpu_only(host: str, smi: Smi, version: str, hip: str | None) -> Finding:
    kind = "ROCm" if hip else "CPU-only"
    return Finding(
        "gpu.cuda",
        Severity.WARNING,
        f"{smi.count} GPU(s), but torch {version} is a {kind} build: the job would not use them",
        host,
        fix=f"install a CUDA build of torch there; {torch.MANAGED}",
        evidence={"torch": version, "driver": smi.driver},
    )


def _too_old(host: str, smi: Smi, version: str, build: str, least: str) -> Finding:
    return Finding(
        "gpu.cuda",
        Severity.ERROR,
        f"the NVIDIA driver {smi.driver} is too old for torch {version}: CUDA {build} needs {least} or newer",
        host,
        fix=f"upgrade the driver, or use a torch built for an older CUDA (`torch_backend:`); {torch.MANAGED}",
        evidence={"driver": smi.driver, "cuda": build, "least": least},
    )


def least_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA release (``12.6``); None: not in the table."""
    return _LEAST_DRIVER.get(cuda.split(".")[0]) or _LEAST_DRIVER.get(".".join(cuda.split(".")[:2]))


def older(driver: str, least: str) -> bool:
    """Whether a driver's version is below another, number by number."""
    return _numbers(driver) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _judge_arch(view: View) -> Iterable[Finding]:
    imported = torch.imports(view)
    for host, smi in smis(view).items():
        built = (imported.get(host) or {}).get("arch_list") or []
        for gpu in smi.gpus:
            capability = gpu.cells.get("compute_cap")
            if built and capability and not runs_on(capability, built):
                yield Finding(
                    "gpu.arch",
                    Severity.ERROR,
                    f"torch {imported[host]['torch']} has no code for {gpu.name} (compute capability {capability}); it "
                    f"is built for {' '.join(built)}",
                    host,
                    fix="install a torch release that supports this GPU's generation",
                    evidence={"compute_cap": capability, "arch_list": built},
                )
                break


def runs_on(capability: str, built: Iterable[str]) -> bool:
    """Whether a build runs on a GPU: machine code of the same major generation and no newer minor one (``sm_80`` runs
    on 8.6), or intermediate code that is not newer (``compute_90`` is compiled on the spot for 12.0)."""
    major, _, minor = capability.partition(".")
    have = (int(major), int(minor or 0))
    for name in built:
        match = re.match(r"(sm|compute)_(\d+)(\d)[af]?$", name)
        if not match:
            return True  # a name that this table does not know: no verdict
        want = (int(match.group(2)), int(match.group(3)))
        if match.group(1) == "compute" and want <= have:
            return True
        if match.group(1) == "sm" and want[0] == have[0] and want[1] <= have[1]:
            return True
    return False


DRIVER = Check(
    "gpu.driver",
    "the NVIDIA driver works",
    nvidia.ask,
    _judge_driver,
    Doc(
        cause="nvidia-smi hangs or fails: a GPU fell off the bus, the driver's package was upgraded without a reboot, "
        "the nouveau driver holds the cards, or there is no driver at all.",
        symptom="Failed to initialize NVML: Driver/library version mismatch; NVIDIA-SMI has failed because it couldn't "
        "communicate with the NVIDIA driver; Unable to determine the device handle for GPU; nvidia-smi that never ends",
        fix="Reboot after a driver upgrade or a lost GPU; blacklist nouveau and install NVIDIA's driver.",
        verified=RECORDED,
    ),
)
COUNT = Check(
    "gpu.count",
    "every process has a GPU",
    nvidia.ask,
    _judge_count,
    Doc(
        cause="More processes than GPUs on a node, a node without GPUs among nodes with some, or unlike numbers of "
        "GPUs.",
        symptom="CUDA error: invalid device ordinal; Duplicate GPU detected: rank 1 and rank 0 both on CUDA device",
        fix="`slots: auto` and `nproc_per_node: auto` take the GPUs that are there.",
        verified=RECORDED,
    ),
)
MODEL = Check(
    "gpu.model",
    "the hosts have the same GPUs",
    nvidia.ask,
    _judge_model,
    Doc(
        cause="Different GPU models or memory sizes in one job.",
        symptom="out of memory on one node only; every step as slow as the slowest GPU",
        fix="Put unlike machines into jobs of their own.",
        verified=RECORDED,
    ),
)
CUDA = Check(
    "gpu.cuda",
    "torch can use the GPUs",
    _ask_cuda,
    _judge_cuda,
    Doc(
        cause="The driver is older than the CUDA release that torch was built with, torch is a CPU-only build on a "
        "machine with GPUs, or CUDA cannot start (fabric manager down, devices hidden).",
        symptom="The NVIDIA driver on your system is too old (found version 11040); Torch not compiled with CUDA "
        "enabled; Error 802: system not yet initialized",
        fix="Upgrade the driver or choose a torch built for an older CUDA; a CUDA build where there are GPUs.",
        verified=RECORDED,
    ),
)
ARCH = Check(
    "gpu.arch",
    "torch has code for these GPUs",
    _ask_cuda,
    _judge_arch,
    Doc(
        cause="The torch build holds machine code for other GPU generations only: a new GPU with an old torch, or an "
        "old GPU that new builds dropped.",
        symptom="CUDA error: no kernel image is available for execution on the device",
        fix="Choose a torch release that supports the generation.",
        verified=RECORDED,
    ),
)

CHECKS = (DRIVER, COUNT, MODEL, CUDA, ARCH)
