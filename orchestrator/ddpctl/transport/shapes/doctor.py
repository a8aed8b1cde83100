"""A node's view of its ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import Count, Flag, Name, NodeState, Number, Short, Small, Unicode, Whole
from ddpctl.spec.outcome import Straggler
from ddpctl.transport.shapes.adapters import own_name

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


class ConsultedDict(TypedDict):
    state: NodeState
    ended: Flag
    looks: Annotated[list[LookDict], Field(max_length=10_000)]
    slow: list[Straggler]
