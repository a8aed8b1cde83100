"""Runs: their state, output, checkpoints and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import Count, Flag, Hash, Moment, Name, Number, Place, Real, Short, Small, Text, Unicode, Whole
from ddpctl.spec.outcome import Untracked
from ddpctl.spec.record import NodeReport
from ddpctl.spec.slots import HostSlots
from ddpctl.transport.shapes.adapters import asked, own_name
from ddpctl_worker.wire.contract import begins


def _of_call(report: NodeReport, info: ValidationInfo) -> NodeReport:
    """Check that a node reports about itself, and about the run in the request where the request names a run.

    The record names all hosts of the run, spares too. A damaged record may name no hosts at all.
    """
    own_name(report.host, info)
    if report.record.hosts is not None and report.host not in report.record.hosts:
        raise ValueError("its record does not name it")
    run = asked(info).get("run")
    if run is not None and report.run != (run["run"] if isinstance(run, Mapping) else run):
        raise ValueError("it is about another run")
    return report


Status = Annotated[NodeReport, AfterValidator(_of_call)]


def _of_host(found: Untracked, info: ValidationInfo) -> Untracked:
    own_name(found.host, info)
    return found


OwnUntracked = Annotated[Untracked, AfterValidator(_of_host)]


def _claims_of_host(found: HostSlots, info: ValidationInfo) -> HostSlots:
    for claim in found.claims:
        own_name(claim.host, info)
    return found


OwnSlots = Annotated[HostSlots, AfterValidator(_claims_of_host)]


def _of_job(runs: tuple[NodeReport, ...], info: ValidationInfo) -> tuple[NodeReport, ...]:
    job = asked(info).get("job")
    if job is not None and any(job not in (run.job, run.run) and not begins(run.run, job) for run in runs):
        raise ValueError("it is about another job")
    return runs


Statuses = Annotated[tuple[Status, ...], AfterValidator(_of_job)]


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


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _in_entry(value: str) -> str:
    """Check the path of a file within an entry; it is empty for an entry that is a file."""
    if value and (value.startswith("/") or {"", ".", ".."} & set(value.split("/")) or "\0" in value):
        raise ValueError(f"a file named {value[:200]!r} is not taken")
    return value


PathInEntry = Annotated[Unicode, Field(max_length=4000), AfterValidator(_in_entry)]


class KeptFileDict(TypedDict):
    size: Count
    sha256: Hash
    mtime_ns: Whole
    save: Count | None


class ManifestDict(TypedDict):
    entry: Place
    host: Name
    step: Count | None
    time: Moment
    size: Count
    files: Annotated[dict[PathInEntry, KeptFileDict], Field(min_length=1)]
    references: dict[PathInEntry, Count] | None
    version: Annotated[Unicode, Field(pattern="^[0-9a-f]{32}$")]
    serial: Count
    run: Name | None
    attempt: Count
    clock: Name


class UnknownDict(TypedDict):
    entry: Place
    host: Name
    step: Count | None
    time: Moment
    size: Count


# --- ranks ------------------------------------------------------------------------------------------------------------

_Entry = tuple[Count, Short, Whole, Flag, Number | Whole, Flag]
_Frame = tuple[Short, Whole, Short]
_Stack = Annotated[list[_Frame], Field(max_length=200)]
_Figure = Number | Whole
_Unanswered = tuple[Short, Short, Count]


class GroupDict(TypedDict):
    what: NotRequired[Short]
    ranks: NotRequired[Annotated[list[Small], Field(max_length=100_000)]]
    entries: Annotated[list[_Entry], Field(max_length=4000)]


class ThreadDict(TypedDict):
    name: NotRequired[Short]
    stack: _Stack


class ChildDict(TypedDict):
    pid: Count
    state: Short
    sleep_s: NotRequired[_Figure | None]
    still: NotRequired[Flag]
    polls: NotRequired[Flag]
    stack: _Stack


class LookDict(TypedDict):
    host: Annotated[Name, AfterValidator(own_name)]
    rank: Small
    local_rank: Small
    pid: Count
    state: Annotated[Unicode, Field(max_length=20)]
    now: NotRequired[_Figure]
    cpu: NotRequired[_Figure | None]
    below: NotRequired[_Figure | None]
    gpu: NotRequired[_Figure | None]
    gpu_mb: NotRequired[_Figure | None]
    bytes: NotRequired[Count | None]
    rss_mb: NotRequired[_Figure | None]
    swap_mb: NotRequired[_Figure | None]
    waits_in: NotRequired[Short]
    sleep_s: NotRequired[_Figure | None]
    output_age_s: NotRequired[_Figure | None]
    pause_s: NotRequired[_Figure | None]
    stack: NotRequired[_Stack | None]
    gil: NotRequired[Flag]
    spins: NotRequired[Flag]
    wants_cpu: NotRequired[Flag]
    still: NotRequired[Flag]
    polls: NotRequired[Flag]
    unseen: NotRequired[Count]
    ended_s: NotRequired[_Figure | None]
    moved: NotRequired[Flag]
    threads: NotRequired[Annotated[list[ThreadDict], Field(max_length=100)]]
    children: NotRequired[Annotated[list[ChildDict], Field(max_length=100)]]
    peers: NotRequired[dict[Short, Small]]
    unanswered: NotRequired[Annotated[list[_Unanswered], Field(max_length=100)]]
    groups: NotRequired[dict[Short, GroupDict] | None]
    dumped: NotRequired[Flag]
    missing: NotRequired[list[Short]]
