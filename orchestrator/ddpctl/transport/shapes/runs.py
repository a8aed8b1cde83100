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
        raise ValueError("it speaks of another run")
    return value


class Cause(TypedDict):
    host: Name
    rank: NotRequired[Small | None]
    exit_code: NotRequired[Whole | None]
    signal: NotRequired[Short | None]
    reason: Annotated[str, Field(pattern="^[a-z_]{1,40}$")]
    message: Short
    traceback: NotRequired[Text | None]
    time: Moment


class Timeouts(TypedDict):
    stop: NotRequired[Annotated[float, Field(ge=0, le=1e6)] | None]


class Record(TypedDict):
    """A run.json, as far as anybody here reads it."""

    hosts: NotRequired[Annotated[list[Name], Field(max_length=10_000)] | None]
    world_size: NotRequired[Small | None]
    timeouts: NotRequired[Timeouts | None]
    user: NotRequired[Short | None]


class Survivor(TypedDict):
    pid: Count
    cmd: Short


class Status(TypedDict):
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
    cause: NotRequired[Cause | None]
    candidates: NotRequired[list[Cause] | None]
    last_output_age_s: NotRequired[Number | None]
    dropped_lines: NotRequired[Count | None]
    metrics: NotRequired[dict[Digits, dict[Short, Figure]]]
    note: NotRequired[Short | None]
    record: Record


def _of_job(runs: list[Status], info: ValidationInfo) -> list[Status]:
    job = asked(info).get("job")
    if job is not None and any(job not in (one["job"], one["run"]) for one in runs):
        raise ValueError("it speaks of another job")
    return runs


class Runs(TypedDict):
    runs: Annotated[list[Status], AfterValidator(_of_job)]
    left_out: NotRequired[Count]


class Started(TypedDict):
    status: Status


class Stopped(TypedDict):
    signalled: Count
    forced: Count
    survivors: list[Survivor]
    status: Status


class RankMetrics(TypedDict):
    offset: Count
    lines: list[dict[Short, Figure]]


class Metrics(TypedDict):
    ranks: dict[Digits, RankMetrics]


class Line(TypedDict):
    rank: Small | None
    stream: Literal["stdout", "stderr"]
    time: Moment
    text: Text
    end: Literal["\n", "\r", ""]
    offset: Count


class Lines(TypedDict):
    lines: list[Line]


class Standing(TypedDict):
    state: NodeState
    heartbeat_age_s: NotRequired[Number | None]


class Tailed(TypedDict):
    offset: Count
    state: NodeState


class FileInfo(TypedDict):
    path: Place
    size: Count
    mode: NotRequired[Annotated[int, Field(ge=0, le=0o7777)]]


class FileFrame(TypedDict):
    file: FileInfo


class Chunk(TypedDict):
    chunk: Literal[True]


class Fetched(TypedDict):
    missing: list[Short]
