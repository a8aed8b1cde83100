"""The outcome of ``ddpctl doctor``: the position of every rank in its program, and the verdict over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.outcome import Straggler
from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.verdict import Diagnosis
from ddpctl_worker.wire import contract


@dataclass(frozen=True)
class DoctorReport:
    """One look at a run. ``looks`` has a dictionary for each rank, from the nodes (the worker's doctor/look.py)."""

    job: str
    run: str
    state: str
    diagnosis: Diagnosis
    looks: Sequence[Mapping[str, Any]] = ()
    slow: Sequence[Straggler] = ()
    ended: bool = False  # the looks are from the moment before the end of the run
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)  # host -> why it did not answer

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "run": self.run,
            "verdict": self.diagnosis.verdict,
            "suspects": self.diagnosis.suspects,
            "ranks": [rank_json(look) for look in sorted(self.looks, key=lambda look: int(look["rank"]))],
            "groups": self.diagnosis.groups,
            "slow": [slow.to_json() for slow in self.slow],
        }


def rank_json(look: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of one rank.

    ``cpu`` and ``gpu`` are percent of a core and of a GPU. ``stack`` has the frames of the user's code, the innermost
    frame first.
    """
    stack = look.get("stack")
    return {
        "host": look["host"],
        "rank": look["rank"],
        "pid": look["pid"],
        "state": look["state"],
        "cpu": look.get("cpu"),
        "gpu": look.get("gpu"),
        "rss_mb": look.get("rss_mb"),
        "last_output_age_s": look.get("output_age_s"),
        "stack": [_frame(frame) for frame in frames.is_own_code(stack)] if stack else None,
        "collective": _collective(look),
    }


def _frame(frame: Sequence[Any]) -> dict[str, Any]:
    return {"file": frame[0], "line": frame[1], "function": frame[2]}


def _collective(look: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the newest collective that the rank has entered."""
    entries = flight.from_json(dict(look.get("groups") or {}))
    if not entries:
        return None
    last = entries[-1]
    return {"group": last.group, "seq": last.seq, "op": last.op, "state": "done" if last.done else "waiting"}
