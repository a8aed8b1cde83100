"""Runs, their output and their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from typing_extensions import NotRequired, TypedDict

from ddpctl.transport.shapes.words import (
    Count,
    Digits,
    Figure,
    Moment,
    Name,
    NodeState,
    Number,
    Place,
    Short,
    Small,
    Text,
    Whole,
    asked,
    own_name,
)


def _this_run(value: str, info: ValidationInfo) -> str:
    """The run that was asked for, where one was."""
    run = asked(info).get("run")
    if run is not None and value != (run["run"] if isinstance(run, Mapping) else run):
        raise ValueError("it is about another run")
    return value


class CauseDict(TypedDict):
    host: Name
    rank: NotRequired[Small | None]
    exit_code: NotRequired[Whole | None]
    signal: NotRequired[Short | None]
    reason: Annotated[str, Field(pattern="^[a-z_]{1,40}$")]
    message: Short
    traceback: NotRequired[Text | None]
    time: Moment


class TimeoutsDict(TypedDict):
    stop: NotRequired[Annotated[float, Field(ge=0, le=1e6)] | None]


class DoctorDict(TypedDict):
    stall: Annotated[float, Field(gt=0, le=1e9)]


class RecordDict(TypedDict):
    """A run.json, as far as anybody here reads it."""

    hosts: NotRequired[Annotated[list[Name], Field(max_length=10_000)] | None]
    world_size: NotRequired[Small | None]
    timeouts: NotRequired[TimeoutsDict | None]
    user: NotRequired[Short | None]
    doctor: NotRequired[DoctorDict | None]


class SurvivorDict(TypedDict):
    pid: Count
    cmd: Short


class SuspectDict(TypedDict):
    host: Name
    rank: Small


class DiagnosisDict(TypedDict):
    verdict: Short
    suspects: list[SuspectDict]
    since: Moment
    time: Moment


class SlowDict(TypedDict):
    host: Name
    rank: Small
    lag_ms: Number | Whole
    last_share: Number | Whole
    why: NotRequired[list[Short]]


class StatusDict(TypedDict):
    run: Annotated[Name, AfterValidator(_this_run)]
    job: Name
    cluster: Name
    host: Annotated[Name, AfterValidator(own_name)]
    node_rank: Small
    state: NodeState
    pid: NotRequired[Count | None]
    ranks: NotRequired[list[Small] | None]
    exit_code: NotRequired[Whole | None]
    heartbeat_age_s: NotRequired[Number | None]
    attempt: NotRequired[Small | None]
    started: NotRequired[Short | None]
    ended: NotRequired[Short | None]
    cause: NotRequired[CauseDict | None]
    candidates: NotRequired[list[CauseDict] | None]
    last_output_age_s: NotRequired[Number | None]
    dropped_lines: NotRequired[Count | None]
    metrics: NotRequired[dict[Digits, dict[Short, Figure]]]
    note: NotRequired[Short | None]
    diagnosis: NotRequired[DiagnosisDict | None]
    slow: NotRequired[list[SlowDict] | None]
    reported: NotRequired[Moment | None]
    record: RecordDict


def _of_job(runs: list[StatusDict], info: ValidationInfo) -> list[StatusDict]:
    job = asked(info).get("job")
    if job is not None and any(job not in (one["job"], one["run"]) for one in runs):
        raise ValueError("it is about another job")
    return runs


class RunsDict(TypedDict):
    runs: Annotated[list[StatusDict], AfterValidator(_of_job)]
    left_out: NotRequired[Count]


class StartedDict(TypedDict):
    status: StatusDict


class StoppedDict(TypedDict):
    signalled: Count
    forced: Count
    survivors: list[SurvivorDict]
    status: StatusDict


class RankMetricsDict(TypedDict):
    offset: Count
    lines: list[dict[Short, Figure]]


class MetricsDict(TypedDict):
    ranks: dict[Digits, RankMetricsDict]


class LineDict(TypedDict):
    rank: Small | None
    stream: Literal["stdout", "stderr"]
    time: Moment
    text: Text
    end: Literal["\n", "\r", ""]
    offset: Count


class LinesDict(TypedDict):
    lines: list[LineDict]


class StandingDict(TypedDict):
    state: NodeState
    heartbeat_age_s: NotRequired[Number | None]


class StuckDict(TypedDict):
    stuck: DiagnosisDict | None


class TailedDict(TypedDict):
    offset: Count
    state: NodeState


class FileInfoDict(TypedDict):
    path: Place
    size: Count
    mode: NotRequired[Annotated[int, Field(ge=0, le=0o7777)]]


class FileFrameDict(TypedDict):
    file: FileInfoDict


class ChunkDict(TypedDict):
    chunk: Literal[True]


class FetchedDict(TypedDict):
    missing: list[Short]
