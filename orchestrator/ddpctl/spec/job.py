"""A job of the inventory file: what runs, on which nodes, how it is launched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ddpctl.spec.values import (
    AsTuple,
    AutoCount,
    AutoPort,
    Env,
    Filled,
    LiteralTexts,
    Name,
    Paths,
    PathText,
    PositiveSeconds,
    Seconds,
    Strict,
    bad,
    says,
)
from ddpctl_worker.contract import STOP_GRACE_S

MAX_NODES = 4096
SILENCE_WARNING_S = 1800.0  # without an explicit timeouts.silence: a warning after this, never a kill
OFF = "off"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

Launcher = Literal["auto", "launch", "torchrun"]
LocalRankArg = Literal["auto", "none", "--local_rank", "--local-rank"]
RendezvousBackend = Literal["static", "c10d", "etcd-v2"]


def _module(value: Any) -> str:
    if not isinstance(value, str) or not _MODULE.fullmatch(value):
        raise bad("must be the dotted name of a Python module", "write pkg.train; a file goes to script:")
    return value


def _as_names(value: int | str | tuple[str, ...]) -> int | str | tuple[str, ...]:
    """One name or range stands for a list of one."""
    return (value,) if isinstance(value, str) and value != "all" else value


_Count = Annotated[int, Field(ge=1, le=MAX_NODES), says(f"must be a whole number from 1 to {MAX_NODES}")]
_Restarts = Annotated[int, Field(ge=0, le=1000), says("must be a whole number from 0 to 1000")]
Module = Annotated[str, BeforeValidator(_module)]
Nodes = Annotated[
    Annotated[int, Field(ge=1, le=MAX_NODES)] | Filled | Annotated[tuple[Filled, ...], AsTuple, Field(min_length=1)],
    AfterValidator(_as_names),
    says(f"must be all, a number from 1 to {MAX_NODES}, or names of hosts", "write [node0, 'node[2-3]']"),
]


class Elastic(Strict):
    """How many nodes the job may lose or gain, and how often it may be restarted."""

    min_nodes: _Count = Field(description="The fewest nodes that the job runs on.")
    max_nodes: _Count = Field(description="The most nodes that the job runs on.")
    max_restarts: _Restarts = Field(default=3, description="Restarts before the job counts as failed.")

    @model_validator(mode="after")
    def _ordered(self) -> Elastic:
        if self.max_nodes < self.min_nodes:
            raise bad("max_nodes is smaller than min_nodes")
        return self


class Requires(Strict):
    """What must be there before the job starts; preflight checks it."""

    data: Paths = Field(default=(), description="Files and folders that must be on every node.")
    free_disk_gb: Seconds | None = Field(default=None, description="Free disk space that every node must have, in GB.")


class Timeouts(Strict):
    """In seconds."""

    start: PositiveSeconds = Field(default=120.0, description="Until every rank has started, in seconds.")
    stop: Seconds = Field(default=STOP_GRACE_S, description="From SIGTERM to SIGKILL, in seconds.")
    leftover: Seconds = Field(
        default=10.0, description="For processes that outlive the launcher, such as an upload, before they are ended."
    )
    silence: PositiveSeconds | None = Field(
        default=None,
        description="Stop a job that prints nothing for this many seconds; null (the default): only warn.",
    )


class Doctor(Strict):
    """When a run counts as stalled."""

    stall: PositiveSeconds = Field(default=30.0, description="A run without progress for this many seconds stalls.")


@dataclass(frozen=True)
class _Off:
    """Adds the words for null to the JSON Schema. To a YAML 1.1 reader ``off`` is false: both mean the same here."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": [OFF, False]}, *handler(core)["anyOf"]]}


def _doctor(value: Any) -> Any:
    if value is False or value == OFF:
        return None
    if value is None or isinstance(value, (dict, Doctor)):
        return value
    raise bad("must be off, or a mapping with stall", "write off, or {stall: 30}")


OptionalDoctor = Annotated[Doctor | None, BeforeValidator(_doctor), _Off()]


class JobKeys(Strict):
    """The keys of one job in the file."""

    script: PathText | None = Field(default=None, description="The training script, relative to the code folder.")
    module: Module | None = Field(default=None, description="Instead of script: a module, run as python -m.")
    args: LiteralTexts = Field(default=(), description="Arguments of the script; quote what could be misread.")
    code: PathText | None = Field(
        default=".", description="Folder sent to the nodes, relative to this file; null: the code is already there."
    )
    workdir: PathText | None = Field(default=None, description="Where it runs on the node; default: the code folder.")
    nodes: Nodes = Field(default="all", description="all, a number, or names and ranges of hosts.")
    nproc_per_node: AutoCount = Field(default="auto", description="Processes a node runs; auto: the host's slots.")
    master: Name | None = Field(default=None, description="The host that gets node rank 0; default: the first one.")
    master_port: AutoPort = Field(default="auto", description="auto: a free port picked on the master node.")
    launcher: Launcher = Field(
        default="auto",
        description="launch: python -m torch.distributed.launch; torchrun: python -m torch.distributed.run; "
        "auto: what this torch has.",
    )
    local_rank_arg: LocalRankArg = Field(
        default="auto",
        description="How the script takes its local rank; auto: read from the script; none: environment.",
    )
    rendezvous: RendezvousBackend = Field(default="static", description="How the nodes find each other.")
    elastic: Elastic | None = Field(default=None, description="Let the number of nodes change while the job runs.")
    env: Env = Field(default={}, description="Environment of the job's processes.", repr=False)
    env_file: PathText | None = Field(
        default=None,
        description="NAME=value lines with secrets: they reach the process, never argv, logs, records.",
    )
    requires: Requires = Field(default=Requires(), description="What every node must have before the job starts.")
    outputs: Paths = Field(default=(), description="What ddpctl fetch brings back, relative to the workdir.")
    timeouts: Timeouts = Field(default=Timeouts(), description="Time limits in seconds.")
    doctor: OptionalDoctor = Field(
        default=Doctor(), description="How the nodes watch the ranks, for `ddpctl doctor`; off: not at all."
    )

    @model_validator(mode="after")
    def _one_program(self) -> JobKeys:
        if (self.script is None) == (self.module is None):
            what = "both script and module are set" if self.script else "neither script nor module is set"
            raise bad(what, "write exactly one of the two")
        return self


class JobSpec(JobKeys):
    """One job, complete. In a loaded inventory ``code`` and ``env_file`` are absolute paths of this machine."""

    name: Name

    @property
    def program(self) -> str:
        """The script or the module, for messages."""
        return self.script or self.module or ""
