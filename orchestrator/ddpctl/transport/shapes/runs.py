"""Runs, their output and their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import (
    Count,
    Digits,
    Figure,
    Flag,
    Integer,
    Moment,
    Name,
    NodeState,
    Number,
    Place,
    Port,
    Real,
    Short,
    Small,
    Text,
    Whole,
)
from ddpctl.spec.outcome import CheckpointLag, StuckRun
from ddpctl.spec.record import NodeReport
from ddpctl.transport.shapes.adapters import asked, own_name
from ddpctl_worker.wire.contract import begins


def _of_call(report: NodeReport, info: ValidationInfo) -> NodeReport:
    """Check that a node reports about itself, and about the run in the request where the request names a run."""
    own_name(report.host, info)
    run = asked(info).get("run")
    if run is not None and report.run != (run["run"] if isinstance(run, Mapping) else run):
        raise ValueError("it is about another run")
    return report


Status = Annotated[NodeReport, AfterValidator(_of_call)]


class UntrackedDict(TypedDict):
    folder: Short | None
    files: Count
    bytes: Count
    largest: Annotated[list[tuple[Short, Count]], Field(max_length=10)]
    whole: Flag


class SurvivorDict(TypedDict):
    pid: Count
    cmd: Short


def _of_job(runs: list[NodeReport], info: ValidationInfo) -> list[NodeReport]:
    job = asked(info).get("job")
    if job is not None and any(job not in (run.job, run.run) and not begins(run.run, job) for run in runs):
        raise ValueError("it is about another job")
    return runs


class RunsDict(TypedDict):
    runs: Annotated[list[Status], AfterValidator(_of_job)]
    left_out: NotRequired[Count]


class StartedDict(TypedDict):
    status: Status
    port: NotRequired[Port | None]
    beside: NotRequired[list[Name]]
    unclaimed: NotRequired[Short | None]
    machine: NotRequired[Short]


class OriginTextDict(TypedDict):
    account: Short
    machine: Short
    folder: Short


class SlotClaimDict(TypedDict):
    run: Name
    job: Name
    cluster: Name
    project: Name
    host: Name
    hosts: Annotated[list[Name], Field(max_length=10_000)]
    account: Short
    mine: Flag
    origin: OriginTextDict
    age_s: Annotated[Real, Field(ge=0, le=1e12)]
    slots: Annotated[list[Small], Field(max_length=10_000)]
    want: Small
    place: Small | None


class ForeignProgramDict(TypedDict):
    pid: Count
    account: Short | None
    command: Short


class SlotHolderDict(TypedDict):
    slots: Annotated[list[Small], Field(max_length=10_000)]
    claim: Small | None
    foreign: ForeignProgramDict | None


class LimitDict(TypedDict):
    limit: Small
    held: Small


class SlotsDict(TypedDict):
    claims: Annotated[list[SlotClaimDict], Field(max_length=10_000)]
    fits: Flag | None
    gpus: Flag
    holders: Annotated[list[SlotHolderDict], Field(max_length=20_000)]
    limited: NotRequired[LimitDict | None]
    trouble: Short | None


class RemovedDict(TypedDict):
    removed: Flag


class StoppedDict(TypedDict):
    signalled: Count
    forced: Count
    survivors: list[SurvivorDict]
    status: Status


class GrowingDict(TypedDict):
    path: Short
    size: Count
    left: Annotated[Real, Field(ge=0, le=1e9)]


class GrowingFrameDict(TypedDict):
    growing: GrowingDict


class DeafDict(TypedDict):
    rank: Small
    pid: Count


class AskedDict(TypedDict):
    ranks: Annotated[list[Small], Field(max_length=100_000)]
    deaf: Annotated[list[DeafDict], Field(max_length=100_000)]
    absent: Small
    sent: Flag
    newest: Moment | None


class RankMetricsDict(TypedDict):
    offset: Count
    lines: list[dict[Short, Figure]]


class MetricsDict(TypedDict):
    ranks: dict[Digits, RankMetricsDict]


class ColumnsDict(TypedDict):
    """Output lines, as a column for each field."""

    rank: list[Small | None]
    stream: list[Literal["stdout", "stderr"]]
    time: list[Annotated[Real, Field(ge=0, le=1e10)]]
    text: list[Text]
    end: list[Literal["\n", "\r", ""]]
    offset: list[Count]
    attempt: list[Small]


def _check_columns(columns: ColumnsDict) -> ColumnsDict:
    if len({len(column) for column in columns.values()}) != 1:  # type: ignore[arg-type]
        raise ValueError("its columns have different lengths")
    if any("\n" in text for text in columns["text"]):
        raise ValueError("a line has a line feed inside")  # the rest would look like another host's line
    return columns


class LinesDict(TypedDict):
    lines: Annotated[ColumnsDict, AfterValidator(_check_columns)]
    offset: Count
    more: Flag


class StandingDict(TypedDict):
    state: NodeState
    heartbeat_age_s: NotRequired[Number | None]


class StuckDict(TypedDict):
    stuck: StuckRun | None


class FallingBehindDict(TypedDict):
    lag: CheckpointLag


class TailedDict(TypedDict):
    offset: Count
    state: NodeState


class FileInfoDict(TypedDict):
    path: Place
    size: Count
    mode: NotRequired[Annotated[Integer, Field(ge=0, le=0o7777)]]
    offset: NotRequired[Count]
    mtime_ns: NotRequired[Whole]


class FileFrameDict(TypedDict):
    file: FileInfoDict


class ChunkDict(TypedDict):
    chunk: Literal[True]


class FetchedDict(TypedDict):
    missing: list[Short]
