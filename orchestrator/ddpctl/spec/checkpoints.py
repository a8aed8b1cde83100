"""The checkpoints of a job, put together from what its hosts have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.origin import JobId
from ddpctl_worker import contract
from ddpctl_worker.checkpoint.attempts import BEFORE_ANY
from ddpctl_worker.checkpoint.choice import latest, partial
from ddpctl_worker.checkpoint.order import When, moment
from ddpctl_worker.checkpoint.unite import Saved, SavedPart, newest_first, unite

UNKNOWN = "it is being written, or its writer was killed"


def lag_line(lag: Mapping[str, Any]) -> str:
    """``newest checkpoint with all of its copies: state.pt, saved 8 s ago``, and whether the saves are far ahead."""
    what = "newest checkpoint with all of its copies" if lag["copies"] else "newest complete checkpoint"
    if lag["kept_s"] is None:
        newest = f"{what}: none so far"
        why = "a file that is rewritten in place never comes to rest: save under another name, then rename it"
    else:
        newest = f"{what}: {lag['name']}, saved {lag['kept_s']:.0f} s ago"
        why = "`ddpctl checkpoints` says what is missing"
    if not lag["late"]:
        return newest
    saves = f"the ranks last saved {lag['saved_s']:.0f} s ago, and have been ahead for {lag['behind_s']:.0f} s"
    return f"checkpoints fall behind. {newest}; {saves}; {why}"


@dataclass(frozen=True)
class JobCheckpoints:
    """What the hosts that answered have, newest first; ``errors`` are the others'."""

    job_id: JobId
    saved: tuple[Saved, ...]
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)
    unsettled: tuple[tuple[str, str, str], ...] = ()  # what a host has no manifest of yet: name, host, time
    lag: Mapping[str, Any] | None = None  # of the newest run, as ``RunStatus.lag`` has it
    uncopied: tuple[str, ...] = ()  # names of those that should have a copy on another host by now, and have none

    @property
    def job(self) -> str:
        return self.job_id.job

    @property
    def resumed(self) -> tuple[Saved, ...]:
        """Those that a start of the job resumes from, newest first: the last complete one of each series, and all
        files of its save."""
        complete = newest_first(one for one in self.saved if one.complete)
        partly = partial(complete[::-1])
        complete = [one for one in complete if one.entry not in partly]
        wanted = latest([one.entry for one in reversed(complete)])
        return tuple(one for one in complete if one.entry in wanted)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "project": self.job_id.project,
            "checkpoints": [
                {
                    "name": one.entry,
                    "step": one.step,
                    "time": one.time,
                    "size": one.size,
                    "hosts": list(one.hosts),
                    "complete": one.complete,
                    "missing": list(one.missing),
                }
                for one in self.saved
            ],
            "lag": dict(self.lag) if self.lag else None,
        }


def job_checkpoints(
    job: JobId, answers: Mapping[str, Mapping[str, Any]], errors: Mapping[str, DdpctlError]
) -> JobCheckpoints:
    """``answers``: host -> its manifests and what it has none of.

    What a host wrote itself and has no manifest of is told too, unless another host's part is known.
    """
    saved = unite({host: answer["manifests"] for host, answer in answers.items()})
    known = {one.entry for one in saved}
    others: dict[str, list[Mapping[str, Any]]] = {}
    for host, answer in answers.items():
        for one in answer["unknown"]:
            if one["host"] == host and one["entry"] not in known:
                others.setdefault(one["entry"], []).append(one)
    for one in map(_unknown, others.values()):  # its place is for the eye alone
        older = (at for at, other in enumerate(saved) if moment(other.time) < moment(one.time))
        saved.insert(next(older, len(saved)), one)
    unsettled = [
        (one["entry"], host, one["time"])
        for host, answer in answers.items()
        for one in answer["unknown"]
        if one["host"] == host
    ]
    return JobCheckpoints(job, tuple(saved), errors, tuple(unsettled))


def _unknown(parts: list[Mapping[str, Any]]) -> Saved:
    newest = max(parts, key=lambda one: moment(one["time"]))
    held = tuple(SavedPart({**one, "clock": one["host"]}, (one["host"],), (one["host"],)) for one in parts)
    size = sum(one["size"] for one in parts)
    entry, step, time = newest["entry"], newest["step"], newest["time"]
    return Saved(entry, step, time, size, held, When(BEFORE_ANY, newest["host"], moment(time), entry), (UNKNOWN,))
