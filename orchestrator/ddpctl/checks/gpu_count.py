"""A GPU for every process of the job: by what torch sees, live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddpctl.checks import amd, nvidia, torch, use
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences, where
from ddpctl.checks.gpu import RECORDED
from ddpctl.checks.nvidia import Smi, smis
from ddpctl.spec.finding import Finding, Severity


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (*nvidia.ask(target, want), amd.GPUS, torch.live_question(target, want))


def _judge_count(view: View) -> Iterable[Finding]:
    if view.want.backend == "gloo":
        return
    yield from use.unseen("gpu.count", view, lambda host: use.devices(view, use.target_of(view, host)) is None)
    asked = [target for target in view.targets if target.name in smis(view)]
    found = {target.name: count for target in asked if (count := use.devices(view, target)) is not None}
    some = {host: count for host, count in found.items() if count}
    if some or view.want.backend == "nccl":
        yield from _without(view, found, some)
    for target in view.targets:
        count = some.get(target.name, 0)
        if count and target.nproc is not None and target.nproc > count:
            yield _too_few(view, target, count)
    yield from _shared(view)
    auto = {target.name: some[target.name] for target in view.targets if target.nproc is None and target.name in some}
    yield from differences(
        "gpu.count",
        auto,
        what="GPUs:",
        severity=Severity.WARNING,
        fix="right if the machines differ; otherwise a GPU is missing: compare `nvidia-smi -L` of the hosts",
    )


def _without(view: View, found: Mapping[str, int], some: Mapping[str, int]) -> Iterable[Finding]:
    for host, count in found.items():
        smi = smis(view)[host]
        broken = smi.state not in (nvidia.OK, *nvidia.NO_GPU)
        if count or broken or (smi.count and host not in use.unused(view)):
            continue  # gpu.driver says so, or gpu.cuda that torch finds none of those that are there
        others = _others(some)
        yield Finding(
            "gpu.count",
            Severity.ERROR,
            f"{host} shows no usable GPU ({_why_none(view, host, smi)}){others}",
            host,
            fix=f"NCCL needs a GPU on every node: leave {host} out (`nodes:` of the job), or run the job with gloo",
            evidence={"gpus": dict(found)},
        )


def _others(some: Mapping[str, int]) -> str:
    if not some:
        return ""
    host, count = next(iter(some.items()))
    return f"; {host} has {count}" if len(some) == 1 else f"; {where(list(some))} have some"


def _why_none(view: View, host: str, smi: Smi) -> str:
    hidden = use.unused(view).get(host, "")
    if smi.gpus and all(gpu.is_on("mig.mode.current") for gpu in smi.gpus) and not smi.mig_devices:
        return "MIG is on and no instance was made"
    if hidden.startswith(use.HIDDEN):
        return hidden.partition("(")[2].rstrip(")") or hidden
    if amd.has_gpus(view, host):
        return "its AMD GPUs cannot be opened"
    return {
        nvidia.ABSENT: "nvidia-smi not found",
        nvidia.NO_DRIVER: "no NVIDIA driver is loaded",
        nvidia.NO_DEVICES: "nvidia-smi finds no device",
    }.get(smi.state, hidden or "torch sees none")


def _too_few(view: View, target: Target, count: int) -> Finding:
    live, smi = use.live(view, target.name), smis(view).get(target.name)
    why = f" ({live.chosen})" if live and live.chosen else ""
    if smi and smi.mig_devices and not why:
        why = f" (MIG: a process sees one of the {smi.mig_devices} devices)"
    return Finding(
        "gpu.count",
        Severity.ERROR,
        f"{target.nproc} processes, but {count} GPU(s){why}: each needs one of its own",
        target.name,
        fix=f"set `slots: {count}` for {target.name}, or `nproc_per_node: auto`"
        + (f"; where the login sets {live.chosen}, take it out of the profile" if live and live.chosen else ""),
        evidence={"nproc": target.nproc, "gpus": count},
    )


def _shared(view: View) -> Iterable[Finding]:
    """One GPU under two names: two containers of one machine, or a machine twice in the inventory."""
    owners: dict[str, list[str]] = {}
    for target in view.targets:
        for gpu in use.gpus(view, target.name):
            uuid = gpu.cells.get("uuid")
            if uuid and uuid.startswith("GPU-") and not gpu.is_on("mig.mode.current"):
                owners.setdefault(uuid, []).append(target.name)
    groups: dict[tuple[str, ...], list[str]] = {}
    for uuid, hosts in owners.items():
        if len(hosts) > 1:
            groups.setdefault(tuple(hosts), []).append(uuid)
    for names, uuids in groups.items():
        yield Finding(
            "gpu.count",
            Severity.ERROR,
            f"{where(list(names))} use the same {len(uuids)} GPU(s) ({uuids[0]}{', ...' if len(uuids) > 1 else ''}): "
            "NCCL refuses a GPU that two ranks have, or hangs",
            fix="give each its own (CUDA_VISIBLE_DEVICES in `env:`, or the container's devices), or keep one of them",
            evidence={"hosts": list(names), "uuids": uuids},
        )


COUNT = Check(
    "gpu.count",
    "every process has a GPU",
    _ask,
    _judge_count,
    Doc(
        cause="More processes than torch sees GPUs on a node (CUDA_VISIBLE_DEVICES in a profile, MIG), a node without "
        "GPUs among nodes with some, unlike numbers of GPUs, or one GPU under two names of the inventory.",
        symptom="CUDA error: invalid device ordinal; Duplicate GPU detected: rank 1 and rank 0 both on CUDA device",
        fix="`slots: auto` and `nproc_per_node: auto` take the GPUs that are there.",
        verified=RECORDED,
    ),
    exempt=use.without_gpus,
)
CHECKS = (COUNT,)
