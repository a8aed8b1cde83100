"""The value that stands for a launch: job, hosts, code and secrets. Making a launch contacts no host."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ddpctl.code import CodeArchive, code_imports, pack
from ddpctl.errors import InventoryError, UsageError
from ddpctl.files.env_file import read_env_file
from ddpctl.files.program import inspect_script
from ddpctl.spec.imports import Imports
from ddpctl.spec.inventory import Host, Inventory, job_hosts, spare_hosts
from ddpctl.spec.job import JobSpec
from ddpctl.spec.notify import shown_target
from ddpctl.spec.origin import JobId
from ddpctl.spec.plan import CodeRef, Facts, Plan, RunIdentity
from ddpctl.spec.planning import make_plan
from ddpctl.spec.restart import Earlier, Settings, keys_of
from ddpctl.spec.script import ScriptFacts
from ddpctl.spec.self_spawning import processes_text, refuse_number, start_of


@dataclass(frozen=True)
class Launch:
    """A job on its hosts, as the command line and the files describe it. Every stage reads from here.

    ``job`` is ``None`` where hosts are checked or prepared without a job. A plan needs ``job`` and ``identity``.
    """

    inventory: Inventory
    job: JobSpec | None
    hosts: tuple[Host, ...]  # node rank order, the master first
    nproc: int | None = None  # processes per node, where the command line overrides the job
    identity: RunIdentity | None = None
    archive: CodeArchive | None = None
    script: ScriptFacts | None = None  # empty where the script is not on this machine
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    notify: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # resolved: the addresses are secrets
    own_checkpoints: bool = False  # save into a folder of the run, not of the job
    spares: int = 0  # count of spare hosts: the last of ``hosts``
    alone: bool = False  # refuse to start while another run of the job's name is live
    known_as: str | None = None  # the job's name in the inventory, where the run has another name
    settings: Settings | None = None  # of the run that this launch continues
    earlier: Earlier | None = None  # the run that this launch continues

    def named(self, name: str) -> Launch:
        """Return the launch under another name, which no other live run may have. Ports and checkpoints are its own."""
        assert self.job is not None
        return replace(self, job=self.job.model_copy(update={"name": name}), alone=True, known_as=self.job.name)

    @property
    def job_id(self) -> JobId:
        """The job's id; the launch must have a job."""
        assert self.job is not None
        return self.inventory.job_id(self.job.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts' names in node rank order."""
        return tuple(host.name for host in self.hosts)

    @property
    def managed(self) -> bool:
        """Whether ddpctl builds the environment."""
        return self.inventory.environment.mode == "managed"

    @cached_property
    def imports(self) -> Imports | None:
        """The imports of the job's script; ``None`` where the script is not on this machine."""
        return code_imports(self.archive, self.job) if self.job is not None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for a person before the start."""
        return self.archive.notes if self.archive is not None else ()

    @property
    def processes(self) -> str | None:
        """How the script starts the job's processes itself, in words; ``None`` where it does not."""
        return processes_text(self.job, self.script, len(self.hosts)) if self.job is not None else None

    def plan(self, facts: Facts | None = None) -> Plan:
        """Return the plan of the run; facts that are missing in ``facts`` stay open in it.

        Raises:
            UsageError: the job cannot be planned on these hosts.
        """
        assert self.job is not None
        assert self.identity is not None
        settings = self.settings or self._own_settings(self.job)
        archive = self.archive
        plan = make_plan(
            self.inventory,
            self.job,
            self.hosts,
            self.identity,
            facts=facts,
            code=CodeRef(archive.sha256, archive.size, archive.git_commit, archive.dirty) if archive else None,
            local_rank_arg=settings.local_rank_arg,
            start=settings.start,
            secret_names=sorted(self.secrets),
            notify=[shown_target(notifier) for notifier in self.notify],
            nproc=self.nproc,
            spares=self.spares,
        )
        plan = replace(plan, settings=settings, earlier=self.earlier)
        return plan.with_own_checkpoints() if self.own_checkpoints else plan

    def _own_settings(self, job: JobSpec) -> Settings:
        return Settings(
            job=self.known_as or job.name,
            keys=keys_of(job),
            hosts=self.names,
            nodes=len(self.hosts) - self.spares,
            nproc=self.nproc,
            local_rank_arg=self.script.local_rank_arg if self.script else None,
            start=self.script.start if self.script else None,
            secrets=tuple(sorted(self.secrets)),
            notified=bool(self.notify),
        )


def launch_of(
    inventory: Inventory, job: JobSpec, identity: RunIdentity, *, nodes: int | None = None, nproc: int | None = None
) -> Launch:
    """Return the launch of a job of the inventory.

    Raises:
        UsageError: too few hosts, no such script, an unreadable env_file, or an env_file without a webhook's address.
    """
    hosts = job_hosts(inventory, job, nodes)
    spares = spare_hosts(inventory, job, hosts)
    script = inspect_script(job)
    refuse_number(job, start_of(job, script.start if script else None), nproc)
    secrets = read_env_file(Path(job.env_file)) if job.env_file else {}
    return Launch(
        inventory=inventory,
        job=job,
        hosts=(*hosts, *spares),
        spares=len(spares),
        nproc=nproc,
        identity=identity,
        archive=pack_code(inventory, job),
        script=script,
        secrets=secrets,
        notify=notifiers_of(job, secrets),
    )


def notifiers_of(job: JobSpec, secrets: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """Return the job's notifiers with their addresses. Raises UsageError: an address is missing in ``secrets``."""
    found = []
    for index, notifier in enumerate(job.notify):
        try:
            found.append(notifier.resolved(secrets))
        except ValueError as error:
            hint = "write NAME=https://... into the file that env_file names"
            raise UsageError(f"jobs.{job.name}.notify[{index}].webhook: {error}", hint=hint) from None
    return tuple(found)


def launch_to_check(inventory: Inventory, job: JobSpec | None) -> Launch:
    """Return the launch that preflight checks: every host that the job may use, without a job every host.

    A missing script raises nothing here: a check reports it.
    """
    if job is None:
        return Launch(inventory, None, inventory.hosts)
    script = None
    with contextlib.suppress(InventoryError):
        script = inspect_script(job)
    return Launch(inventory, job, job_hosts(inventory, job, "all"), archive=pack_code(inventory, job), script=script)


def pack_code(inventory: Inventory, job: JobSpec) -> CodeArchive | None:
    """Pack the job's code without the env_file of any job: secrets are sent separately, to their own job only.

    The names of ``links`` stay here: on the nodes each of them is a link.
    """
    if job.code is None:
        return None
    secrets = [Path(any_job.env_file) for any_job in inventory.jobs.values() if any_job.env_file]
    return pack(Path(job.code), exclude=secrets, replaced=tuple(job.links))
