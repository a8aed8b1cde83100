"""Hosts and runs in the text format of Prometheus, for ``ddpctl metrics``.

https://prometheus.io/docs/instrumenting/exposition_formats/ has the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from ddpctl.render.clean import clean
from ddpctl.spec.metrics import SAMPLES
from ddpctl.spec.slots import HostSlots
from ddpctl.spec.status import RunStatus
from ddpctl.spec.times import elapsed
from ddpctl.spec.top import GpuPulse, HostView, Overview

# Each metric with its help, in the order of the page. All are gauges.
HELP = {
    "ddpctl_host_up": "1 if the host answered, else 0.",
    "ddpctl_host_slots_held": "Slots (GPUs, or processes on a host without a GPU) that runs of all accounts hold.",
    "ddpctl_gpu_use_ratio": "Share of the time in which the GPU had work, 0 to 1, at the last reading.",
    "ddpctl_gpu_memory_used_bytes": "Memory of the GPU in use.",
    "ddpctl_gpu_memory_bytes": "Memory of the GPU.",
    "ddpctl_run_state": "1 for the state that the run has.",
    "ddpctl_run_attempt": "Number of the newest attempt; it continues over ddpctl restart.",
    "ddpctl_run_restarts": "Attempts that followed the first attempt of this run.",
    "ddpctl_run_seconds": "Time from the start of the run until its end, or until now.",
    "ddpctl_run_checkpoint_age_seconds": "Age of the newest checkpoint that is complete and has all of its copies.",
    "ddpctl_run_step": "Last step of a live run.",
    "ddpctl_run_epoch": "Last epoch of a live run.",
    "ddpctl_run_loss": "Last loss of a live run.",
    "ddpctl_run_samples_per_second": "Last speed of a live run, all ranks together.",
}
_VALUES = {
    "step": "ddpctl_run_step",
    "epoch": "ddpctl_run_epoch",
    "loss": "ddpctl_run_loss",
    SAMPLES: "ddpctl_run_samples_per_second",
}

Sample = tuple[str, dict[str, str], float | None]  # name, labels, value; None: not known


def render_exposition(cluster: str, seen: Overview, slots: Mapping[str, HostSlots], now: datetime) -> str:
    """Return the page. ``slots``: host -> its answer about its slots."""
    lines: dict[str, dict[str, str]] = {name: {} for name in HELP}  # a series that comes twice makes a page invalid
    for name, labels, value in _samples(cluster, seen, slots, now):
        if value is not None:
            series = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            lines[name][series] = f"{name}{{{series}}} {value!r}"
    page = [
        text
        for name, samples in lines.items()
        if samples
        for text in (f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge", *samples.values())
    ]
    return "".join(f"{text}\n" for text in page)


def _escape(text: str) -> str:
    return clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _samples(cluster: str, seen: Overview, slots: Mapping[str, HostSlots], now: datetime) -> Iterator[Sample]:
    for view in seen.hosts:
        yield from _host_samples({"cluster": cluster, "host": view.host}, view, slots.get(view.host))
    for run in seen.runs:
        yield from _run_samples(seen, run, now)


def _host_samples(labels: dict[str, str], view: HostView, slots: HostSlots | None) -> Iterator[Sample]:
    yield "ddpctl_host_up", labels, int(view.pulse is not None)
    if slots is not None and slots.trouble is None:
        yield "ddpctl_host_slots_held", labels, sum(len(claim.slots) for claim in slots.claims)
    for gpu in (view.pulse.gpus or ()) if view.pulse is not None else ():
        yield from _gpu_samples({**labels, "gpu": str(gpu.index), "model": gpu.name}, gpu)


def _gpu_samples(labels: dict[str, str], gpu: GpuPulse) -> Iterator[Sample]:
    yield "ddpctl_gpu_use_ratio", labels, None if gpu.use is None else gpu.use / 100
    yield "ddpctl_gpu_memory_used_bytes", labels, gpu.memory
    yield "ddpctl_gpu_memory_bytes", labels, gpu.memory_total


def _run_samples(seen: Overview, run: RunStatus, now: datetime) -> Iterator[Sample]:
    # Prometheus itself gives every series a label `job`.
    labels = {"cluster": run.cluster, "project": run.project, "job_name": run.job, "run": run.run}
    verdict = run.verdict
    seconds = elapsed(verdict.started, verdict.ended or now.isoformat())
    yield "ddpctl_run_state", {**labels, "state": verdict.state}, 1
    yield "ddpctl_run_attempt", labels, verdict.attempts[-1].number
    yield "ddpctl_run_restarts", labels, len(verdict.own_attempts) - 1
    yield "ddpctl_run_seconds", labels, None if seconds is None else round(max(0.0, seconds), 3)
    yield "ddpctl_run_checkpoint_age_seconds", labels, run.lag.kept_s if run.lag else None
    values = seen.values(run.run)
    for word, name in _VALUES.items():
        yield name, labels, values.get(word)
