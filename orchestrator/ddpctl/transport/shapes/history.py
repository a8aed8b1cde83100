"""A node's records of a run, for a report."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import Count, Digits, Figure, Flag, Integer, Moment, Name, Real, Short, Small, Unicode

Pair = tuple[Figure, Figure]
Rate = Annotated[Real, Field(ge=0, le=1e12)]
Megabytes = Annotated[Integer, Field(ge=0, le=1 << 40)]
Status = Annotated[Unicode, Field(pattern="^[a-z_]{1,20}$")]
Row = tuple[Small, Small, Status, Rate | None, Rate | None]


class LaunchDict(TypedDict):
    argv: NotRequired[Annotated[list[Short], Field(max_length=10_000)] | None]
    cwd: NotRequired[Short | None]
    torch: NotRequired[Short | None]
    environment: NotRequired[Short | None]
    created: NotRequired[Moment | None]
    launcher: NotRequired[Short | None]


class MeasuredDict(TypedDict):
    hosts: Annotated[list[Name], Field(max_length=64)]
    links: Annotated[list[Row], Field(max_length=64 * 64)]
    left_out: Count


def _among_its_hosts(found: MeasuredDict) -> MeasuredDict:
    if any(max(row[:2]) >= len(found["hosts"]) for row in found["links"]):
        raise ValueError("it has a link of a host that it does not name")
    return found


class CurveDict(TypedDict):
    points: Annotated[list[Pair], Field(max_length=500)]
    count: Count
    not_finite: Count
    not_finite_at: Figure | None


class RankCurvesDict(TypedDict):
    axis: Annotated[Unicode, Field(pattern="^(?:step|epoch|line)$")]
    sampled: Flag
    series: Annotated[dict[Short, CurveDict], Field(max_length=200)]


class GpuUseDict(TypedDict):
    index: Small
    name: Short
    held: Flag
    every_s: Annotated[Real, Field(gt=0, le=1e9)]
    use: Annotated[list[Annotated[Real, Field(ge=0, le=100)] | None], Field(max_length=1000)]
    memory_mb: Annotated[list[Megabytes | None], Field(max_length=1000)]
    memory_total_mb: Megabytes | None
    memory_max_mb: Megabytes | None
    temperature_max: Annotated[Real, Field(ge=-300, le=1e4)] | None
    power_max_w: Annotated[Real, Field(ge=0, le=1e9)] | None


class GpusUseDict(TypedDict):
    began: Moment
    gpus: Annotated[list[GpuUseDict], Field(max_length=1000)]


class HistoryDict(TypedDict):
    launch: LaunchDict
    gpus: Annotated[dict[Digits, GpusUseDict], Field(max_length=200)]
    network: Annotated[MeasuredDict, AfterValidator(_among_its_hosts)] | None
    attempts: Annotated[dict[Digits, dict[Digits, RankCurvesDict]], Field(max_length=200)]
