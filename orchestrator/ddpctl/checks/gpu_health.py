"""GPUs that are there but not well, or not free."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ddpctl.checks import nvidia
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.gpu import RECORDED
from ddpctl.checks.nvidia import App, Gpu, Smi, smis
from ddpctl.spec.finding import Finding, Severity

FABRIC = Question("fabric_manager", deadline=8.0)
BUSY_MIB = 1024.0  # a desktop and the driver's own use stay below
BUSY_SHARE = 0.05


def _ask_smi(target: Target, want: Want) -> Iterable[Question]:
    return (nvidia.SMI,)


def _each_gpu(view: View, judge: Callable[[str, Smi, Gpu], Iterable[Finding]]) -> Iterable[Finding]:
    for host, smi in smis(view).items():
        for gpu in smi.gpus:
            yield from judge(host, smi, gpu)


# --- memory errors ---------------------------------------------------------------------------------------------------


def _judge_ecc(view: View) -> Iterable[Finding]:
    for host, smi in smis(view).items():
        rows = {row.get("gpu_uuid"): Gpu(row) for row in smi.remapped}
        for gpu in smi.gpus:
            yield from _ecc_of(host, gpu, rows.get(gpu.cells.get("uuid"), Gpu({})))


def _ecc_of(host: str, gpu: Gpu, remapped: Gpu) -> Iterable[Finding]:
    evidence = {"gpu": dict(gpu.cells), "remapped": dict(remapped.cells)}
    uncorrected = gpu.number("ecc.errors.uncorrected.volatile.total") or 0
    reset = f"drain {host}, then `nvidia-smi --gpu-reset -i {gpu.index}` or reboot it"
    if remapped.is_on("remapped_rows.failure"):
        message = f"{gpu.label}: row remapping failed, its memory can no longer mend itself"
        yield Finding("gpu.ecc", Severity.ERROR, message, host, fix=f"replace the GPU of {host}", evidence=evidence)
    elif remapped.is_on("remapped_rows.pending") or gpu.is_on("retired_pages.pending"):
        message = f"{gpu.label}: bad memory is to be set aside at the next reset"
        yield Finding("gpu.ecc", Severity.WARNING, message, host, fix=reset, evidence=evidence)
    elif uncorrected > 0:
        message = f"{gpu.label}: {uncorrected:.0f} uncorrected memory error(s) since the driver was loaded"
        yield Finding("gpu.ecc", Severity.WARNING, message, host, fix=reset, evidence=evidence)
    elif (gpu.cells.get("gpu_recovery_action") or "None") != "None":
        message = f"{gpu.label}: the driver asks for: {gpu.cells['gpu_recovery_action']}"
        yield Finding("gpu.ecc", Severity.WARNING, message, host, fix=reset, evidence=evidence)


# --- speed -----------------------------------------------------------------------------------------------------------

_THROTTLE = {
    "clocks_event_reasons.hw_thermal_slowdown": "it is too hot (hardware thermal slowdown)",
    "clocks_event_reasons.sw_thermal_slowdown": "it is too hot (software thermal slowdown)",
    "clocks_event_reasons.hw_power_brake_slowdown": "the power supply brakes it (hardware power brake)",
    "clocks_event_reasons.hw_slowdown": "the hardware slows it down (power or heat)",
}


def _throttle_of(host: str, smi: Smi, gpu: Gpu) -> Iterable[Finding]:
    reason = next((text for column, text in _THROTTLE.items() if gpu.is_on(column)), None)
    if reason:
        heat = gpu.number("temperature.gpu")
        at = "" if heat is None else f" at {heat:.0f} °C"
        yield Finding(
            "gpu.throttle",
            Severity.WARNING,
            f"{gpu.label} is throttled{at}: {reason}",
            host,
            fix=f"look after cooling and power of {host}: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",
            evidence=dict(gpu.cells),
        )


def _pcie_of(host: str, smi: Smi, gpu: Gpu) -> Iterable[Finding]:
    now, most = gpu.number("pcie.link.width.current"), gpu.number("pcie.link.width.max")
    if now and most and now < most:  # the generation drops when a GPU is idle, the width does not
        yield Finding(
            "gpu.pcie",
            Severity.WARNING,
            f"{gpu.label} has {now:.0f} of its {most:.0f} PCIe lanes",
            host,
            fix=f"right if the slot has no more; otherwise reseat the card of {host} or its riser cable",
            evidence=dict(gpu.cells),
        )


def _persistence_of(host: str, smi: Smi, gpu: Gpu) -> Iterable[Finding]:
    if (gpu.cells.get("persistence_mode") or "").lower() == "disabled" and gpu is smi.gpus[0]:
        yield Finding(
            "gpu.persistence",
            Severity.INFO,
            "persistence mode is off: the first CUDA call of every process takes seconds; slow, not wrong",
            host,
            fix=f"ssh {host} sudo nvidia-smi -pm 1",
        )


# --- who uses it -----------------------------------------------------------------------------------------------------


def _compute_mode_of(host: str, smi: Smi, gpu: Gpu) -> Iterable[Finding]:
    mode = (gpu.cells.get("compute_mode") or "Default").replace(" ", "_")
    if mode == "Prohibited":
        severity, message = Severity.ERROR, f"{gpu.label}: compute mode Prohibited, no process may use it"
    elif mode.startswith("Exclusive") and smi.apps:
        severity, message = Severity.ERROR, f"{gpu.label}: compute mode {mode}, and another process has it"
    elif mode.startswith("Exclusive"):
        severity, message = (
            Severity.INFO,
            f"{gpu.label}: compute mode {mode}: one process a GPU, which is what DDP does",
        )
    else:
        return
    fix = f"ssh {host} sudo nvidia-smi -i {gpu.index} -c DEFAULT"
    yield Finding("gpu.compute_mode", severity, message, host, fix=fix, evidence=dict(gpu.cells))


def _judge_busy(view: View) -> Iterable[Finding]:
    for host, smi in smis(view).items():
        for app in smi.apps:
            yield _app(host, smi, app)
        taken = {app.uuid for app in smi.apps}
        for gpu in smi.gpus:
            used, total = gpu.number("memory.used") or 0, gpu.number("memory.total") or 0
            if gpu.cells.get("uuid") not in taken and used > max(BUSY_MIB, total * BUSY_SHARE):
                yield Finding(
                    "gpu.busy",
                    Severity.WARNING,
                    f"{gpu.label}: {used / 1024:.1f} of {total / 1024:.1f} GB in use by no process that can be seen "
                    "(another container, or a process that died badly)",
                    host,
                    fix=f"ssh {host} 'sudo fuser -v /dev/nvidia{gpu.index}'",
                    evidence=dict(gpu.cells),
                )


def _app(host: str, smi: Smi, app: App) -> Finding:
    gpu = smi.gpu(app.uuid)
    who = f"user {app.user}, {app.command}" if app.user else f"{app.name}, of another container or user"
    job = f", ddpctl job {app.job}" if app.job else ""
    fix = f"ddpctl kill {app.job}" if app.job else f"ask its owner, or: ssh {host} kill {app.pid}"
    return Finding(
        "gpu.busy",
        Severity.WARNING,
        f"{gpu.label if gpu else app.uuid}: pid {app.pid} ({who}{job}) uses {app.memory or 'some memory'}",
        host,
        fix=fix,
        evidence={"pid": app.pid, "user": app.user, "memory": app.memory, "gpu": app.uuid},
    )


def _mig_of(host: str, smi: Smi, gpu: Gpu) -> Iterable[Finding]:
    if gpu.is_on("mig.mode.current"):
        yield Finding(
            "gpu.mig",
            Severity.WARNING,
            f"{gpu.label} is cut up by MIG ({smi.mig_devices} device(s) on this host): a process sees one of them, and "
            "NCCL does not connect two of the same GPU",
            host,
            fix=f"ssh {host} sudo nvidia-smi -i {gpu.index} -mig 0 (with nothing running on it), or one process a GPU",
            evidence=dict(gpu.cells),
        )


# --- NVSwitch --------------------------------------------------------------------------------------------------------


def _ask_fabric(target: Target, want: Want) -> Iterable[Question]:
    return (FABRIC, nvidia.SMI)


def _judge_fabric(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(FABRIC).items():
        if value is None:
            continue  # no NVSwitch
        smi = nvidia.smi_of(view, host)
        fault = fabric_fault(value, smi.driver if smi else None)
        done = smi and any((gpu.cells.get("fabric.state") or "") == "Completed" for gpu in smi.gpus)
        if fault and not done:  # in a guest the fabric manager runs on the host below
            yield Finding(
                "gpu.fabric",
                Severity.ERROR,
                f"{fault}: CUDA fails with error 802 on GPUs behind NVSwitches",
                host,
                fix=f"ssh {host} sudo systemctl enable --now nvidia-fabricmanager (the very version of the driver)",
                evidence=value,
            )


def fabric_fault(value: dict[str, Any], driver: str | None) -> str | None:
    """What is wrong with the fabric manager; None: nothing."""
    active = value.get("active")
    state = (active["stdout"].strip() or "unknown") if active else None
    version = re.search(r"\d+(\.\d+)+", (value.get("version") or {}).get("stdout", ""))
    if state is not None and state != "active":
        return f"nvidia-fabricmanager is {state}"
    if version and driver and version.group() != driver:
        return f"nvidia-fabricmanager is {version.group()} and the driver {driver}: they must be the same"
    return None


def _check(check: str, title: str, judge: Callable[[View], Iterable[Finding]], doc: Doc) -> Check:
    return Check(check, title, _ask_smi, judge, doc)


def _by_gpu(judge: Callable[[str, Smi, Gpu], Iterable[Finding]]) -> Callable[[View], Iterable[Finding]]:
    return lambda view: _each_gpu(view, judge)


CHECKS = (
    _check(
        "gpu.ecc",
        "GPU memory has no uncorrected errors",
        _judge_ecc,
        Doc(
            cause="Memory cells of a GPU fail; the driver sets rows aside at the next reset, until no spare ones are "
            "left.",
            symptom="CUDA error: uncorrectable ECC error encountered; wrong results; Xid 48, 63, 64, 94",
            fix="Reset the GPU or reboot; replace it when remapping has failed.",
            verified=RECORDED,
        ),
    ),
    _check(
        "gpu.throttle",
        "GPUs run at full speed",
        _by_gpu(_throttle_of),
        Doc(
            cause="Heat or a weak power supply slows a GPU down; all ranks wait for it in every step.",
            symptom="one rank is always the last; steps of uneven length",
            fix="Cooling, power cables, power limit.",
            verified=RECORDED,
        ),
    ),
    _check(
        "gpu.pcie",
        "GPUs have all their PCIe lanes",
        _by_gpu(_pcie_of),
        Doc(
            cause="A badly seated card or riser cable: the link came up with fewer lanes than card and slot have.",
            symptom="transfers to one GPU take twice as long or more",
            fix="Reseat the card. Where the slot has no more lanes, nothing is wrong.",
            verified=RECORDED,
        ),
    ),
    _check(
        "gpu.busy",
        "GPUs are free",
        _judge_busy,
        Doc(
            cause="A process of somebody else, or a rank of an earlier job that was not ended, holds GPU memory.",
            symptom="CUDA out of memory at the very start of the job",
            fix="`ddpctl kill` the earlier job, or end the process that the finding names.",
            verified=RECORDED,
        ),
    ),
    _check(
        "gpu.compute_mode",
        "GPUs accept processes",
        _by_gpu(_compute_mode_of),
        Doc(
            cause="Compute mode Prohibited, or Exclusive_Process while somebody is on the GPU.",
            symptom="CUDA error: all CUDA-capable devices are busy or unavailable",
            fix="`nvidia-smi -c DEFAULT`.",
            verified=RECORDED,
        ),
    ),
    _check(
        "gpu.mig",
        "GPUs are whole",
        _by_gpu(_mig_of),
        Doc(
            cause="Multi-Instance GPU cuts a card into devices. A process can use one of them, and NCCL does not "
            "connect two devices of the same card.",
            symptom="fewer devices than expected, or NCCL's `Duplicate GPU detected`",
            fix="Switch MIG off for DDP jobs.",
            verified=RECORDED,
        ),
    ),
    _check(
        "gpu.persistence",
        "persistence mode",
        _by_gpu(_persistence_of),
        Doc(
            cause="Without persistence mode the driver sets the GPU up anew for the first process that opens it.",
            symptom="the first CUDA call takes 5 to 30 s",
            fix="`nvidia-smi -pm 1` or nvidia-persistenced.",
            verified=RECORDED,
        ),
    ),
    Check(
        "gpu.fabric",
        "the NVSwitch fabric manager runs",
        _ask_fabric,
        _judge_fabric,
        Doc(
            cause="On machines with NVSwitches (HGX, DGX) CUDA starts only when nvidia-fabricmanager of the driver's "
            "very version runs.",
            symptom="Error 802: system not yet initialized; cudaErrorSystemNotReady",
            fix="Install the fabric manager of the driver's version and start it.",
            verified=RECORDED,
        ),
    ),
)
