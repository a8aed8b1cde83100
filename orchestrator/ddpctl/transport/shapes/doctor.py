"""A node's view of its ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import NotRequired, TypedDict

from ddpctl.transport.shapes.runs import SlowDict
from ddpctl.transport.shapes.words import Count, Name, NodeState, Number, Short, Small, Whole, as_tuple, own_name

_Entry = Annotated[tuple[Count, Short, Whole, bool, Number | Whole, bool], BeforeValidator(as_tuple)]
_Frame = Annotated[tuple[Short, Whole, Short], BeforeValidator(as_tuple)]
_Stack = Annotated[list[_Frame], Field(max_length=200)]
_Figure = Number | Whole
_Unanswered = Annotated[tuple[Short, Short, Count], BeforeValidator(as_tuple)]


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
    still: NotRequired[bool]
    polls: NotRequired[bool]
    stack: _Stack


class LookDict(TypedDict):
    host: Annotated[Name, AfterValidator(own_name)]
    rank: Small
    local_rank: Small
    pid: Count
    state: Annotated[str, Field(max_length=20)]
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
    gil: NotRequired[bool]
    spins: NotRequired[bool]
    wants_cpu: NotRequired[bool]
    still: NotRequired[bool]
    polls: NotRequired[bool]
    unseen: NotRequired[Count]
    ended_s: NotRequired[_Figure | None]
    moved: NotRequired[bool]
    threads: NotRequired[Annotated[list[ThreadDict], Field(max_length=100)]]
    children: NotRequired[Annotated[list[ChildDict], Field(max_length=100)]]
    peers: NotRequired[dict[Short, Small]]
    unanswered: NotRequired[Annotated[list[_Unanswered], Field(max_length=100)]]
    groups: NotRequired[dict[Short, GroupDict] | None]
    dumped: NotRequired[bool]
    missing: NotRequired[list[Short]]


class ConsultedDict(TypedDict):
    state: NodeState
    ended: bool
    looks: Annotated[list[LookDict], Field(max_length=10_000)]
    slow: list[SlowDict]
