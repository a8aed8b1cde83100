"""GPUs that the job has to share: other processes, compute mode, MIG."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpctl.checks import report
from ddpctl.checks.base import View
from ddpctl.checks.gpu import in_use
from ddpctl.checks.gpu.health import GpuState, by_host
from ddpctl.checks.limits import APP_MIB, BUSY_MIB, BUSY_SHARE, OWNERS_SHOWN, WINDOWS_BUSY_SHARE
from ddpctl.spec import nvidia
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_by
from ddpctl.spec.nvidia import App, Gpu, Smi, labels
from ddpctl.spec.values import plural

_SHARED = re.compile(r"\bG[HB]\d{2,3}\b")  # Grace: the kernel's page cache is in the GPU's memory too
_MPS = "nvidia-cuda-mps-server"
_DEFAULT_MODE = in_use.smi_command("-i {gpus} -c DEFAULT")
_NO_MIG = in_use.smi_command("-i {gpus} -mig 0")


# --- other processes -------------------------------------------------------------------------------------------------


def _judge_busy(view: View) -> Iterable[Finding]:
    yield from in_use.report_unseen(view)
    exempt = in_use.unused_gpus(view)
    for host, smi in in_use.smis(view).items():
        if host not in exempt:
            yield from _busy(view, host, smi)


def _busy(view: View, host: str, smi: Smi) -> Iterable[Finding]:
    used = {str(gpu.cells.get("uuid")): gpu for gpu in in_use.gpus(view, host)}
    apps = [app for app in smi.apps if app.uuid in used and _counts(app)]
    owners = group_by(lambda app: (_who(app), app.job), apps)
    parts = [_uses(who, job, group, used) for (who, job), group in owners.items()]
    if parts:
        more = f"; and {len(parts) - OWNERS_SHOWN} more" if len(parts) > OWNERS_SHOWN else ""
        runs = sorted({app.run for app in apps if app.run})
        pids = ",".join(str(app.pid) for app in apps if app.user)
        yield report.warning(
            host,
            "; ".join(parts[:OWNERS_SHOWN]) + more,
            fix=_free(runs, [app for app in apps if not app.run]),
            command=f"ps -o pid,user,lstart,args -p {pids}" if pids else None,
            evidence={"apps": [{"pid": a.pid, "user": a.user, "memory": a.memory, "gpu": a.uuid} for a in apps]},
        )
    taken = {app.uuid for app in smi.apps if _mib(app) is not None}
    silent = [gpu for uuid, gpu in used.items() if uuid not in taken and _full(smi, gpu)]
    if silent:
        yield _invisible(view, host, silent)


def _mib(app: App) -> float | None:
    return Gpu({"memory": app.memory}).number("memory")


def _counts(app: App) -> bool:
    """Count every process of a ddpctl job. Without a number (WSL2) the memory of the whole GPU decides."""
    return bool(app.job) or (_mib(app) or 0) >= APP_MIB


def _who(app: App) -> str:
    return f"user {app.user}, {app.command}" if app.user else f"{app.name}, of another container or user"


def _uses(who: str, job: str | None, apps: list[App], used: dict[str, Gpu]) -> str:
    gpus = labels({app.uuid: used[app.uuid] for app in apps}.values())
    whose = f"({who}{f', ddpctl job {job}' if job else ''})"
    if len(apps) == 1:
        return f"{gpus}: pid {apps[0].pid} {whose} uses {apps[0].memory or 'some memory'}"
    most = max(apps, key=lambda app: _mib(app) or 0).memory or "some memory"
    return f"{gpus}: {len(apps)} processes {whose} use up to {most} each, the first is pid {apps[0].pid}"


def _free(runs: list[str], others: list[App]) -> str:
    kills = ", ".join(f"`ddpctl kill {run}`" for run in runs)
    ask = "ask the owner to end it" if others else ""
    return "; ".join(part for part in (kills, ask) if part)


def _full(smi: Smi, gpu: Gpu) -> bool:
    used, total = gpu.number("memory.used") or 0, gpu.number("memory.total") or 0
    share = WINDOWS_BUSY_SHARE if "/wsl/" in smi.program else BUSY_SHARE
    return used > max(BUSY_MIB, total * share) and not _SHARED.search(gpu.name or "")


def _invisible(view: View, host: str, gpus: list[Gpu]) -> Finding:
    most = max(gpus, key=lambda gpu: gpu.number("memory.used") or 0)
    used, total = most.number("memory.used") or 0, most.number("memory.total") or 0
    minors = (view.value(host, nvidia.KERNEL) or {}).get("minors") or {}
    by_bus = {nvidia.bus_of(bus): minor for bus, minor in minors.items()}
    nodes = [f"/dev/nvidia{by_bus[gpu.bus]}" for gpu in gpus if gpu.bus in by_bus]
    share = f"{used / 1024:.1f} of {total / 1024:.1f} GB in use"
    return report.warning(
        host,
        f"{labels(gpus)}: {'up to ' if len(gpus) > 1 else ''}{share} by no visible process (another container, or a "
        "process that died uncleanly)",
        fix="a process of another container is visible on the machine itself; memory that no process holds needs a "
        "GPU reset",
        command=report.as_root(view, host, f"fuser -v {' '.join(nodes)}") if nodes else None,
        evidence={"gpus": [dict(gpu.cells) for gpu in gpus]},
    )


# --- permission to use a GPU
# --------------------------------------------------------------------------------------------


def _mode_of(view: View, host: str, smi: Smi, gpu: Gpu) -> GpuState | None:
    mode = (gpu.cells.get("compute_mode") or "Default").replace(" ", "_")
    mine = [app for app in smi.apps if app.uuid == gpu.cells.get("uuid")]
    if mode == "Prohibited":
        return GpuState(Severity.ERROR, ": compute mode Prohibited, no process may use it", None, _DEFAULT_MODE)
    if not mode.startswith("Exclusive") or any(app.name.endswith(_MPS) for app in smi.apps):
        return None  # with MPS its server is the only process, and lets other processes in
    if mine:
        return GpuState(
            Severity.ERROR,
            f": compute mode {mode}, and another process has it",
            "or end the process that has it; the mode is lost at a reboot, unless something sets it again",
            _DEFAULT_MODE,
        )
    return GpuState(Severity.INFO, f": compute mode {mode}: one process a GPU, which is what DDP does")


def _mig_of(view: View, host: str, smi: Smi, gpu: Gpu) -> GpuState | None:
    """Too many processes for the MIG devices are a finding of gpu.count."""
    if not gpu.is_on("mig.mode.current"):
        return None
    return GpuState(
        Severity.INFO,
        f" is partitioned by MIG ({plural(smi.mig_devices, 'device')} on this host): a process sees one of them, "
        "and NCCL does not connect two of the same GPU",
        "to get the whole GPU back, stop what runs on it; its instances are removed, and some models need a reset",
        _NO_MIG,
    )


CHECKS = (
    in_use.gpu_check(
        "gpu.busy",
        "GPUs are free",
        _judge_busy,
        cause="Another user's process, or a rank left over from an earlier job, holds GPU memory. Small processes (a "
        "desktop, the MPS server) are left out.",
        symptom="CUDA out of memory at the very start of the job",
        fix="`ddpctl kill` the earlier job, or end the process that the finding names.",
    ),
    in_use.gpu_check(
        "gpu.compute_mode",
        "GPUs accept processes",
        by_host(_mode_of),
        cause="Compute mode Prohibited, or Exclusive_Process while another process uses the GPU.",
        symptom="CUDA error: all CUDA-capable devices are busy or unavailable",
        fix="`nvidia-smi -c DEFAULT`.",
    ),
    in_use.gpu_check(
        "gpu.mig",
        "GPUs are whole",
        by_host(_mig_of),
        cause="Multi-Instance GPU splits a card into devices. A process can use a single device, and NCCL does not "
        "connect two devices of the same card.",
        symptom="fewer devices than expected, or NCCL's `Duplicate GPU detected`",
        fix="One process a node, or switch MIG off for DDP jobs.",
    ),
)
