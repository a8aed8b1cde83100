"""The shapes of the orders between the processes of a run. At run time each is a plain ``dict``, sent as JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, TypedDict

from ddpctl_worker.record.runrecord import RunRecord


class NotifyOrder(TypedDict):
    """For the notifiers of a job. ``to``: the notifiers, with their secret parts."""

    to: List[Dict[str, Any]]
    env: Dict[str, str]
    cwd: str
    umask: int


class _RunOrder(TypedDict):
    top: str
    attempt: Optional[int]
    run: RunRecord
    argv: List[str]
    cwd: str
    env: Dict[str, str]
    own_names: List[str]
    cookie: str
    shim: bool
    refused: Optional[str]
    umask: int
    dump_stems: Sequence[str]
    gang_key: Optional[str]
    notify: Optional[NotifyOrder]
    keeper: Optional[Dict[str, Any]]
    py_spy: Optional[str]
    slots: Dict[str, Any]
    outlive: bool


class RunOrder(_RunOrder, total=False):
    """For the guardian and the supervisor of a run, or of an attempt.

    - ``top``: the run's folder on this host. ``attempt``: ``None`` for a run without restarts.
    - ``own_names``: the environment variables that the job sets.
    - ``shim``: ranks write to pipes of their own. ``dump_stems``: where torch writes its dumps.
    - ``refused``: why the run cannot be started.
    - ``keeper``: the keeper's order; ``None`` without checkpoints.
    - ``outlive``: the run must not start if its login would end it.
    - ``slots``: the claims that the processes inherit (``Hold.to_json``).
    - ``lease``: the end of the lease, and the pipes through which the agent renews it. Only with an agent.
    """

    lease: Optional[Dict[str, Any]]
