"""A run on all its nodes, as ``status`` shows it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

from ddpctl.spec.command import display, hide_secrets
from ddpctl.spec.fold import group_by
from ddpctl.spec.limits import SAVE_S
from ddpctl.spec.metrics import job_metrics
from ddpctl.spec.origin import JobId, Origin
from ddpctl.spec.outcome import CheckpointLag, End, NodeStatus, Straggler, StuckRun, Untracked, find_hint
from ddpctl.spec.record import RecordedRun
from ddpctl.spec.verdict import RunVerdict, judge_run
from ddpctl_worker.wire import contract

LOST_FOR_RUN = "it takes part in this run no more; the next `ddpctl restart` or `ddpctl up` uses it again"
SAVE_SIGNAL = "SIGUSR1"  # if a damaged record does not have the job's own signal


@dataclass(frozen=True)
class RunStatus:
    """A run on all its nodes, spares and lost hosts included; ``verdict.active_nodes`` has those of the newest attempt.

    ``record`` is the run.json that most nodes report. ``remembered_end`` is the end that this machine recorded earlier.
    ``silent_hosts`` did not answer the question which run a name means. ``untracked`` and ``writer``, the earlier run
    that wrote the path that this run missed, are empty unless the command asked for them.
    """

    job: str
    run: str
    cluster: str
    nodes: tuple[NodeStatus, ...]
    record: RecordedRun = field(default_factory=partial(RecordedRun, project=""))
    remembered_end: End | None = None
    silent_hosts: tuple[str, ...] = ()
    untracked: tuple[Untracked, ...] = ()
    writer: str | None = None

    @cached_property
    def verdict(self) -> RunVerdict:
        """Return the judgement on the run as a whole."""
        return judge_run(self.nodes, self.record, self.remembered_end)

    @property
    def project(self) -> str:
        return self.record.project

    @property
    def job_id(self) -> JobId:
        return JobId(self.cluster, self.project, self.job)

    @property
    def origin(self) -> Origin | None:
        """Return where the run was started; ``None``: the record is damaged."""
        return self.record.origin

    @property
    def user(self) -> str | None:
        """Return the account that started the run."""
        return self.origin.account if self.origin else None

    @property
    def continues(self) -> str | None:
        """Return the id of the run that this run continues."""
        return self.record.continues.run if self.record.continues else None

    @property
    def program_line(self) -> str:
        """Return the script or module and its arguments, with secrets hidden; empty if the record does not name it."""
        keys = self.record.settings.keys if self.record.settings else {}
        program = keys.get("script") or keys.get("module")
        return display([str(program), *hide_secrets([str(word) for word in keys.get("args") or ()])]) if program else ""

    @property
    def metrics(self) -> dict[str, float]:
        """Return the last values that the job measured of itself, or printed if it writes no metrics."""
        measured = [values for node in self.nodes for values in node.metrics.values()]
        printed = [] if measured else [node.printed for node in self.nodes if node.printed][:1]
        return job_metrics(measured or printed)

    @property
    def metrics_are_printed(self) -> bool:
        """Return whether ``metrics`` was read from the output."""
        return bool(self.metrics) and not any(node.metrics for node in self.nodes)

    @property
    def hint(self) -> str | None:
        """Return the next step after the failure, if it is known."""
        return find_hint(self.verdict.cause, self.writer)

    @property
    def diagnosis(self) -> StuckRun | None:
        """Return why the run is stuck, or was stuck when it ended; ``None``: not stuck."""
        if self.verdict.state == contract.SUCCEEDED:
            return None
        return self._doctors_report.diagnosis if self._doctors_report else None

    @property
    def slow(self) -> list[Straggler]:
        return sorted(self._doctors_report.slow, key=lambda slow: slow.rank) if self._doctors_report else []

    @property
    def lag(self) -> CheckpointLag | None:
        """Return how far the fully copied checkpoints are behind the saves, on the host where the gap is widest.

        ``None``: no rank has saved in this attempt.
        """
        lags = [node.lag for node in self.verdict.active_nodes if node.lag is not None]
        return max(lags, key=lambda lag: (lag.behind_s or 0.0, lag.kept_s or 0.0), default=None)

    @property
    def without_keeper(self) -> list[tuple[str, str]]:
        """Return the hosts whose keeper of checkpoints has ended before the run, and the times of these ends."""
        return [(node.host, node.keeper_ended) for node in self.verdict.active_nodes if node.keeper_ended]

    @property
    def unfinished(self) -> list[dict[str, Any]]:
        """Return the checkpoint files that the end of the ranks has cut off: host, path, bytes."""
        return [{"host": node.host, **asdict(file)} for node in self.verdict.active_nodes for file in node.unfinished]

    @property
    def strangers(self) -> list[dict[str, Any]]:
        """Return the hosts with connections by strangers: host, count, addresses, most, last."""
        return [{"host": node.host, **asdict(node.strangers)} for node in self.nodes if node.strangers]

    @property
    def _doctors_report(self) -> NodeStatus | None:
        """Return the node whose ``diagnosis`` and ``slow`` count.

        That is the node with node rank 0, which decides on both. If it does not answer, it is the node that has its
        newest report.
        """
        reporting = [node for node in self.verdict.active_nodes if node.reported]
        return max(reporting, key=lambda node: (node is self.verdict.active_nodes[0], node.reported), default=None)

    @property
    def grace(self) -> float:
        """Return the default seconds from SIGTERM to SIGKILL in a kill: the job's ``timeouts.stop``."""
        seconds = self.record.timeouts.stop if self.record.timeouts else None
        return contract.STOP_GRACE_S if seconds is None else seconds

    @property
    def save_signal(self) -> str:
        """Return the signal that asks a rank for a checkpoint: the job's ``checkpoint.signal``."""
        return self.record.checkpoint.signal if self.record.checkpoint else SAVE_SIGNAL

    @property
    def save_timeout(self) -> float:
        """Return the seconds that a requested checkpoint may take: the job's ``checkpoint.timeout``."""
        return self.record.checkpoint.timeout if self.record.checkpoint else SAVE_S

    @property
    def copies(self) -> bool:
        """Return whether another host gets a copy of each checkpoint."""
        saving = self.record.checkpoint
        return saving is not None and saving.replicas > 0 and len(self.verdict.active_nodes) > 1

    @property
    def world_size(self) -> int:
        if len(self.verdict.own_attempts) > 1:
            return sum(len(node.ranks) for node in self.verdict.active_nodes)
        return self.record.world_size or sum(len(node.ranks) for node in self.nodes)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    def hosts_of(self, ranks: Collection[int]) -> list[str]:
        """Return the hosts that may have run any of these ranks; an empty list if the run has no such rank.

        - With restarts or torch's elastic agent: all hosts, since a rank may move to another host.
        - Else the hosts that report such a rank. If no host reports a rank, also the unreachable hosts, which report no
          ranks at all: that rank may be theirs.
        """
        reported = {rank for node in self.nodes for rank in node.ranks}
        most = self.record.world_size  # None: torch's elastic agent decides
        wanted = set(ranks) if most is None else {rank for rank in ranks if rank < most} | reported.intersection(ranks)
        if wanted and (self.record.restart is not None or self.record.min_nodes is not None):
            return list(self.hosts)
        missing = not wanted <= reported
        return [node.host for node in self.nodes if wanted & set(node.ranks) or (missing and not node.ranks)]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `up --json` and `status --json`, with the keys of docs/json.md."""
        cause = self.verdict.cause
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "run": self.run,
            "cluster": self.cluster,
            "project": self.project,
            "state": self.verdict.state,
            "started": self.verdict.started,
            "ended": self.verdict.ended,
            "world_size": self.world_size,
            "nodes": [node.to_json() for node in self.verdict.active_nodes],
            "cause": cause.to_json() if cause else None,
            "candidates": [candidate.to_json() for candidate in self.verdict.candidates],
            "metrics": self.metrics,
            "metrics_are_printed": self.metrics_are_printed,
            "slow": [slow.to_json() for slow in self.slow],
            "strangers": self.strangers,
            "checkpoints": asdict(self.lag) if self.lag else None,
            "without_keeper": [{"host": host, "since": since} for host, since in self.without_keeper],
            "unfinished": self.unfinished,
            "diagnosis": asdict(self.diagnosis) if self.diagnosis else None,
            "attempt": self.verdict.attempts[-1].number,
            "attempts": [attempt.to_json() for attempt in self.verdict.attempts],
            "continues": self.continues,
            "untracked": [files.to_json() for files in self.untracked],
        }


def differing_arguments(runs: Sequence[RunStatus]) -> dict[str, str]:
    """Return, by run id, the arguments that not all of these runs of a program have; secrets are hidden."""
    found: dict[str, str] = {}
    for alike in group_by(lambda run: (run.project, run.program_line.partition(" ")[0]), runs).values():
        options = {run.run: _options(run.program_line) for run in alike}
        common = set.intersection(*(set(own) for own in options.values()))
        for run, own in options.items():
            if differing := [option for option in own if option not in common]:
                found[run] = " ".join(differing)
    return found


def _options(program_line: str) -> list[str]:
    """Return the arguments, an option together with its value: ``--lr 0.3``."""
    options: list[str] = []
    for word in shlex.split(program_line)[1:]:
        last = options[-1] if options else ""
        if last.startswith("-") and not set(last) & set(" =") and not word.startswith("-"):
            options[-1] = f"{last} {shlex.quote(word)}"
        else:
            options.append(shlex.quote(word))
    return options
