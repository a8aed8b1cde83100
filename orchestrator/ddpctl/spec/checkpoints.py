"""The checkpoints of a job, united from the manifests of its hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from ddpctl.errors import DdpctlError
from ddpctl.spec.origin import JobId
from ddpctl.spec.outcome import CheckpointLag
from ddpctl_worker.rules.attempts import BEFORE_ANY
from ddpctl_worker.rules.choice import latest, partial
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.order import When, moment_of
from ddpctl_worker.rules.unite import Saved, SavedPart, newest_first, unite
from ddpctl_worker.wire import contract

UNKNOWN = "it is being written, or its writer was killed"


def lag_line(lag: CheckpointLag) -> str:
    """Return the line about checkpoint lag: ``newest checkpoint with all of its copies: state.pt, saved 8 s ago``.

    If the saves are far ahead, the line warns and says how far.
    """
    what = "newest checkpoint with all of its copies" if lag.copies else "newest complete checkpoint"
    if lag.kept_s is None:
        newest = f"{what}: none so far"
        why = "a file that is rewritten in place never comes to rest: save under another name, then rename it"
    else:
        newest = f"{what}: {lag.name}, saved {lag.kept_s:.0f} s ago"
        why = "`ddpctl checkpoints` says what is missing"
    if not lag.late:
        return newest
    saves = f"the ranks last saved {lag.saved_s:.0f} s ago, and have been ahead for {lag.behind_s or 0.0:.0f} s"
    return f"checkpoints fall behind. {newest}; {saves}; {why}"


@dataclass(frozen=True)
class JobCheckpoints:
    """The checkpoints of the hosts that answered, the newest first. ``errors``: the hosts that did not, with why."""

    job_id: JobId
    saved: tuple[Saved, ...]
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)
    unsettled: tuple[tuple[str, str, str], ...] = ()  # files without a manifest so far: name, host, time
    lag: CheckpointLag | None = None  # ``RunStatus.lag`` of the newest run
    uncopied: tuple[str, ...] = ()  # names of checkpoints whose copy on another host is overdue

    @property
    def job(self) -> str:
        return self.job_id.job

    @property
    def resumed(self) -> tuple[Saved, ...]:
        """Return the checkpoints that a start of the job resumes from, the newest first.

        These are the last complete checkpoint of each series, and all files of its save.
        """
        complete = newest_first(saved for saved in self.saved if saved.complete)
        partly = partial(complete[::-1])
        complete = [saved for saved in complete if saved.entry not in partly]
        wanted = latest([saved.entry for saved in reversed(complete)])
        return tuple(saved for saved in complete if saved.entry in wanted)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "project": self.job_id.project,
            "checkpoints": [
                {
                    "name": saved.entry,
                    "step": saved.step,
                    "time": saved.time,
                    "size": saved.size,
                    "hosts": list(saved.hosts),
                    "complete": saved.complete,
                    "missing": list(saved.missing),
                }
                for saved in self.saved
            ],
            "lag": asdict(self.lag) if self.lag else None,
        }


def job_checkpoints(
    job: JobId, answers: Mapping[str, Mapping[str, Any]], errors: Mapping[str, DdpctlError]
) -> JobCheckpoints:
    """Unite the answers of the hosts. ``answers``: host -> its manifests, and ``unknown``: files without a manifest.

    A file without a manifest counts if the answering host wrote it itself. It is listed as an incomplete checkpoint,
    unless a host has a manifest of that checkpoint.
    """
    saved = unite({host: answer["manifests"] for host, answer in answers.items()})
    entries = {checkpoint.entry for checkpoint in saved}
    own = [(host, part) for host, answer in answers.items() for part in answer["unknown"] if part["host"] == host]
    unknown: dict[str, list[Mapping[str, Any]]] = {}
    for _, part in own:
        if part["entry"] not in entries:
            unknown.setdefault(part["entry"], []).append(part)
    for checkpoint in map(_unknown, unknown.values()):  # its place in the list decides nothing
        older = (at for at, other in enumerate(saved) if moment_of(other.time) < moment_of(checkpoint.time))
        saved.insert(next(older, len(saved)), checkpoint)
    unsettled = [(part["entry"], host, part["time"]) for host, part in own]
    return JobCheckpoints(job, tuple(saved), errors, tuple(unsettled))


def _unknown(parts: list[Mapping[str, Any]]) -> Saved:
    newest = max(parts, key=lambda part: moment_of(part["time"]))
    held = tuple(
        SavedPart(cast(Manifest, {**part, "clock": part["host"]}), (part["host"],), (part["host"],)) for part in parts
    )
    size = sum(part["size"] for part in parts)
    entry, step, time = newest["entry"], newest["step"], newest["time"]
    return Saved(entry, step, time, size, held, When(BEFORE_ANY, newest["host"], moment_of(time), entry), (UNKNOWN,))
