"""The values behind ``ddpctl top``: every host as it is now, with its GPUs, and the runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.spec.metrics import Values
from ddpctl.spec.status import RunStatus


@dataclass(frozen=True)
class Holder:
    """A process on a GPU: a rank of a run, or any other process. ``memory`` in bytes."""

    pid: int
    user: str | None = None
    command: str | None = None
    job: str | None = None
    run: str | None = None
    rank: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class GpuPulse:
    """A reading of a GPU: memory in bytes, use in percent, temperature in degrees Celsius. ``None``: not available."""

    index: int
    name: str
    use: float | None = None
    memory: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    holders: tuple[Holder, ...] = ()
    error: str | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GpuPulse:
        return GpuPulse(**{**data, "holders": tuple(Holder(**holder) for holder in data["holders"])})


@dataclass(frozen=True)
class RankPulse:
    """A reading of the process of a rank. ``cpu`` in percent of a core; ``printed``: progress read from its output."""

    pid: int | None = None
    state: str | None = None
    cpu: float | None = None
    rss_mb: float | None = None
    output_age_s: float | None = None
    metrics: Values = field(default_factory=dict)
    printed: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Pulse:
    """The last reading of a host.

    ``late``: the readings that hang, with the seconds since their start. While the reading of GPUs hangs, ``gpus`` is
    ``None``; while the reading of runs hangs, ``runs`` is old. ``errors``: the readings that
    failed, with their errors; their values are old.
    """

    load: float | None
    cores: int
    cpu: float | None
    memory: int
    memory_total: int
    gpus: tuple[GpuPulse, ...] | None
    gpu_error: str | None = None
    late: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Mapping[str, RankPulse]] = field(default_factory=dict)  # run -> rank ("": unknown) -> pulse

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Pulse:
        memory, gpus = data["memory"], data["gpus"]
        return Pulse(
            load=data["load"],
            cores=data["cores"],
            cpu=data["cpu"],
            memory=max(0, memory["total"] - memory["available"]),
            memory_total=memory["total"],
            gpus=None if gpus is None else tuple(GpuPulse.from_json(gpu) for gpu in gpus["gpus"]),
            gpu_error=None if gpus is None else gpus["error"],
            late=data["late"],
            errors=data["errors"],
            runs={
                run: {rank: RankPulse(**pulse) for rank, pulse in (node.get("ranks") or {}).items()}
                for run, node in data["runs"].items()
            },
        )


@dataclass(frozen=True)
class HostView:
    """A host with its last pulse, or with the reason why there is no pulse."""

    host: str
    pulse: Pulse | None = None
    error: str | None = None


@dataclass(frozen=True)
class Overview:
    """All hosts in the order of the inventory, and their runs, the newest first."""

    hosts: tuple[HostView, ...] = ()
    runs: tuple[RunStatus, ...] = ()

    def run(self, name: str) -> RunStatus | None:
        return next((run for run in self.runs if run.run == name), None)

    def pulse(self, host: str) -> Pulse | None:
        return next((view.pulse for view in self.hosts if view.host == host), None)

    def metrics(self, run: str) -> list[Values]:
        """Return the last metrics of each rank of a run that wrote any."""
        return [rank.metrics for _, rank in self._ranks(run) if rank.metrics]

    def printed(self, run: str) -> Values:
        """Return the progress that the first rank with any progress has printed."""
        found = {rank: pulse.printed for rank, pulse in self._ranks(run) if pulse.printed}
        return found[min(found, key=lambda rank: (len(rank), rank))] if found else {}

    def _ranks(self, run: str) -> Iterator[tuple[str, RankPulse]]:
        for view in self.hosts:
            if view.pulse is not None:
                yield from view.pulse.runs.get(run, {}).items()
