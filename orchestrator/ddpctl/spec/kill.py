"""The outcomes of ``ddpctl kill`` and ``ddpctl checkpoint``. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.bounds import Count, Short
from ddpctl_worker.wire import contract


@dataclass(frozen=True)
class Survivor:
    """A process that a kill did not end."""

    pid: Count
    cmd: Short


@dataclass(frozen=True)
class StoppedNode:
    """The outcome of a kill on one node: signalled and forced (SIGKILL) processes, and the survivors."""

    host: str
    signalled: int = 0
    forced: int = 0
    survivors: tuple[Survivor, ...] = ()
    reachable: bool = True
    error: DdpctlError | None = None  # why this node gave no proof

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": [asdict(process) for process in self.survivors],
            "reachable": self.reachable,
        }


@dataclass(frozen=True)
class KillOutcome:
    """The outcome of a kill, with proof: each node without an error was scanned until two scans found no process."""

    job: str
    run: str
    state: str
    duration_s: float
    nodes: tuple[StoppedNode, ...]
    asked_to_save: bool = False
    saved: str | None = None  # the checkpoint that the ranks saved

    @property
    def survivors(self) -> tuple[tuple[str, int, str], ...]:
        return tuple((node.host, process.pid, process.cmd) for node in self.nodes for process in node.survivors)

    @property
    def errors(self) -> dict[str, DdpctlError]:
        """Return the nodes of the inventory that gave no proof, each with its error."""
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
    """A requested checkpoint: complete, and on ``hosts``."""

    job: str
    run: str
    name: str
    step: int | None
    size: int
    hosts: tuple[str, ...]
    duration_s: float

    def to_json(self) -> dict[str, Any]:
        return {"schema": contract.SCHEMA, **vars(self), "hosts": list(self.hosts)}
