"""What it takes to continue a run that has ended: its own settings, which its record holds, its attempts, and which
hosts take part. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from ddpctl.errors import UsageError
from ddpctl.spec.job import JobSpec
from ddpctl.spec.limits import MOST_EARLIER_ATTEMPTS
from ddpctl.spec.script import Start

# Of the machine that starts the run, or as secret as the secrets; hosts and their number have keys of their own.
_NOT_RECORDED = frozenset({"name", "code", "env_file", "notify", "nodes"})


@dataclass(frozen=True)
class Settings:
    """What a run was started with, beyond what the inventory says of hosts and environment. Holds no secret.

    ``hosts`` in node rank order, spares last; ``nodes`` of them an attempt has.
    """

    job: str  # the inventory's name for it; the run may have a name of its own
    keys: Mapping[str, Any] = field(repr=False)  # of the job, where they differ from the defaults
    hosts: tuple[str, ...]
    nodes: int
    nproc: int | None = None
    local_rank_arg: str | None = None
    start: Start | None = None  # None: the script lies on the nodes
    secrets: tuple[str, ...] = ()  # names of variables
    notified: bool = False  # whether the job has notifiers

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hosts": list(self.hosts), "secrets": list(self.secrets)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Settings:
        return Settings(**{**data, "hosts": tuple(data["hosts"]), "secrets": tuple(data["secrets"])})

    def as_job(self, name: str, code: str | None) -> JobSpec:
        """The job as it was, for a run called ``name``.

        Raises:
            UsageError: this ddpctl knows no such job.
        """
        try:
            return JobSpec.model_validate({**self.keys, "name": name, "code": code})
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in fault["loc"])
            what = f"the settings that {name} was started with cannot be used here: {where}: {fault['msg']}"
            raise UsageError(
                what, hint="another version of ddpctl recorded them: use that, or start a new run"
            ) from None

    def changed(self, job: JobSpec) -> list[str]:
        """The keys in which the inventory's job differs from this one by now."""
        now = keys_of(job)
        return sorted(key for key in {*now, *self.keys} if now.get(key) != self.keys.get(key))


def keys_of(job: JobSpec) -> dict[str, Any]:
    """What a record holds of a job."""
    return job.model_dump(mode="json", exclude_defaults=True, exclude=set(_NOT_RECORDED))


@dataclass(frozen=True)
class Earlier:
    """The ended run that another one continues, with the attempts it has had (the oldest may be left out)."""

    run: str
    attempts: tuple[Mapping[str, Any], ...]

    @property
    def last(self) -> int:
        return int(self.attempts[-1]["attempt"])

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "attempts": [dict(one) for one in self.attempts]}


def told(attempts: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Attempts as a record holds them: every node is told, with each change again."""
    short = [{**one, "cause": {**one["cause"], "traceback": None} if one["cause"] else None} for one in attempts]
    return tuple(short[-MOST_EARLIER_ATTEMPTS:])


@dataclass(frozen=True)
class Seats:
    """Who takes part: ``hosts`` in node rank order, of which the last ``spares`` only step in."""

    hosts: tuple[str, ...]
    spares: int

    @property
    def active(self) -> tuple[str, ...]:
        return self.hosts[: len(self.hosts) - self.spares]


def seats(settings: Settings, job: JobSpec, known: Sequence[str], usable: Collection[str]) -> Seats | None:
    """The run's own hosts first, then, of a job with spares, any other one of those ``known``; None: too few are
    ``usable``."""
    others = [host for host in known if host not in settings.hosts] if job.spares else []
    there = [host for host in (*settings.hosts, *others) if host in usable]
    if len(there) < least(settings, job):
        return None
    chosen = there[: settings.nodes + job.spares]
    return Seats(tuple(chosen), max(0, len(chosen) - settings.nodes))


def least(settings: Settings, job: JobSpec) -> int:
    """As few hosts as it may run on."""
    return min(job.elastic.min_nodes, settings.nodes) if job.elastic else settings.nodes


def without(settings: Settings, hosts: Collection[str]) -> Settings:
    """The same, where ``hosts`` are not to be used any more."""
    return replace(settings, hosts=tuple(host for host in settings.hosts if host not in hosts))
