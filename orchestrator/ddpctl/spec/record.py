"""The record of a run that each of its nodes keeps (run.json), as far as ddpctl reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ddpctl.spec.bounds import Count, Name, Real, Short, Small, Unicode
from ddpctl.spec.origin import Origin
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.plan import CodeRef
from ddpctl.spec.restart import Earlier, Settings


@dataclass(frozen=True)
class RecordedTimeouts:
    stop: Annotated[Real, Field(ge=0, le=1e6)] | None = None


@dataclass(frozen=True)
class RecordedDoctor:
    stall: Annotated[Real, Field(gt=0, le=1e9)]


@dataclass(frozen=True)
class RecordedRestart:
    """The settings of the agents. ddpctl reads only whether there are any."""


@dataclass(frozen=True)
class RecordedSaving:
    signal: Annotated[Unicode, Field(pattern="^SIG[A-Z0-9]{1,20}$")]
    timeout: Annotated[Real, Field(gt=0, le=1e9)]
    replicas: Count = 0


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run. Any part may be missing: the record of an older ddpctl, or a damaged record."""

    project: Name
    origin: Origin | None = None
    hosts: Annotated[tuple[Name, ...], Field(max_length=10_000)] | None = None
    world_size: Small | None = None
    min_nodes: Small | None = None
    timeouts: RecordedTimeouts | None = None
    doctor: RecordedDoctor | None = None
    restart: RecordedRestart | None = None
    checkpoint: RecordedSaving | None = None
    code: CodeRef | None = None
    settings: Settings | None = None
    continues: Earlier | None = None


@dataclass(frozen=True)
class RecordedLaunch:
    """The launch of a node's ranks."""

    argv: Annotated[tuple[Short, ...], Field(max_length=10_000)] | None = None
    torch: Short | None = None
    environment: Short | None = None


@dataclass(frozen=True, kw_only=True)
class NodeReport(NodeStatus):
    """A node's part in a run as the node reports it, with the run and its record."""

    run: Name
    job: Name
    cluster: Name
    record: RecordedRun
