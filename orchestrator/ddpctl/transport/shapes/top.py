"""The state that a node sends every two seconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import Count, Digits, Figure, Name, Real, Short, Small, Unicode
from ddpctl.transport.shapes.runs import Status

_Share = Annotated[Real, Field(ge=0, le=100)]
_Some = Annotated[Real, Field(ge=0, le=1e9)]


class MemoryDict(TypedDict):
    total: Count
    available: Count


class HolderDict(TypedDict):
    pid: Count
    user: Short | None
    command: Short | None
    job: Short | None
    run: Short | None
    rank: Small | None
    memory: Count | None


class GpuDict(TypedDict):
    index: Small
    name: Short
    use: _Share | None
    memory: Count | None
    memory_total: Count | None
    temperature: Annotated[Real, Field(ge=-300, le=1e4)] | None
    power_w: _Some | None
    power_limit_w: _Some | None
    holders: Annotated[list[HolderDict], Field(max_length=10_000)]
    error: Short | None


class GpusDict(TypedDict):
    gpus: Annotated[list[GpuDict], Field(max_length=1000)]
    error: Short | None


class RankPulseDict(TypedDict):
    metrics: dict[Short, Figure]
    printed: NotRequired[dict[Short, Figure]]
    pid: NotRequired[Count]
    state: NotRequired[Annotated[Unicode, Field(max_length=20)]]
    cpu: NotRequired[Annotated[Real, Field(ge=-1e6, le=1e6)] | None]
    rss_mb: NotRequired[_Some | None]
    output_age_s: NotRequired[_Some | None]


class RunPulseDict(TypedDict):
    heartbeat_age_s: NotRequired[_Some | None]
    last_output_age_s: NotRequired[_Some | None]
    ranks: NotRequired[Annotated[dict[Digits, RankPulseDict], Field(max_length=100_000)]]


class LateDict(TypedDict):
    runs: NotRequired[_Some]
    gpus: NotRequired[_Some]


class ErrorsDict(TypedDict):
    runs: NotRequired[Short]
    gpus: NotRequired[Short]


class PulseDict(TypedDict):
    load: _Some | None
    cores: Count
    cpu: _Share | None
    memory: MemoryDict
    late: LateDict
    errors: ErrorsDict
    gpus: GpusDict | None
    runs: Annotated[dict[Name, RunPulseDict], Field(max_length=1000)]


class PulseFrameDict(TypedDict):
    pulse: PulseDict


class RunFrameDict(TypedDict):
    run: Status
