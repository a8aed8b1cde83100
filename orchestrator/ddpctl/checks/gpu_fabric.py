"""NVSwitches: CUDA starts only when the fabric manager has set them up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import nvidia, torch, use
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.gpu import RECORDED
from ddpctl.checks.nvidia import Gpu, labels, smis
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity

FABRIC = Question("fabric_manager", deadline=8.0)
_DOWN = ("inactive", "failed", "activating", "deactivating")  # other words are no answer of systemd's
_WAITING = ("In Progress", "Not Started")  # fabric.state, since Hopper


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (FABRIC, *nvidia.ask(target, want), torch.live_question(target, want))


def _judge(view: View) -> Iterable[Finding]:
    apart = _exempt(view)
    for host, value in view.values_of(FABRIC).items():
        gpus = use.gpus(view, host)
        if host in apart or any(gpu.cells.get("fabric.state") == "Completed" for gpu in gpus):
            continue  # in a guest the fabric manager runs on the machine below, and the GPUs say that it is done
        live = use.live(view, host)
        starts = live is not None and live.works and bool(live.buses)
        fault = _fault(view, host, value)
        waiting = _waiting(gpus)
        if fault:
            yield _not_running(view, host, fault, starts, value)
        elif waiting and not starts:
            yield _wait(view, host, waiting, live)
        elif value and _state(view, host, value) is None and not starts:
            yield Finding("gpu.fabric", Severity.UNKNOWN, "not looked at: systemd does not answer here", host)


def _exempt(view: View) -> Mapping[str, str]:
    found = dict(use.unused(view))
    for host, value in view.values_of(FABRIC).items():
        if value is None and not _waiting(use.gpus(view, host)):
            found.setdefault(host, "no NVSwitch found")
    return found


def _waiting(gpus: Iterable[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.cells.get("fabric.state") in _WAITING]


def _state(view: View, host: str, value: Mapping[str, Any]) -> str | None:
    """systemd's word for the fabric manager; None where systemd cannot know: a container has not the machine's."""
    active = value.get("active")
    word = active["stdout"].strip() if active else ""
    if word == "active":
        return "active"
    return word if word in _DOWN and not (view.value(host, nvidia.KERNEL) or {}).get("container") else None


def _fault(view: View, host: str, value: Mapping[str, Any] | None) -> str | None:
    """What is wrong with the fabric manager; None: nothing, or nothing is known."""
    if value is None:
        return None
    state = _state(view, host, value)
    smi = smis(view).get(host)
    driver = smi.driver if smi else None
    if state in _DOWN:
        return f"nvidia-fabricmanager is {state}"
    version = re.search(r"\d+(\.\d+)+", (value.get("version") or {}).get("stdout", ""))
    if state == "active" and version and driver and version.group() != driver:
        return f"nvidia-fabricmanager is {version.group()} and the driver {driver}: they must be the same"
    return None


def _not_running(view: View, host: str, fault: str, starts: bool, value: Mapping[str, Any] | None) -> Finding:
    smi = smis(view).get(host)
    driver = (smi.driver if smi else None) or "the driver"
    harm = (
        "CUDA works until the next reset of a GPU, then it fails with error 802"
        if starts
        else "CUDA fails with error 802 on GPUs behind NVSwitches"
    )
    return Finding(
        "gpu.fabric",
        Severity.WARNING if starts else Severity.ERROR,
        f"{fault}: {harm}",
        host,
        command=as_root(view, host, "systemctl enable --now nvidia-fabricmanager") if "they" not in fault else None,
        fix=f"the package of nvidia-fabricmanager must have the driver's very version, {driver}",
        evidence=value or {},
    )


def _wait(view: View, host: str, waiting: list[Gpu], live: use.Live | None) -> Finding:
    """Without a word of CUDA's own it may still be on its way, minutes after the boot."""
    sure = live is not None and live.error is not None
    smi = smis(view)[host]
    return Finding(
        "gpu.fabric",
        Severity.ERROR if sure else Severity.WARNING,
        f"{labels(waiting)}: fabric state {waiting[0].cells['fabric.state']}, so CUDA fails with error 802 until the "
        "fabric manager has registered them",
        host,
        command=f"{smi.program} -q | grep -A 3 -w Fabric",
        fix="start nvidia-fabricmanager on the machine that has the NVSwitches; for a guest that is the one below it",
        evidence={"fabric.state": waiting[0].cells["fabric.state"]},
    )


CHECKS = (
    Check(
        "gpu.fabric",
        "the NVSwitch fabric manager runs",
        _ask,
        _judge,
        Doc(
            cause="On machines with NVSwitches (HGX, DGX) CUDA starts only when nvidia-fabricmanager of the driver's "
            "very version runs, and has registered every GPU.",
            symptom="Error 802: system not yet initialized; cudaErrorSystemNotReady",
            fix="Install the fabric manager of the driver's version and start it.",
            verified=RECORDED,
        ),
        exempt=_exempt,
    ),
)
