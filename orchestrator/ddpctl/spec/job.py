"""A job of the inventory file: its program, its nodes, and its launch."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ddpctl.spec.limits import AFTER_S, MAX_NODES, MAX_NOTIFIERS
from ddpctl.spec.notify import Notifier
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
    make_fault,
    with_message,
)
from ddpctl_worker.wire.contract import CODE_DIR_TOKEN, STOP_GRACE_S

OFF = "off"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

Launcher = Literal["auto", "launch", "torchrun"]
LocalRankArg = Literal["auto", "none", "--local_rank", "--local-rank"]
RendezvousBackend = Literal["static", "c10d"]
# Signals that a program may handle, and that have no other meaning for Python, torch or the kernel. SIGINT is not in
# the list: Python turns it into KeyboardInterrupt in every program, so a rank that ends would look like a rank that
# saves.
SaveSignal = Literal["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGALRM"]


def _module(value: Any) -> str:
    if not isinstance(value, str) or not _MODULE.fullmatch(value):
        raise make_fault("must be the dotted name of a Python module", "write pkg.train; a file goes to script:")
    return value


def _inside(value: str) -> str:
    """Accept a path below the working folder, and return its shortest form."""
    path = posixpath.normpath(value)
    if path.startswith("/") or path == "." or ".." in path.split("/"):
        raise make_fault("must be a path below the working folder", "write saved_models")
    if any(part.startswith(".") for part in path.split("/")):
        raise make_fault("must not be hidden: names with a leading dot count as temporary", "choose another name")
    if posixpath.splitext(path)[1] and not value.endswith("/"):
        raise make_fault(
            "names a file, and only folders are kept",
            f"have the script save to a folder, and name that; if {path} is a folder: {path}/",
        )
    return path + "/" * value.endswith("/")  # of a folder with an ending


def _link_name(value: str) -> str:
    """Accept a name below the working folder, and return its shortest form."""
    name = posixpath.normpath(value)
    if name.startswith("/") or name == "." or ".." in name.split("/"):
        raise make_fault("must be a name below the working folder", "write data: /data/cifar10")
    return name


def _place(value: str) -> str:
    if not value.startswith(("/", "~/")):
        raise make_fault("must be an absolute path on the nodes", "write /data/cifar10, or ~/cifar10")
    return value


def _apart(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse equal paths, and a path inside another path."""
    folders = [f"{path.rstrip('/')}/" for path in paths]
    for outer in folders:
        if sum(inner.startswith(outer) for inner in folders) > 1:
            raise make_fault("one of the paths is another, or inside it", "write each of them once")
    return paths


def _as_names(value: int | str | tuple[str, ...]) -> int | str | tuple[str, ...]:
    return (value,) if isinstance(value, str) and value != "all" else value


_Count = Annotated[int, Field(ge=1, le=MAX_NODES), with_message(f"must be a whole number from 1 to {MAX_NODES}")]
_Restarts = Annotated[int, Field(ge=0, le=1000), with_message("must be a whole number from 0 to 1000")]
_Spares = Annotated[int, Field(ge=0, le=MAX_NODES), with_message(f"must be a whole number from 0 to {MAX_NODES}")]
Kept = Annotated[int, Field(ge=0, le=100_000), with_message("must be null or a whole number from 0 to 100000")]
_Replicas = Annotated[int, Field(ge=0, le=MAX_NODES), with_message(f"must be a whole number from 0 to {MAX_NODES}")]
Links = Annotated[
    Mapping[Annotated[PathText, AfterValidator(_link_name)], Annotated[PathText, AfterValidator(_place)]],
    AfterValidator(dict),
]
_Kept = Annotated[int, Field(ge=1, le=1000), with_message("must be a whole number from 1 to 1000")]
_PathsInside = Annotated[tuple[Annotated[PathText, AfterValidator(_inside)], ...], AsTuple, AfterValidator(_apart)]
Module = Annotated[str, BeforeValidator(_module)]
Nodes = Annotated[
    Annotated[int, Field(ge=1, le=MAX_NODES)] | Filled | Annotated[tuple[Filled, ...], AsTuple, Field(min_length=1)],
    AfterValidator(_as_names),
    with_message(f"must be all, a number from 1 to {MAX_NODES}, or names of hosts", "write [node0, 'node[2-3]']"),
]


class Elastic(Strict):
    """The number of nodes that a job may run on, and of restarts."""

    min_nodes: _Count = Field(description="The fewest nodes that the job runs on.")
    max_nodes: _Count = Field(description="The most nodes that the job runs on.")
    max_restarts: _Restarts = Field(default=3, description="Restarts before the job counts as failed.")

    @model_validator(mode="after")
    def _ordered(self) -> Elastic:
        if self.max_nodes < self.min_nodes:
            raise make_fault("max_nodes is smaller than min_nodes")
        return self


class Requires(Strict):
    """Requirements of a job, which preflight checks before the start."""

    data: Paths = Field(default=(), description="Files and folders that must be on every node.")
    free_disk_gb: Seconds | None = Field(default=None, description="Free disk space that every node must have, in GB.")


class Timeouts(Strict):
    """The deadlines of a job, in seconds."""

    start: PositiveSeconds = Field(default=120.0, description="Until every rank has started, in seconds.")
    stop: Seconds = Field(default=STOP_GRACE_S, description="From SIGTERM to SIGKILL, in seconds.")
    leftover: Seconds = Field(
        default=10.0, description="For processes that outlive the launcher, such as an upload, before they are ended."
    )
    after: PositiveSeconds = Field(default=AFTER_S, description="For the job's after, before it is ended.")
    silence: PositiveSeconds | None = Field(
        default=None,
        description="Stop a job that prints nothing for this many seconds; null (the default): only warn.",
    )


class Doctor(Strict):
    """The settings of the doctor: when a run counts as stalled."""

    stall: PositiveSeconds = Field(default=30.0, description="A run without progress for this many seconds stalls.")


class Checkpoint(Strict):
    """The checkpoints of a job: their folders, their copies, and the signal that asks for a checkpoint."""

    paths: _PathsInside = Field(
        default=(),
        description="Folders of the working folder that are kept from run to run. A name with an ending needs a slash.",
    )
    signal: SaveSignal = Field(default="SIGUSR1", description="Tells a rank to save a checkpoint now.")
    timeout: PositiveSeconds = Field(default=120.0, description="Until it has been saved, in seconds.")
    replicas: _Replicas = Field(default=1, description="How many other hosts get a copy of each checkpoint.")
    keep: _Kept = Field(default=3, description="How many numbered checkpoints are kept; older ones are removed.")


@dataclass(frozen=True)
class _Off:
    """Adds ``off`` to the JSON Schema. A YAML 1.1 reader takes ``off`` as false, so both are accepted."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": [OFF, False]}, *handler(core)["anyOf"]]}


def _doctor(value: Any) -> Any:
    if value is False or value == OFF:
        return None
    if value is None or isinstance(value, (dict, Doctor)):
        return value
    raise make_fault("must be off, or a mapping with stall", "write off, or {stall: 30}")


OptionalDoctor = Annotated[Doctor | None, BeforeValidator(_doctor), _Off()]


class JobKeys(Strict):
    """The keys of a job in the file."""

    script: PathText | None = Field(default=None, description="The training script, relative to the code folder.")
    module: Module | None = Field(default=None, description="Instead of script: a module, run as python -m.")
    args: LiteralTexts = Field(default=(), description="Arguments of the script; quote what could be misread.")
    code: PathText | None = Field(
        default=".", description="Folder sent to the nodes, relative to this file; null: the code is already there."
    )
    workdir: PathText | None = Field(default=None, description="Where it runs on the node; default: the code folder.")
    nodes: Nodes = Field(default="all", description="all, a number, or names and ranges of hosts.")
    nproc_per_node: AutoCount = Field(default="auto", description="Processes a node runs; auto: the host's slots.")
    master: Name | None = Field(
        default=None,
        description="The host that gets node rank 0; default: the first host.",
    )
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
    outputs: Paths = Field(
        default=(), description="What ddpctl fetch brings back, relative to the workdir: folders are made there."
    )
    before: Filled | None = Field(
        default=None,
        description="Shell text that runs on every node before the launcher, in its shell: module load cuda.",
    )
    after: Filled | None = Field(
        default=None,
        description="Shell text that runs on every node after the last rank, with DDPCTL_STATE set: copies, uploads.",
    )
    links: Links = Field(
        default={}, description="Names in the working folder that point to places of the node: {data: /data/cifar10}."
    )
    timeouts: Timeouts = Field(default=Timeouts(), description="Time limits in seconds.")
    restarts: _Restarts = Field(default=0, description="Attempts after the first, which the nodes start by themselves.")
    spares: _Spares = Field(default=0, description="Hosts beyond nodes that replace lost hosts.")
    keep_runs: Kept | None = Field(
        default=None,
        description="How many ended runs stay on the nodes when a new run starts, the newest first; null: all runs.",
    )
    doctor: OptionalDoctor = Field(
        default=Doctor(), description="How the nodes watch the ranks, for `ddpctl doctor`; off: not at all."
    )
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="The folders, copies and signal of checkpoints.")
    notify: Annotated[tuple[Notifier, ...], AsTuple, Field(max_length=MAX_NOTIFIERS)] = Field(
        default=(), description="Notifiers for when a run ends or restarts: {command: [...]} or {webhook: URL}."
    )

    @model_validator(mode="after")
    def _restartable(self) -> JobKeys:
        if self.rendezvous != "static" and (self.restarts or self.spares):
            raise make_fault("restarts and spares need static rendezvous", "with c10d: elastic.max_restarts")
        if self.spares and not self.most_restarts:
            raise make_fault("spares is set, and restarts is not", "write restarts: 3, or leave spares out")
        return self

    @property
    def most_restarts(self) -> int:
        """Return how many attempts the nodes may start after the first; with c10d 0, because torch restarts itself."""
        if self.rendezvous != "static":
            return 0
        return self.restarts or (self.elastic.max_restarts if self.elastic else 0)

    @model_validator(mode="after")
    def _one_program(self) -> JobKeys:
        if (self.script is None) == (self.module is None):
            what = "both script and module are set" if self.script else "neither script nor module is set"
            raise make_fault(what, "write exactly one of the two")
        return self

    @model_validator(mode="after")
    def _links_in_sent_code(self) -> JobKeys:
        """Refuse links outside sent code: they are made in the run's copy of the code alone."""
        elsewhere = self.workdir is not None and not self.workdir.startswith(CODE_DIR_TOKEN)
        if self.checkpoint.paths and (self.code is None or elsewhere):
            raise make_fault(
                "checkpoint.paths needs code that ddpctl sends, and no other workdir",
                "remove it, and save to $DDPCTL_CHECKPOINT_DIR",
            )
        if self.links and (self.code is None or elsewhere):
            raise make_fault(
                "links needs code that ddpctl sends, and no other workdir",
                "remove it, and make the links on the nodes, for example in before",
            )
        _apart((*self.checkpoint.paths, *self.links))
        return self


class JobEntry(JobKeys):
    """A job as the file has it: it may extend another job. ``files/extends.py`` makes it complete."""

    extends: Name | None = Field(
        default=None, description="Another job of this file: every key that is not given here is as there."
    )
    args_extra: LiteralTexts = Field(default=(), description="Added to args, own or inherited.")


class JobSpec(JobKeys):
    """A complete job. In a loaded inventory ``code`` and ``env_file`` are absolute paths on this machine."""

    name: Name

    @property
    def program(self) -> str:
        """Return the script or the module, for messages."""
        return self.script or self.module or ""
