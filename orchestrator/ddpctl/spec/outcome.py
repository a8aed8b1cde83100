"""How the nodes, the attempts and the end of a run are recorded: the causes of failures, and their JSON forms. Pure.

The answers of the nodes are validated into these values.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field

from ddpctl.spec.bounds import (
    Count,
    Digits,
    Figure,
    Flag,
    Moment,
    Name,
    NodeState,
    Number,
    Place,
    Short,
    Small,
    Text,
    Unicode,
    Whole,
)
from ddpctl.spec.metrics import Values
from ddpctl_worker.wire import contract

# A relative path; a bare name without a dot is a program that is not installed.
_MISSING = re.compile(r"No such file or directory: '(?P<path>(?![/~])[^']*[./][^']*)'")
_NO_DATA_SET = re.compile(r"Dataset not found or corrupted")  # torchvision's data sets, which do not name their folder
_NO_PARENT = re.compile(r"Parent directory (?P<folder>(?![/~])\S+) does not exist")  # torch.save


@dataclass(frozen=True)
class Cause:
    """A failure: the host and rank at fault, the reason, and the time. The cause of a run is its first failure."""

    host: Name
    reason: Annotated[Unicode, Field(pattern="^[a-z_]{1,40}$")]
    message: Short
    time: Moment
    rank: Small | None = None
    exit_code: Whole | None = None
    signal: Short | None = None
    traceback: Text | None = None
    peer: Name | None = None  # the second host of a lost link

    def to_json(self) -> dict[str, Any]:
        """Return the fields; ``peer`` only where it is set."""
        return {name: value for name, value in asdict(self).items() if name != "peer" or value is not None}


def find_missing_path(cause: Cause | None) -> str | None:
    """Return the relative path that the program did not find, from its working folder; ``None`` for other failures."""
    found = _MISSING.search(cause.message) if cause is not None else None
    return posixpath.normpath(found["path"]) if found is not None else None


def find_hint(cause: Cause | None, writer: str | None = None) -> str | None:
    """Return the next step after a failure by a missing relative path; ``None`` for any other failure.

    ``writer``: the earlier run of the job that wrote this path.
    """
    if cause is None:
        return None
    parent = _NO_PARENT.search(cause.message)
    if parent is not None:
        folder = parent["folder"]
        return f"`outputs: [{folder}]` in the job makes the folder before the start, and `ddpctl fetch` brings it back"
    missing = find_missing_path(cause)
    if missing is None:
        if not _NO_DATA_SET.search(cause.message):
            return None
        return f"{_NEW_FOLDER}; if the script reads ./data, {_link('data')}"
    if missing.startswith(".."):
        return f"{missing}: {_NEW_FOLDER}; give the script an absolute path of the node"
    first, slash, _ = missing.partition("/")
    if writer is None:
        return f"{missing}: {_NEW_FOLDER}; {_link(first)}"
    keep = (
        f"add `checkpoint: {{paths: [{first}]}}` to the job" if slash else "write it to a folder of `checkpoint.paths`"
    )
    return f"run {writer} wrote {missing}, but {_NEW_FOLDER}; to keep it from run to run, {keep}"


_NEW_FOLDER = "each run begins in a new folder that has only the code"


def _link(name: str) -> str:
    return f"add `links: {{{name}: /PATH/ON/THE/NODES}}` to the job (`ddpctl push --data DIR` sends a folder there)"


@dataclass(frozen=True)
class End:
    """The end of a run. It is recorded once all nodes have reported it, and stays valid when they cannot be reached."""

    state: NodeState
    ended: Short | None = None
    cause: Cause | None = None


@dataclass(frozen=True)
class ExcludedHost:
    """A host that a run must not use again."""

    host: Name
    why: Short


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, numbered from 1. ``set_aside``: the hosts that the next attempt excludes."""

    number: Annotated[Small, Field(alias="attempt")]
    hosts: Annotated[tuple[Name, ...], Field(max_length=10_000)]
    started: Moment | None = None
    ended: Moment | None = None
    cause: Cause | None = None
    set_aside: tuple[ExcludedHost, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.number,
            "hosts": list(self.hosts),
            "started": self.started,
            "ended": self.ended,
            "cause": self.cause.to_json() if self.cause else None,
            "set_aside": [asdict(excluded) for excluded in self.set_aside],
        }


@dataclass(frozen=True)
class AgreedRun:
    """A host's copy of the document that the agents of a run with restarts agree on; ``over``: the end of the run."""

    term: Count
    version: Count
    attempts: Annotated[tuple[Attempt, ...], Field(min_length=1, max_length=2000)]
    over: End | None
    set_aside: Mapping[Name, Short] = field(default_factory=dict)


@dataclass(frozen=True)
class RankOnHost:
    host: Name
    rank: Small


@dataclass(frozen=True)
class StuckRun:
    """Why a run is stuck. ``since``: the time of the last progress; ``time``: the time of the verdict."""

    verdict: Short
    suspects: tuple[RankOnHost, ...]
    since: Moment
    time: Moment


@dataclass(frozen=True)
class Straggler:
    """A rank for which all ranks wait again and again: by ``lag_ms``, in ``last_share`` of the steps."""

    host: Name
    rank: Small
    lag_ms: Figure
    last_share: Figure
    why: tuple[Short, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host, "rank": self.rank, "lag_ms": self.lag_ms, "last_share": self.last_share}


@dataclass(frozen=True)
class Strangers:
    """Connections to the ports of a run by programs outside the run: their addresses, and the most of one address."""

    count: Count
    addresses: Count
    most: Mapping[Short, Count]
    last: Moment


@dataclass(frozen=True)
class CheckpointLag:
    """How far the checkpoints with all of their copies are behind the saves of the ranks."""

    name: Place
    saved_s: Number
    kept_s: Number | None
    behind_s: Number | None
    late: Flag
    copies: Small


@dataclass(frozen=True)
class UnfinishedFile:
    """A checkpoint file that the end of the ranks has cut off: its path in the checkpoint folder, and its size."""

    path: Short
    bytes: Count


@dataclass(frozen=True)
class NodeStatus:
    """The part of a node in a run: the fields of its record. A node that does not answer has the state unreachable."""

    host: Name
    node_rank: Small
    state: NodeState
    pid: Count | None = None
    ranks: tuple[Small, ...] = ()
    exit_code: Whole | None = None
    heartbeat_age_s: Number | None = None
    attempt: Small = 1
    started: Short | None = None
    ended: Short | None = None
    cause: Cause | None = None
    candidates: tuple[Cause, ...] = ()  # the other possible causes in this node's record
    dropped_lines: Count = 0
    metrics: Mapping[Digits, Values] = field(default_factory=dict)  # rank -> its last values
    printed: Values = field(default_factory=dict)  # step, epoch and loss in its output, where no rank writes metrics
    note: Short | None = None  # why an answering host does not know its state, or which hosts an attempt waits for
    diagnosis: StuckRun | None = None  # why the run is stuck, as far as this node knows
    slow: tuple[Straggler, ...] = ()  # the stragglers of all nodes, as far as this node knows
    reported: Moment | None = None  # when the first node of the attempt decided on diagnosis and slow
    strangers: Strangers | None = None
    lag: CheckpointLag | None = None
    keeper_ended: Moment | None = None  # since when no process keeps the checkpoints, although the run went on
    unfinished: tuple[UnfinishedFile, ...] = ()
    agreed: AgreedRun | None = None

    def cut_off_from(self, host: str | None) -> bool:
        """Return whether this node itself was cut off: the run lost ``host``, and this node lost another host."""
        return self.cause is not None and self.cause.reason == contract.NODE_LOST and self.cause.host != host

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "node_rank": self.node_rank,
            "state": self.state,
            "pid": self.pid,
            "ranks": list(self.ranks),
            "exit_code": self.exit_code,
            "heartbeat_age_s": self.heartbeat_age_s,
            "attempt": self.attempt,
        }


@dataclass(frozen=True)
class Untracked:
    """Files that the script wrote into its working folder on a host and that no declared output covers.

    ``files``: their number; a lower bound if not ``whole``. ``largest``: names below ``folder``, with bytes. ``error``:
    why the files are not known. ``writer``: the newest earlier run of the job that wrote the path that this run missed.
    """

    host: Name
    folder: Short | None = ""
    files: Count = 0
    bytes: Count = 0
    largest: Annotated[tuple[tuple[Short, Count], ...], Field(max_length=10)] = ()
    whole: Flag = True
    error: Short | None = None
    writer: Name | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "writer"}
