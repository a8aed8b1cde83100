"""From a command line to what is to run: the job, its hosts, its code and its secrets. Nothing is contacted."""

from __future__ import annotations

import secrets as random_source
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ddpctl import files
from ddpctl.cli import session
from ddpctl.code import CodeArchive, code_imports, pack
from ddpctl.spec.inventory import Host, Inventory, job_hosts
from ddpctl.spec.job import JobSpec
from ddpctl.spec.plan import CodeRef, Facts, Identity, Plan
from ddpctl.spec.planning import make_plan
from ddpctl.spec.script import ScriptFacts
from ddpctl.stages.preflight import Options
from ddpctl.stages.up import Wanted


@dataclass(frozen=True)
class Order:
    """A job on its hosts, ready to be planned."""

    inventory: Inventory
    job: JobSpec
    hosts: tuple[Host, ...]
    identity: Identity
    archive: CodeArchive | None
    script: ScriptFacts | None
    nproc: int | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before it starts."""
        words = self.archive.notes if self.archive is not None else ()
        if self.job.elastic is not None and self.job.rendezvous == "static":
            words = (*words, "`elastic` is ignored with static rendezvous; use c10d or etcd-v2")
        return words

    def plan(self, facts: Facts | None = None) -> Plan:
        """The launch as a value, as far as ``facts`` go."""
        return make_plan(
            self.inventory,
            self.job,
            self.hosts,
            self.identity,
            facts=facts,
            code=code_ref(self.archive),
            local_rank_arg=self.script.local_rank_arg if self.script else None,
            secret_names=sorted(self.secrets),
            nproc=self.nproc,
        )

    def wanted(self, options: Options) -> Wanted:
        """What the stages need to bring it up."""
        return Wanted(
            inventory=self.inventory,
            job=self.job,
            hosts=self.hosts,
            archive=self.archive,
            plan=self.plan,
            secrets=self.secrets,
            options=options,
            imports=code_imports(self.archive, self.job),
            nproc=self.nproc,
        )


def make_order(inventory: Inventory, name: str | None, *, nodes: int | None = None, nproc: int | None = None) -> Order:
    """The order for one job of the inventory.

    Raises:
        UsageError: no such job, not that many hosts, no such script, an unreadable env_file.
    """
    job = inventory.job(name)
    hosts = job_hosts(inventory, job, nodes)
    script = files.inspect_script(job)
    archive = pack(Path(job.code), exclude=_not_for_nodes(job)) if job.code is not None else None
    return Order(
        inventory=inventory,
        job=job,
        hosts=hosts,
        identity=new_identity(),
        archive=archive,
        script=script,
        nproc=nproc,
        secrets=files.read_env_file(Path(job.env_file)) if job.env_file else {},
    )


def new_identity() -> Identity:
    """A fresh run: its id sorts by time and is unique without asking anybody."""
    now = datetime.now(timezone.utc)
    run = f"{now:%Y%m%dT%H%M%S}Z-{random_source.token_hex(3)}"
    return Identity(run, session.user_name(), socket.gethostname(), now.isoformat(timespec="seconds"))


def code_ref(archive: CodeArchive | None) -> CodeRef | None:
    """What the plan keeps of an archive."""
    if archive is None:
        return None
    return CodeRef(archive.sha256, archive.size, archive.git_commit, archive.dirty)


def _not_for_nodes(job: JobSpec) -> list[Path]:
    """The secrets travel on their own way, never inside the code."""
    return [Path(job.env_file)] if job.env_file else []


def remember(order: Order, plan: Plan, lock: Mapping[str, str] | None = None) -> None:
    """A hint for later commands on this machine: which file the run came from, its plan, and its locked packages."""
    data: dict[str, Any] = {"inventory": order.inventory.file, "plan": plan.to_json(), "lock": dict(lock or {})}
    try:
        files.save_run(order.job.name, order.identity.run, data)
    except OSError as error:
        session.warn(f"warning: could not record this run ({error}); pass `-i INVENTORY` to later commands")
