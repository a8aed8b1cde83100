"""Continues an ended run: its settings and attempts as its record holds them, and the hosts that take part. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ddpctl.errors import UsageError
from ddpctl.spec.bounds import Flag, Integer, Name, Plain, Short, Small
from ddpctl.spec.job import JobSpec
from ddpctl.spec.limits import MOST_EARLIER_ATTEMPTS
from ddpctl.spec.outcome import Attempt
from ddpctl.spec.script import Start

# Keys that depend on the starting machine or may be secret. Hosts and their number have fields of their own.
_NOT_RECORDED = frozenset({"name", "code", "env_file", "notify", "nodes"})


@dataclass(frozen=True)
class Settings:
    """The settings that a run was started with. Hosts' keys and the environment come from the inventory. No secrets.

    ``hosts``: in the order of node ranks, spares last. ``nodes``: the number of hosts in an attempt.
    """

    job: Name  # the name in the inventory; the run may have another name
    # The job's keys that differ from the defaults.
    keys: Annotated[Mapping[Short, Plain], Field(max_length=1000)] = field(repr=False)
    hosts: Annotated[tuple[Name, ...], Field(min_length=1, max_length=10_000)]
    nodes: Annotated[Integer, Field(ge=1, le=10_000)]
    nproc: Small | None = None
    local_rank_arg: Short | None = None
    start: Start | None = None  # None: the script is on the nodes only, so it was not read
    secrets: Annotated[tuple[Short, ...], Field(max_length=10_000)] = ()  # the names of secret variables
    notified: Flag = False  # whether the job has notifiers

    def as_job(self, name: str, code: str | None) -> JobSpec:
        """Return the job as it was recorded, for a run called ``name``.

        Raises:
            UsageError: this version of ddpctl does not know a recorded key or value.
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
        """Return the keys in which the inventory's job now differs from the recorded job."""
        now = keys_of(job)
        return sorted(key for key in {*now, *self.keys} if now.get(key) != self.keys.get(key))


def keys_of(job: JobSpec) -> dict[str, Any]:
    """Return the keys of a job that a record holds."""
    return job.model_dump(mode="json", exclude_defaults=True, exclude=set(_NOT_RECORDED))


@dataclass(frozen=True)
class Earlier:
    """The ended run that a new run continues, with its attempts (the oldest may be missing)."""

    run: Name
    attempts: Annotated[tuple[Attempt, ...], Field(min_length=1, max_length=2000)]

    @property
    def last(self) -> int:
        return self.attempts[-1].number

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "attempts": [attempt.to_json() for attempt in self.attempts]}


def recorded_attempts(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Return the newest attempts without tracebacks: a record must stay small, as it goes to every node repeatedly."""
    short = [
        replace(attempt, cause=replace(attempt.cause, traceback=None) if attempt.cause else None)
        for attempt in attempts
    ]
    return tuple(short[-MOST_EARLIER_ATTEMPTS:])


@dataclass(frozen=True)
class ChosenHosts:
    """The hosts of a continued run: ``hosts`` in the order of node ranks; the last ``spares`` of them are spares."""

    hosts: tuple[str, ...]
    spares: int

    @property
    def active(self) -> tuple[str, ...]:
        return self.hosts[: len(self.hosts) - self.spares]


def choose_hosts(settings: Settings, job: JobSpec, known: Sequence[str], usable: Collection[str]) -> ChosenHosts | None:
    """Choose the hosts of a continued run among the ``usable`` hosts; ``None``: there are too few.

    The hosts of the ended run come first. A job with spares may then use any other host of ``known``.
    """
    further = [host for host in known if host not in settings.hosts] if job.spares else []
    there = [host for host in (*settings.hosts, *further) if host in usable]
    if len(there) < least_hosts(settings, job):
        return None
    chosen = there[: settings.nodes + job.spares]
    return ChosenHosts(tuple(chosen), max(0, len(chosen) - settings.nodes))


def least_hosts(settings: Settings, job: JobSpec) -> int:
    """Return the lowest number of hosts that the job may run on."""
    return min(job.elastic.min_nodes, settings.nodes) if job.elastic else settings.nodes


def without_hosts(settings: Settings, hosts: Collection[str]) -> Settings:
    """Return the settings without ``hosts``, which must not be used again."""
    return replace(settings, hosts=tuple(host for host in settings.hosts if host not in hosts))
