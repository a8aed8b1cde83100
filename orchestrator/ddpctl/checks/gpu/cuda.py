"""torch and the GPUs: whether torch fits the driver, finds the GPUs, and has code for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import python, report
from ddpctl.checks.base import View
from ddpctl.checks.gpu import amd, in_use
from ddpctl.spec import nvidia
from ddpctl.spec.finding import Finding
from ddpctl.spec.nvidia import labels
from ddpctl.spec.values import plural

_ASK = (*nvidia.ASK, amd.GPUS, python.live_question, python.installed)


def _exempt(view: View) -> Mapping[str, str]:
    """Keep hosts with a torch that is not built for the GPUs: this check reports them."""
    return {host: why for host, why in in_use.hosts_without_gpus(view).items() if why != in_use.OTHER_BUILD}


def _judge_cuda(view: View) -> Iterable[Finding]:
    if view.requirements.backend == "gloo":
        return
    for target in view.targets:
        host = target.name
        cards = _cards(view, host)
        build = python.torch_of(view, host)
        if not cards:
            continue
        if build and not build[cards.api]:
            yield _other_build(view, host, cards, build)
        elif not (python.imports(view).get(host) or {}).get("devices"):
            yield from _unseen(view, host, cards, build)


@dataclass(frozen=True)
class _Cards:
    """The GPUs of a maker on a host that the job may use."""

    api: str
    count: int
    driver: str | None


def _cards(view: View, host: str) -> _Cards | None:
    smi = in_use.smis(view).get(host)
    if smi is not None and smi.count:
        hidden = in_use.unused_gpus(view).get(host, "").startswith(in_use.HIDDEN)
        return None if hidden else _Cards("cuda", smi.count, smi.driver)
    others = len(amd.gpus(view, host))
    closed = (view.value(host, amd.GPUS) or {}).get("closed")  # gpu.driver reports these
    return _Cards("hip", others, None) if others and not closed else None


def _unseen(view: View, host: str, cards: _Cards, build: Mapping[str, Any] | None) -> Iterable[Finding]:
    """Report that torch finds no GPU; if there is no torch yet, that the driver finds no GPU."""
    real = python.imports(view).get(host) or {}
    least = nvidia.least_driver(build["cuda"]) if build and cards.api == "cuda" else None
    if build and least and cards.driver and nvidia.is_older(cards.driver, least):
        yield _too_old(host, cards.driver, build, least)
        return
    live = in_use.live_devices(view, host)
    driver = python.live_environment(view, host) or {}
    stuck = live.error if live is not None and not live.works else None
    if (
        cards.api == "cuda" and driver and driver["api"] is None
    ):  # a container with nvidia-smi but without CUDA's library
        stuck = driver["error"]
    if not stuck and not (real.get("error") is None and "devices" in real):
        return  # the host was not asked, or torch.import reports the cause
    code = f" (error {live.code})" if live and stuck and live.code else ""
    said = real.get("cuda_warning") or (f"{stuck}{code}" if stuck else "torch.cuda.is_available() is False")
    name = f"torch {real['torch']}" if real.get("torch") else "CUDA" if cards.api == "cuda" else "HIP"
    yield report.error(
        host,
        f"{name} finds none of the {plural(cards.count, 'GPU')}: {said}",
        fix=None if build else "the driver itself does not start, whichever torch is installed",
        command=python.run_python(view, host, "import torch; torch.cuda.init()")
        if build
        else "nvidia-smi -q"
        if cards.api == "cuda"
        else "rocm-smi",
        evidence={"torch": dict(real), "live": python.live_environment(view, host)},
    )


def _other_build(view: View, host: str, cards: _Cards, build: Mapping[str, Any]) -> Finding:
    kind = "ROCm" if build.get("hip") else "CUDA" if build["cuda"] else "CPU-only"
    found = plural(cards.count, "GPU" if cards.api == "cuda" else "AMD GPU")
    return report.warning(
        host,
        f"{found}, but torch {build['version']} is a {kind} build: the job would not use them",
        fix=f"install a {'CUDA' if cards.api == 'cuda' else 'ROCm'} build of torch there; {python.MANAGED}",
        evidence={"torch": build["version"], "driver": cards.driver},
    )


def _too_old(host: str, driver: str, build: Mapping[str, Any], least: str) -> Finding:
    return report.error(
        host,
        f"the NVIDIA driver {driver} is too old for torch {build['version']}: CUDA {build['cuda']} needs {least} or "
        "newer",
        fix=f"upgrade the driver, or use a torch built for an older CUDA (`torch_backend:`); {python.MANAGED}",
        evidence={"driver": driver, "cuda": build["cuda"], "least": least},
    )


def _judge_arch(view: View) -> Iterable[Finding]:
    yield from in_use.report_unseen(view)
    for host, real in python.imports(view).items():
        built = real.get("arch_list") or []
        lacking = [
            gpu for gpu in in_use.gpus(view, host) if built and not _has_code(gpu.cells.get("compute_cap"), built)
        ]
        if lacking:
            first = lacking[0]
            capability = first.cells["compute_cap"]
            yield report.error(
                host,
                f"torch {real['torch']} has no code for {first.name} (compute capability {capability}, "
                f"{labels(lacking)}); it is built for {' '.join(built)}",
                fix="install a torch release that supports this GPU's generation, or leave the GPU out with "
                "CUDA_VISIBLE_DEVICES (`env:`)",
                evidence={"compute_cap": capability, "arch_list": built},
            )


def _has_code(capability: str | None, built: Iterable[str]) -> bool:
    return capability is None or runs_on(capability, built)


def runs_on(capability: str, built: Iterable[str]) -> bool:
    """Return whether a build runs on a GPU of this compute capability.

    Machine code runs on the same major generation from its minor generation on: ``sm_80`` runs on 8.6. Intermediate
    code runs on its own generation and newer: ``compute_90`` is compiled for 12.0 when it is loaded. Code with the
    suffix "a" (``sm_90a``) runs on exactly its capability.
    """
    major, _, minor = capability.partition(".")
    have = (int(major), int(minor or 0))
    for name in built:
        match = re.match(r"(sm|compute)_(\d+)(\d)([af]?)$", name)
        if not match:
            return True  # an unknown name: no verdict
        want = (int(match.group(2)), int(match.group(3)))
        if match.group(4) == "a":
            if want == have:
                return True
            continue
        if match.group(1) == "compute" and want <= have:
            return True
        if match.group(1) == "sm" and want[0] == have[0] and want[1] <= have[1]:
            return True
    return False


CHECKS = (
    in_use.gpu_check(
        "gpu.cuda",
        "torch can use the GPUs",
        _judge_cuda,
        ask=_ASK,
        cause="The driver is older than the CUDA release that torch was built with, torch is a CPU-only build on a "
        "machine with GPUs, or CUDA cannot start (fabric manager down, devices hidden).",
        symptom="The NVIDIA driver on your system is too old (found version 11040); Torch not compiled with CUDA "
        "enabled; Error 802: system not yet initialized",
        fix="Upgrade the driver or choose a torch built for an older CUDA; a CUDA build where there are GPUs.",
        exempt=_exempt,
    ),
    in_use.gpu_check(
        "gpu.arch",
        "torch has code for these GPUs",
        _judge_arch,
        ask=_ASK,
        cause="The torch build holds machine code for other GPU generations only: a new GPU with an old torch, or an "
        "old GPU that new builds dropped.",
        symptom="CUDA error: no kernel image is available for execution on the device",
        fix="Choose a torch release that supports the generation.",
    ),
)
