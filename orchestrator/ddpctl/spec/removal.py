"""The outcome of removing a run from its nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl_worker.wire import contract


@dataclass(frozen=True)
class RemovedPart:
    """The outcome on one host; ``removed`` is False if it had nothing of the run, or failed to remove it."""

    host: str
    removed: bool = False
    error: DdpctlError | None = None


@dataclass(frozen=True)
class RemovedRun:
    """The outcome for an ended run on all of its hosts."""

    job: str
    run: str
    hosts: tuple[RemovedPart, ...]

    def raise_for_errors(self) -> None:
        """Raise an error unless the run is gone everywhere.

        Raises:
            HostsFailed: a host may still have a part of the run.
        """
        errors = {part.host: part.error for part in self.hosts if part.error is not None}
        if errors:
            count = f"{len(errors)} of {len(self.hosts)} hosts"
            raise HostsFailed(f"{self.run} was not removed from {count}; `ddpctl rm {self.run}` tries again", errors)

    def to_json(self) -> dict[str, Any]:
        parts = [
            {"host": part.host, "removed": part.removed, "error": str(part.error) if part.error else None}
            for part in self.hosts
        ]
        return {"job": self.job, "run": self.run, "hosts": parts}


def removal_document(runs: Sequence[RemovedRun]) -> dict[str, Any]:
    """Return the document of ``ddpctl rm --json``."""
    return {"schema": contract.SCHEMA, "runs": [run.to_json() for run in runs]}
