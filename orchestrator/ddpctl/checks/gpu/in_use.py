"""The part of the nodes' GPUs that the job uses: the checks judge only this part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from ddpctl.checks import python, report
from ddpctl.checks.base import NO_HARDWARE, Check, Target, View
from ddpctl.checks.gpu import amd
from ddpctl.spec import nvidia
from ddpctl.spec.finding import Finding
from ddpctl.spec.nvidia import Gpu, Smi, bus_of

NO_DEVICE = 100  # the error code of CUDA and HIP for "no device"
# Why the checks of NVIDIA GPUs do not apply to a host.
NO_GPU = "no GPU found"
OTHER_MAKER = "AMD GPUs"
OTHER_BUILD = "torch there is not built for CUDA"
HIDDEN = "no GPU is visible"

CommandFor = Callable[[View, str, Iterable[Gpu]], str]


@dataclass(frozen=True)
class LiveDevices:
    """The GPUs that a process of the job sees on a host now: PCI addresses in the order of their numbers.

    ``code`` is the driver library's error code, if it answered, ``error`` its text, ``chosen`` the variables that
    select devices (``CUDA_VISIBLE_DEVICES=0``).
    """

    api: str
    buses: tuple[str, ...]
    code: int | None
    error: str | None
    chosen: str | None

    @property
    def works(self) -> bool:
        """Whether the driver started. "No device" counts as started."""
        return self.code in (0, NO_DEVICE)


@lru_cache(maxsize=2)
def smis(view: View) -> Mapping[str, Smi]:
    """Return host -> nvidia-smi's output, for every host that was asked."""
    answers = ((target.name, view.answer(target.name, nvidia.SMI)) for target in view.targets)
    return {host: nvidia.read(answer) for host, answer in answers if answer is not None}


def smi_command(arguments: str, *, root: bool = True) -> CommandFor:
    """Return a call of the host's own nvidia-smi; ``{gpus}`` stands for the numbers of the GPUs."""

    def command(view: View, host: str, gpus: Iterable[Gpu]) -> str:
        smi = smis(view).get(host)
        numbers = ",".join(gpu.index for gpu in gpus)
        call = f"{smi.program if smi else 'nvidia-smi'} {arguments.format(gpus=numbers)}"
        return report.as_root(view, host, call) if root else call

    return command


reset = smi_command("--gpu-reset -i {gpus}")  # nvidia-smi refuses a reset while a process uses the GPU


def has_gpus(view: View, host: str, smi: Smi) -> bool:
    """Return whether the host has an NVIDIA GPU, working or not. A container sees its machine's GPUs on the PCI bus."""
    if smi.state not in nvidia.NO_GPU:
        return True
    kernel = view.value(host, nvidia.KERNEL) or {}
    mine = kernel.get("nodes") or not kernel.get("container")
    return bool((kernel.get("gpus") and mine) or (kernel.get("wsl") and smi.state != nvidia.ABSENT))


def live_devices(view: View, host: str) -> LiveDevices | None:
    """Return the devices of the driver library; None: not asked, a CPU build of torch, or no driver library."""
    value = python.live_environment(view, host)
    if not value or not value["api"]:
        return None
    chosen = [f"{name}={text}" for name, text in value["visible"].items() if name.endswith("VISIBLE_DEVICES")]
    buses = tuple(bus_of(bus) for bus in value["devices"])
    return LiveDevices(value["api"], buses, value["code"], value["error"], ", ".join(chosen) or None)


def devices(view: View, target: Target) -> int | None:
    """Return how many GPUs the job's torch sees on a host; without torch, ask the driver, its tools, or the kernel."""
    seen = (python.imports(view).get(target.name) or {}).get("devices")
    if seen is not None:
        return int(seen)
    found = live_devices(view, target.name)
    if found is not None and found.works:
        return len(found.buses)
    smi = smis(view).get(target.name)
    if smi is not None and smi.state == nvidia.OK:
        return min(smi.count, len(_named(smi, target.env)))
    others = len(amd.gpus(view, target.name))
    network = view.named(target.name, "network")
    if others or smi is None:
        return others or (None if network is None else int(network["gpus"]))
    return 0 if smi.state in nvidia.NO_GPU else None


def uses_gloo(view: View) -> bool:
    """Return whether the job uses gloo: by its own setting, else where torch sees no GPU on any node."""
    if view.requirements.backend:
        return view.requirements.backend == "gloo"
    return not any(devices(view, target) for target in view.targets)


def gpus(view: View, host: str) -> tuple[Gpu, ...]:
    """Return the rows of nvidia-smi for the GPUs that the job's processes use: the first that they see, a GPU each."""
    return _used(view).get(host, ())


@lru_cache(maxsize=2)
def _used(view: View) -> Mapping[str, tuple[Gpu, ...]]:
    return {target.name: _used_on(view, target) for target in view.targets}


def _used_on(view: View, target: Target) -> tuple[Gpu, ...]:
    smi = smis(view).get(target.name)
    if smi is None or smi.state != nvidia.OK:
        return ()
    found = live_devices(view, target.name)
    rows = {gpu.bus: gpu for gpu in smi.gpus}
    seen = tuple(rows[bus] for bus in dict.fromkeys(found.buses) if bus in rows) if found else ()
    used = seen or _named(smi, target.env)
    return used[: target.nproc] if target.nproc else used


def _named(smi: Smi, env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Choose by the inventory's CUDA_VISIBLE_DEVICES. CUDA numbers GPUs like nvidia-smi only if all have one model."""
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return smi.gpus
    same_order = env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in smi.gpus}) == 1
    found: list[Gpu] = []
    for part in (piece.strip() for piece in chosen.split(",")):
        if part.isdigit() and not same_order:
            return smi.gpus
        named = next((gpu for gpu in smi.gpus if _is_named(gpu, part)), None)
        if named is None or named in found:
            break  # CUDA ignores everything from the first invalid entry on
        found.append(named)
    return tuple(found)


def _is_named(gpu: Gpu, part: str) -> bool:
    return gpu.index == part or (part.startswith("GPU-") and str(gpu.cells.get("uuid")).startswith(part))


@lru_cache(maxsize=2)
def unused_gpus(view: View) -> Mapping[str, str]:
    """Return host -> why the job uses no NVIDIA GPU there. The checks of NVIDIA GPUs do not apply to these hosts."""
    found: dict[str, str] = {}
    for host, smi in smis(view).items():
        why = _why_unused(view, host, smi)
        if why:
            found[host] = why
    return found


# A check of GPUs. By default it judges the NVIDIA GPUs that the job uses.
gpu_check = partial(Check, ask=nvidia.ASK, seen=NO_HARDWARE, exempt=unused_gpus)


def hosts_without_gpus(view: View) -> dict[str, str]:
    """Return host -> why the job uses no GPU of either maker there."""
    return {host: why for host, why in unused_gpus(view).items() if why != OTHER_MAKER}


def report_unseen(view: View, there: Callable[[str], bool] = lambda host: True) -> Iterable[Finding]:
    """Report hosts where nvidia-smi fails, so that their NVIDIA GPUs could not be examined. gpu.driver reports why."""
    exempt = unused_gpus(view)
    for host, smi in smis(view).items():
        if smi.state != nvidia.OK and host not in exempt and there(host):
            why = "nvidia-smi is not installed" if smi.state == nvidia.ABSENT else "nvidia-smi does not work"
            yield report.unknown(host, f"not checked: {why}")


def _why_unused(view: View, host: str, smi: Smi) -> str | None:
    if not has_gpus(view, host, smi) and not _driver_has(view, host):
        return OTHER_MAKER if amd.has_gpus(view, host) else NO_GPU
    if view.requirements.backend == "gloo":
        return "the job runs over gloo"
    real = python.imports(view).get(host) or {}
    if real.get("torch") and not real.get("cuda") and "cuda" in real:
        return OTHER_BUILD
    found = live_devices(view, host)
    if found and found.works and not found.buses and found.chosen:
        return f"{HIDDEN} ({found.chosen})"
    if smi.gpus and not gpus(view, host):
        return f"{HIDDEN} (CUDA_VISIBLE_DEVICES={view.target(host).env['CUDA_VISIBLE_DEVICES']})"
    return None


def _driver_has(view: View, host: str) -> bool:
    found = live_devices(view, host)
    return found is not None and found.api == "cuda" and bool(found.buses)
