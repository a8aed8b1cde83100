"""The values behind ``ddpctl top``: every host as it is now, with its GPUs, and the runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ddpctl.spec.bounds import Celsius, Count, Digits, Name, Percent, Real, Short, Small, Unicode
from ddpctl.spec.metrics import Values, job_metrics
from ddpctl.spec.slots import Claim, OtherRun, other_runs
from ddpctl.spec.status import RunStatus

_Some = Annotated[Real, Field(ge=0, le=1e9)]
_Reading = Literal["runs", "gpus", "claims"]


@dataclass(frozen=True)
class Holder:
    """A process on a GPU: a rank of a run, or any other process. ``memory`` in bytes."""

    pid: Count
    user: Short | None
    command: Short | None
    job: Short | None
    run: Short | None
    rank: Small | None
    memory: Count | None


@dataclass(frozen=True)
class GpuPulse:
    """A reading of a GPU: memory in bytes, use in percent, temperature in degrees Celsius. ``None``: not available."""

    index: Small
    name: Short
    use: Percent | None
    memory: Count | None
    memory_total: Count | None
    temperature: Celsius | None
    power_w: _Some | None
    power_limit_w: _Some | None
    holders: Annotated[tuple[Holder, ...], Field(max_length=10_000)]
    error: Short | None


@dataclass(frozen=True)
class RankPulse:
    """A reading of the process of a rank. ``cpu`` in percent of a core; ``printed``: progress read from its output."""

    pid: Count | None = None
    state: Annotated[Unicode, Field(max_length=20)] | None = None
    cpu: Annotated[Real, Field(ge=-1e6, le=1e6)] | None = None
    rss_mb: _Some | None = None
    output_age_s: _Some | None = None
    metrics: Values = field(default_factory=dict)
    printed: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Pulse:
    """The last reading of a host, memory in bytes.

    ``late``: the readings that hang, with the seconds since their start. While the reading of GPUs hangs, ``gpus`` is
    ``None``; while the reading of runs hangs, ``runs`` is old. ``errors``: the readings that
    failed, with their errors; their values are old. ``claims``: of slots, by other accounts.
    """

    load: _Some | None
    cores: Count
    cpu: Percent | None
    memory: Count
    memory_total: Count
    gpus: Annotated[tuple[GpuPulse, ...], Field(max_length=1000)] | None
    gpu_error: Short | None = None
    late: Mapping[_Reading, _Some] = field(default_factory=dict)
    errors: Mapping[_Reading, Short] = field(default_factory=dict)
    # run -> rank ("": unknown) -> pulse
    runs: Annotated[
        Mapping[Name, Annotated[Mapping[Digits, RankPulse], Field(max_length=100_000)]], Field(max_length=1000)
    ] = field(default_factory=dict)
    claims: Annotated[tuple[Claim, ...], Field(max_length=1000)] = ()


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

    @property
    def others(self) -> list[OtherRun]:
        """Return the runs of other accounts, the newest first."""
        claims = [claim for view in self.hosts if view.pulse is not None for claim in view.pulse.claims]
        return other_runs(claims, {run.run for run in self.runs})[::-1]

    def pulse(self, host: str) -> Pulse | None:
        return next((view.pulse for view in self.hosts if view.host == host), None)

    def values(self, run: str) -> Values:
        """Return the metrics that the ranks of a run wrote; of a run without metrics, the values in its output."""
        return job_metrics(self.metrics(run)) or self.printed(run)

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
