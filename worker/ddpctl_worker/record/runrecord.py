"""The shape of run.json, the immutable record of a run on its host. The controller makes it (``Plan.record``).

At run time a record is a plain ``dict``; the shapes are for the static type check. The record of a run that started has
every key of REQUIRED, because the start verb refuses a record without it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict, cast

from ddpctl_worker.machine import fs
from ddpctl_worker.record.paths import RunPaths


class RunTimeouts(TypedDict):
    """Deadlines of the job, in seconds. ``silence``: without output, ``None`` if output does not matter."""

    start: float
    stop: float
    leftover: float
    after: float
    silence: Optional[float]
    silence_enforced: bool


class GangSettings(TypedDict):
    """The addresses at which the hosts of a run watch each other. ``bind_addr``: of this host."""

    hub_host: str
    hub_addr: str
    port: int
    bind_addr: str


class RestartSettings(TypedDict):
    """The rules of further attempts.

    - ``restarts``: the number of the last attempt, less 1.
    - ``nodes``, ``least``: the hosts of the first attempt, and the fewest hosts of an attempt.
    - ``hosts``: host, address and nproc of every host, spares included.
    - ``first``: the entry of the first attempt in the list of attempts.
    """

    restarts: int
    nodes: int
    least: int
    hosts: List[Dict[str, Any]]
    first: Dict[str, Any]


class CodeSettings(TypedDict):
    """The code archive that was pushed to this host."""

    hash: str
    size: int
    git_commit: Optional[str]
    dirty: Optional[bool]


class _Required(TypedDict):
    run: str
    serial: int
    attempt: int
    job: str
    cluster: str
    project: str
    host: str
    hosts: List[str]
    node_rank: int
    nnodes: int
    nproc: int
    ranks: List[int]
    rendezvous: str
    outputs: List[str]
    timeouts: RunTimeouts


REQUIRED = tuple(_Required.__annotations__)  # the keys


class RunRecord(_Required, total=False):
    """run.json. The record of an attempt has ``host_map`` too: ``HOST:NPROC`` of its hosts, joined by commas."""

    schema: int
    launcher: str
    min_nodes: Optional[int]
    master_addr: str
    master_port: int
    world_size: int
    host_map: str
    code: Optional[CodeSettings]
    before: Optional[str]
    after: Optional[str]
    links: Dict[str, str]
    doctor: Optional[Dict[str, float]]
    restarts: int
    spares: List[str]
    keep_runs: Optional[int]
    notify: List[Dict[str, Any]]
    checkpoint: Dict[str, Any]
    slots: Dict[str, Optional[int]]
    argv: List[str]
    cwd: Optional[str]
    origin: Dict[str, Any]
    created: str
    torch: Optional[str]
    environment: Optional[str]
    gang: Optional[GangSettings]
    restart: Optional[RestartSettings]
    settings: Optional[Dict[str, Any]]
    continues: Optional[Dict[str, Any]]


def read_run(paths: RunPaths) -> Optional[RunRecord]:
    """Return the record of a run or of an attempt; ``None`` if there is none.

    Raises:
        WorkerError: CORRUPT or UNSAFE_PATH, as ``fs.read_json``.
        OSError: the record cannot be read.
    """
    return cast(Optional[RunRecord], fs.read_json(paths.run))


def require_restart(run: RunRecord) -> RestartSettings:
    """Return the rules of a run with restarts. A run without restarts has none: the caller has asked before."""
    settings = run["restart"]
    assert settings is not None
    return settings
