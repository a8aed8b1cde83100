"""How the nodes, the attempts and the end of a run are recorded: the causes of failures, and their JSON forms. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ddpctl.spec.metrics import Values
from ddpctl_worker.wire import contract

# A relative path; a bare name without a dot is a program that is not installed.
_MISSING = re.compile(r"No such file or directory: '(?P<path>(?![/~])[^']*[./][^']*)'")


@dataclass(frozen=True)
class Cause:
    """A failure: the host and rank at fault, the reason, and the time. The cause of a run is its first failure."""

    host: str
    reason: str
    message: str
    time: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    traceback: str | None = None
    peer: str | None = None  # the second host of a lost link

    def to_json(self) -> dict[str, Any]:
        """Return the fields; ``peer`` only where it is set."""
        return {name: value for name, value in asdict(self).items() if name != "peer" or value is not None}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cause:
        return Cause(
            host=str(data.get("host", "?")),
            reason=str(data.get("reason", contract.EXITED)),
            message=str(data.get("message", "")),
            time=str(data.get("time", "")),
            rank=data.get("rank"),
            exit_code=data.get("exit_code"),
            signal=data.get("signal"),
            traceback=data.get("traceback"),
            peer=data.get("peer"),
        )


def find_hint(cause: Cause | None) -> str | None:
    """Return the next step after a failure by a missing relative path; ``None`` for any other failure."""
    missing = _MISSING.search(cause.message) if cause is not None else None
    if missing is None:
        return None
    return (
        f"{missing['path']}: each run begins in a new folder that has only the code; `checkpoint.paths` keeps the "
        "files of earlier runs there, and `links` adds a folder of the node"
    )


@dataclass(frozen=True)
class NodeStatus:
    """The part of a node in a run: the fields of its record. A node that does not answer has the state unreachable."""

    host: str
    node_rank: int
    state: str
    pid: int | None = None
    ranks: tuple[int, ...] = ()
    exit_code: int | None = None
    heartbeat_age_s: float | None = None
    attempt: int = 1
    started: str | None = None
    ended: str | None = None
    cause: Cause | None = None
    candidates: tuple[Cause, ...] = ()  # the other possible causes in this node's record
    dropped_lines: int = 0
    metrics: Mapping[str, Values] = field(default_factory=dict)  # rank -> its last values
    printed: Values = field(default_factory=dict)  # step, epoch and loss in its output, where no rank writes metrics
    note: str | None = None  # why an answering host does not know its state, or which hosts an attempt waits for
    diagnosis: Mapping[str, Any] | None = None  # why the run is stuck, as far as this node knows
    slow: tuple[Mapping[str, Any], ...] = ()  # the stragglers of all nodes, as far as this node knows
    reported: str | None = None  # when the first node of the attempt decided on diagnosis and slow
    strangers: Mapping[str, Any] | None = None  # connections to its ports by programs outside the run
    lag: Mapping[str, Any] | None = None  # how far its checkpoints are behind the saves of its ranks
    agreed: Mapping[str, Any] | None = None  # its copy of the document that the agents of a run with restarts agree on

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NodeStatus:
        names = {each.name for each in fields(NodeStatus)}
        values = {name: value for name, value in data.items() if name in names and value is not None}
        values["ranks"] = tuple(data.get("ranks") or ())
        values["slow"] = tuple(data.get("slow") or ())
        values["attempt"] = data.get("attempt") or 1
        if cause := data.get("cause"):
            values["cause"] = Cause.from_json(cause)
        values["candidates"] = tuple(Cause.from_json(each) for each in data.get("candidates") or ())
        return NodeStatus(**values)

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
class End:
    """The end of a run. It is recorded once all nodes have reported it, and stays valid when they cannot be reached."""

    state: str
    ended: str | None = None
    cause: Cause | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> End:
        cause = data.get("cause")
        return End(str(data["state"]), data.get("ended"), Cause.from_json(cause) if cause else None)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, numbered from 1. ``set_aside``: the hosts that the next attempt excludes, each with why."""

    number: int
    hosts: tuple[str, ...]
    started: str | None = None
    ended: str | None = None
    cause: Cause | None = None
    set_aside: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Attempt:
        cause = Cause.from_json(data["cause"]) if data.get("cause") else None
        excluded = tuple((str(each["host"]), str(each["why"])) for each in data.get("set_aside") or ())
        return Attempt(data["attempt"], tuple(data["hosts"]), data.get("started"), data.get("ended"), cause, excluded)

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.number,
            "hosts": list(self.hosts),
            "started": self.started,
            "ended": self.ended,
            "cause": self.cause.to_json() if self.cause else None,
            "set_aside": [{"host": host, "why": why} for host, why in self.set_aside],
        }


@dataclass(frozen=True)
class Untracked:
    """Files that the script wrote into its working folder on a host and that no declared output covers.

    ``files``: their number; a lower bound if not ``whole``. ``largest``: names below ``folder``, with bytes. ``error``:
    why the files are not known.
    """

    host: str
    folder: str = ""
    files: int = 0
    bytes: int = 0
    largest: tuple[tuple[str, int], ...] = ()
    whole: bool = True
    error: str | None = None
