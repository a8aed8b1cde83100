"""The content of ``ddpctl report``, as one value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from ddpctl.spec.command import REDACTED, hide_secrets
from ddpctl.spec.curves import Curve
from ddpctl.spec.gpuuse import GpuUse
from ddpctl.spec.metrics import Values
from ddpctl.spec.network import Network
from ddpctl.spec.outcome import Attempt
from ddpctl.spec.record import RecordedLaunch
from ddpctl.spec.status import RunStatus
from ddpctl.spec.times import duration_seconds, elapsed
from ddpctl.spec.values import plural
from ddpctl_worker.rules.unite import Saved
from ddpctl_worker.wire import contract

_SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)


@dataclass(frozen=True)
class RunReport:
    """A run as its nodes have recorded it at the time ``made``.

    ``launches``: host -> the launch as recorded there. ``missing``: the hosts whose records
    are not in the report, each with why.
    """

    run: RunStatus
    made: datetime
    launches: Mapping[str, RecordedLaunch] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    network: Network | None = None
    checkpoints: tuple[Saved, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def duration_s(self) -> float | None:
        """Return the seconds from the start to the end, or to the report while the run lasts."""
        took = elapsed(self.run.verdict.started, self.run.verdict.ended or self.made.isoformat())
        return None if took is None else max(0.0, took)  # the clocks of two hosts may differ

    @property
    def command(self) -> Sequence[str]:
        """Return the launcher's command line without secrets, from the first node that recorded it."""
        return hide_secrets(next((launch.argv for launch in self.launches.values() if launch.argv), ()))

    @property
    def settings(self) -> dict[str, Any]:
        """Return the job's keys that differ from the defaults.

        A report may be sent to other people. So the value of a variable or argument is hidden if its name suggests a
        secret.
        """
        keys = dict(self.run.record.settings.keys) if self.run.record.settings else {}
        if isinstance(env := keys.get("env"), Mapping):
            keys["env"] = {name: REDACTED if _SECRET.search(name) else value for name, value in env.items()}
        if isinstance(args := keys.get("args"), Sequence):
            keys["args"] = hide_secrets([str(word) for word in args])
        return keys

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """Return the failed attempts that another attempt followed."""
        return tuple(attempt for attempt in self.run.verdict.attempts[:-1] if attempt.cause is not None)

    @property
    def headline(self) -> str:
        """Return the verdict: ``succeeded after 12 min, in attempt 3 after 2 failures``."""
        run, took, number = self.run, self.duration_s, self.run.verdict.attempts[-1].number
        word = "after" if run.verdict.terminal else "for"
        text = run.verdict.state if took is None else f"{run.verdict.state} {word} {duration_seconds(took)}"
        text += f", in attempt {number}" if number > 1 else ""
        return f"{text} after {plural(len(self.failures), 'failure')}" if self.failures else text

    @property
    def ranks(self) -> list[tuple[str, int, Values]]:
        """Return the last values of every rank that wrote metrics: host, rank, values."""
        found = [
            (node.host, int(rank), values)
            for node in self.run.verdict.active_nodes
            for rank, values in node.metrics.items()
            if rank
        ]
        return sorted(found, key=lambda row: row[1])

    def to_json(self) -> dict[str, Any]:
        run = self.run
        cause = run.verdict.cause
        return {
            "schema": contract.SCHEMA,
            "job": run.job,
            "run": run.run,
            "cluster": run.cluster,
            "project": run.project,
            "folder": run.origin.folder if run.origin else None,
            "state": run.verdict.state,
            "verdict": self.headline,
            "made": self.made.isoformat(timespec="seconds"),
            "started": run.verdict.started,
            "ended": run.verdict.ended,
            "duration_s": self.duration_s,
            "user": run.user,
            "controller": run.origin.machine if run.origin else None,
            "world_size": run.world_size,
            "code": run.record.code.to_json() if run.record.code else None,
            "command": list(self.command),
            "settings": self.settings,
            "nodes": [self._node(node.host) | node.to_json() for node in run.nodes],
            "continues": run.continues,
            "attempts": [attempt.to_json() for attempt in run.verdict.attempts],
            "cause": cause.to_json() if cause else None,
            "candidates": [candidate.to_json() for candidate in run.verdict.candidates],
            "diagnosis": asdict(run.diagnosis) if run.diagnosis else None,
            "slow": [slow.to_json() for slow in run.slow],
            "metrics": [curve.to_json() for curve in self.curves],
            "ranks": [{"host": host, "rank": rank, "metrics": dict(values)} for host, rank, values in self.ranks],
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "network": self.network.to_json() if self.network else None,
            "checkpoints": [
                {
                    "name": saved.entry,
                    "step": saved.step,
                    "time": saved.time,
                    "size": saved.size,
                    "complete": saved.complete,
                }
                for saved in self.checkpoints
            ],
            "missing": [{"host": host, "error": error} for host, error in self.missing.items()],
        }

    def _node(self, host: str) -> dict[str, Any]:
        launch = self.launches.get(host, RecordedLaunch())
        return {"torch": launch.torch, "environment": launch.environment}
