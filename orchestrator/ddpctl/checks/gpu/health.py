"""GPUs with faults: memory errors, heat, missing PCIe lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from ddpctl.checks import report
from ddpctl.checks.base import View
from ddpctl.checks.gpu import in_use
from ddpctl.checks.gpu.in_use import CommandFor, smi_command, smis
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.nvidia import Gpu, Smi, labels
from ddpctl.spec.values import plural

_LOOK = smi_command("-q -i {gpus} -d ECC,ROW_REMAPPER,PERFORMANCE,TEMPERATURE,POWER", root=False)
_PERSIST = smi_command("-pm 1")
DRAIN = "nothing may run on the GPU meanwhile; where the driver refuses, reboot the host"


@dataclass(frozen=True)
class GpuState:
    """The state of a GPU, merged with equal states of other GPUs. ``what`` follows the GPUs' names."""

    severity: Severity
    what: str
    fix: str | None = None
    command: CommandFor | None = None


Judge = Callable[[View, str, Smi, Gpu], GpuState | None]


def by_host(judge: Judge) -> Callable[[View], Iterable[Finding]]:
    """Return a verdict with a finding for each host and severity, from a judgement of each GPU that the job uses."""

    def judged(view: View) -> Iterable[Finding]:
        yield from in_use.report_unseen(view)
        exempt = in_use.unused_gpus(view)
        for host, smi in smis(view).items():
            found: dict[Severity, dict[GpuState, list[Gpu]]] = {}
            for gpu in in_use.gpus(view, host) if host not in exempt else ():
                verdict = judge(view, host, smi, gpu)
                if verdict is not None:
                    found.setdefault(verdict.severity, {}).setdefault(verdict, []).append(gpu)
            for severity, verdicts in found.items():
                yield _together(view, host, severity, verdicts)

    return judged


def _together(view: View, host: str, severity: Severity, verdicts: dict[GpuState, list[Gpu]]) -> Finding:
    first = next(iter(verdicts))
    alike = [gpu for verdict, gpus in verdicts.items() if verdict.command is first.command for gpu in gpus]
    fixes = dict.fromkeys(verdict.fix for verdict in verdicts if verdict.fix)
    return report.finding(
        severity,
        host,
        "; ".join(f"{labels(gpus)}{verdict.what}" for verdict, gpus in verdicts.items()),
        fix="; ".join(fixes) or None,
        command=first.command(view, host, alike) if first.command else None,
        evidence={"gpus": [dict(gpu.cells) for gpus in verdicts.values() for gpu in gpus]},
    )


# --- memory errors ---------------------------------------------------------------------------------------------------


def _ecc_of(view: View, host: str, smi: Smi, gpu: Gpu) -> GpuState | None:
    rows = {row.get("gpu_uuid"): Gpu(row) for row in smi.remapped}
    remapped = rows.get(gpu.cells.get("uuid"), Gpu({}))
    uncorrected = gpu.number("ecc.errors.uncorrected.volatile.total") or 0
    if remapped.is_on("remapped_rows.failure"):
        what = ": row remapping failed, and bad memory stays in use"
        return GpuState(Severity.ERROR, what, "have the GPU replaced", _LOOK)
    if remapped.is_on("remapped_rows.pending") or gpu.is_on("retired_pages.pending"):
        return GpuState(Severity.WARNING, ": bad memory will be set aside at the next reset", DRAIN, in_use.reset)
    if uncorrected > 0:
        what = f": {plural(round(uncorrected), 'uncorrected memory error')} since the driver was loaded"
        return GpuState(Severity.WARNING, what, DRAIN, in_use.reset)
    return None


# --- speed -----------------------------------------------------------------------------------------------------------

_THROTTLE = {
    "clocks_event_reasons.hw_thermal_slowdown": "it is too hot (hardware thermal slowdown)",
    "clocks_event_reasons.sw_thermal_slowdown": "it is too hot (software thermal slowdown)",
    "clocks_event_reasons.hw_power_brake_slowdown": "the power supply throttles it (hardware power brake)",
    "clocks_event_reasons.hw_slowdown": "the hardware slows it down (power or heat)",
}


def _throttle_of(view: View, host: str, smi: Smi, gpu: Gpu) -> GpuState | None:
    reason = next((text for column, text in _THROTTLE.items() if gpu.is_on(column)), None)
    if reason is None:
        return None
    heat = gpu.number("temperature.gpu")
    at = "" if heat is None else f" at {heat:.0f} °C"
    return GpuState(Severity.WARNING, f" throttled{at}: {reason}", "check the host's cooling and power", _LOOK)


def _pcie_of(view: View, host: str, smi: Smi, gpu: Gpu) -> GpuState | None:
    """Compare a GPU with the other GPUs of its model: if all have the same width, the machines are built so.

    The width counts, not the generation, which drops while a GPU is idle.
    """
    now = gpu.number("pcie.link.width.current")
    most = _widest(view).get(gpu.name, 0.0)
    if not now or now >= most:
        return None
    return GpuState(
        Severity.WARNING,
        f" has {now:.0f} PCIe lanes, others of its model have {most:.0f}",
        "fine if its slot has no more; otherwise reseat the card or its riser cable",
    )


@lru_cache(maxsize=2)
def _widest(view: View) -> dict[str | None, float]:
    """Return the largest number of lanes of each GPU model."""
    found: dict[str | None, float] = {}
    for host in smis(view):
        for gpu in in_use.gpus(view, host):
            found[gpu.name] = max(found.get(gpu.name, 0.0), gpu.number("pcie.link.width.current") or 0.0)
    return found


def _persistence_of(view: View, host: str, smi: Smi, gpu: Gpu) -> GpuState | None:
    if (gpu.cells.get("persistence_mode") or "").lower() != "disabled" or "/wsl/" in smi.program:
        return None
    return GpuState(
        Severity.INFO,
        ": persistence mode is off: the first CUDA call of every process takes seconds; slow, not wrong",
        "it is lost at a reboot; nvidia-persistenced does the same and starts with the host",
        _PERSIST,
    )


CHECKS = (
    in_use.gpu_check(
        "gpu.ecc",
        "GPU memory has no uncorrected errors",
        by_host(_ecc_of),
        cause="Memory cells of a GPU fail; the driver sets rows aside at the next reset, until no spare rows are left.",
        symptom="CUDA error: uncorrectable ECC error encountered; wrong results; Xid 48, 63, 64, 94",
        fix="Reset the GPU or reboot; replace it when remapping has failed.",
    ),
    in_use.gpu_check(
        "gpu.throttle",
        "GPUs run at full speed",
        by_host(_throttle_of),
        cause="Heat or a weak power supply slows a GPU down; all ranks wait for it in every step.",
        symptom="one rank is always the last; steps of uneven length",
        fix="Cooling, power cables, power limit.",
    ),
    in_use.gpu_check(
        "gpu.pcie",
        "GPUs have all their PCIe lanes",
        by_host(_pcie_of),
        cause="A badly seated card or riser cable: the link came up with fewer lanes than another GPU of "
        "the same model.",
        symptom="transfers to one GPU take twice as long or more",
        fix="Reseat the card. Where the slot has no more lanes, nothing is wrong.",
    ),
    in_use.gpu_check(
        "gpu.persistence",
        "persistence mode",
        by_host(_persistence_of),
        cause="Without persistence mode the driver initializes the GPU again for the first process that opens it.",
        symptom="the first CUDA call takes 5 to 30 s",
        fix="`nvidia-smi -pm 1` or nvidia-persistenced.",
    ),
)
