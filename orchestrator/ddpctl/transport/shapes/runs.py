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
    Hash,
    Integer,
    Moment,
    Name,
    NodeState,
    Number,
    Place,
    Plain,
    Port,
    Real,
    Short,
    Small,
    Text,
    Unicode,
    Whole,
)
from ddpctl.transport.shapes.adapters import asked, own_name
from ddpctl_worker.wire.contract import begins


def _this_run(value: str, info: ValidationInfo) -> str:
    """Check that the answer is about the run in the request, where the request names a run."""
    run = asked(info).get("run")
    if run is not None and value != (run["run"] if isinstance(run, Mapping) else run):
        raise ValueError("it is about another run")
    return value


class CauseDict(TypedDict):
    host: Name
    rank: NotRequired[Small | None]
    exit_code: NotRequired[Whole | None]
    signal: NotRequired[Short | None]
    reason: Annotated[Unicode, Field(pattern="^[a-z_]{1,40}$")]
    message: Short
    traceback: NotRequired[Text | None]
    time: Moment
    peer: NotRequired[Name | None]


class TimeoutsDict(TypedDict):
    stop: NotRequired[Annotated[Real, Field(ge=0, le=1e6)] | None]


class DoctorDict(TypedDict):
    stall: Annotated[Real, Field(gt=0, le=1e9)]


class FirstDict(TypedDict):
    hosts: Annotated[list[Name], Field(min_length=1, max_length=10_000)]
    started: Moment


class RestartDict(TypedDict):
    first: FirstDict


class SaveKeysDict(TypedDict):
    signal: Annotated[Unicode, Field(pattern="^SIG[A-Z0-9]{1,20}$")]
    timeout: Annotated[Real, Field(gt=0, le=1e9)]
    replicas: NotRequired[Count]


class CodeDict(TypedDict):
    hash: Hash
    size: Count
    git_commit: NotRequired[Short | None]
    dirty: NotRequired[Flag | None]


class SettingsDict(TypedDict):
    job: Name
    keys: Annotated[dict[Short, Plain], Field(max_length=1000)]
    hosts: Annotated[list[Name], Field(min_length=1, max_length=10_000)]
    nodes: Annotated[Integer, Field(ge=1, le=10_000)]
    nproc: Small | None
    local_rank_arg: Short | None
    secrets: Annotated[list[Short], Field(max_length=10_000)]
    notified: Flag


class SetAsideDict(TypedDict):
    host: Name
    why: Short


class AttemptDict(TypedDict):
    attempt: Small
    hosts: Annotated[list[Name], Field(max_length=10_000)]
    started: Moment | None
    ended: Moment | None
    cause: CauseDict | None
    set_aside: list[SetAsideDict]


class ContinuesDict(TypedDict):
    run: Name
    attempts: Annotated[list[AttemptDict], Field(min_length=1, max_length=2000)]


class OriginDict(TypedDict):
    account: Short
    machine: Short
    folder: Short
    inode: Count


class RecordDict(TypedDict):
    """The fields of run.json that ddpctl reads."""

    project: Name
    origin: NotRequired[OriginDict | None]
    hosts: NotRequired[Annotated[list[Name], Field(max_length=10_000)] | None]
    world_size: NotRequired[Small | None]
    min_nodes: NotRequired[Small | None]
    timeouts: NotRequired[TimeoutsDict | None]
    doctor: NotRequired[DoctorDict | None]
    restart: NotRequired[RestartDict | None]
    checkpoint: NotRequired[SaveKeysDict | None]
    code: NotRequired[CodeDict | None]
    settings: NotRequired[SettingsDict | None]
    continues: NotRequired[ContinuesDict | None]


class UntrackedDict(TypedDict):
    folder: Short | None
    files: Count
    bytes: Count
    largest: Annotated[list[tuple[Short, Count]], Field(max_length=10)]
    whole: Flag


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


class OverDict(TypedDict):
    state: NodeState
    cause: CauseDict | None


class AgreedDict(TypedDict):
    term: Count
    version: Count
    attempts: Annotated[list[AttemptDict], Field(min_length=1, max_length=2000)]
    live: Flag
    set_aside: NotRequired[dict[Name, Short]]
    over: OverDict | None


class StrangersDict(TypedDict):
    count: Count
    addresses: Count
    most: dict[Short, Count]
    last: Moment


class LagDict(TypedDict):
    """How far the checkpoints with all of their copies are behind the saves."""

    name: Place
    saved_s: Number
    kept_s: Number | None
    behind_s: Number | None
    late: Flag
    copies: Small


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
    printed: NotRequired[dict[Short, Figure]]
    note: NotRequired[Short | None]
    diagnosis: NotRequired[DiagnosisDict | None]
    slow: NotRequired[list[SlowDict] | None]
    reported: NotRequired[Moment | None]
    lag: NotRequired[LagDict | None]
    agreed: NotRequired[AgreedDict | None]
    strangers: NotRequired[StrangersDict | None]
    record: RecordDict


def _of_job(runs: list[StatusDict], info: ValidationInfo) -> list[StatusDict]:
    job = asked(info).get("job")
    if job is not None and any(job not in (run["job"], run["run"]) and not begins(run["run"], job) for run in runs):
        raise ValueError("it is about another job")
    return runs


class RunsDict(TypedDict):
    runs: Annotated[list[StatusDict], AfterValidator(_of_job)]
    left_out: NotRequired[Count]


class StartedDict(TypedDict):
    status: StatusDict
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
    status: StatusDict


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
    stuck: DiagnosisDict | None


class FallingBehindDict(TypedDict):
    lag: LagDict


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
