"""What a kill and a save did to a run, host by host. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl_worker.wire import contract


@dataclass(frozen=True)
class StoppedNode:
    """What was done on one node to end a run, and what is left of it."""

    host: str
    signalled: int = 0
    forced: int = 0
    survivors: tuple[tuple[int, str], ...] = ()
    reachable: bool = True
    error: DdpctlError | None = None  # why there is no proof of this node

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": [{"pid": pid, "cmd": cmd} for pid, cmd in self.survivors],
            "reachable": self.reachable,
        }


@dataclass(frozen=True)
class KillOutcome:
    """The end of a run, with proof: every node without an error was scanned until nothing was found twice."""

    job: str
    run: str
    state: str
    duration_s: float
    nodes: tuple[StoppedNode, ...]
    asked_to_save: bool = False
    saved: str | None = None  # the checkpoint that came of that

    @property
    def survivors(self) -> tuple[tuple[str, int, str], ...]:
        return tuple((node.host, pid, cmd) for node in self.nodes for pid, cmd in node.survivors)

    @property
    def errors(self) -> dict[str, DdpctlError]:
        """The nodes that gave no proof although they are in the inventory, each with its error."""
        return {node.host: node.error for node in self.nodes if node.error is not None}

    @property
    def unreachable(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes if not node.reachable)

    def to_json(self) -> dict[str, Any]:
        document = {**vars(self), "nodes": [node.to_json() for node in self.nodes]}
        if not document.pop("asked_to_save"):
            del document["saved"]
        return {"schema": contract.SCHEMA, **document}


@dataclass(frozen=True)
class SavedOutcome:
    """The checkpoint that the ranks were asked for: complete, and on ``hosts``."""

    job: str
    run: str
    name: str
    step: int | None
    size: int
    hosts: tuple[str, ...]
    duration_s: float

    def to_json(self) -> dict[str, Any]:
        return {"schema": contract.SCHEMA, **vars(self), "hosts": list(self.hosts)}
