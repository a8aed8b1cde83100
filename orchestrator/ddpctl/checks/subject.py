"""From the inventory and a job to what the checks look at."""

from __future__ import annotations

from collections.abc import Sequence

from ddpctl.checks.base import Target, Want
from ddpctl.spec.fabric import is_literal
from ddpctl.spec.host import Host
from ddpctl.spec.imports import Imports
from ddpctl.spec.inventory import Environment
from ddpctl.spec.job import JobSpec


def targets(hosts: Sequence[Host], job: JobSpec | None, nproc: int | None = None) -> tuple[Target, ...]:
    """The hosts in node rank order, the master first."""
    return tuple(_target(host, rank, job, nproc) for rank, host in enumerate(hosts))


def _target(host: Host, node_rank: int, job: JobSpec | None, nproc: int | None) -> Target:
    wishes = (nproc, job.nproc_per_node if job else None, host.slots)
    return Target(
        name=host.name,
        address=host.address,
        python=host.python,
        base_dir=host.base_dir,
        nproc=next((wish for wish in wishes if isinstance(wish, int)), None),
        node_rank=node_rank,
        fabric_address=host.fabric_address,
        interface=host.interface,
        env={**host.env, **(job.env if job else {})},
        local=host.local,
    )


def want(environment: Environment, job: JobSpec | None, hosts: Sequence[Host], imports: Imports | None = None) -> Want:
    """What the job needs of its nodes (the first of ``hosts`` is the master); without a job what any job would."""
    managed = environment.mode == "managed"
    packages = () if managed else tuple(environment.packages)
    master = hosts[0].name
    names = tuple(sorted({h.fabric_address for h in hosts if h.fabric_address and not is_literal(h.fabric_address)}))
    if job is None:
        return Want(master=master, managed=managed, packages=packages, fabric_names=names)
    return Want(
        job=job.name,
        script=job.script if job.code is None else None,
        workdir=job.workdir if job.code is None else None,
        launcher=job.launcher,
        master=master,
        master_port=job.master_port if isinstance(job.master_port, int) else None,
        managed=managed,
        packages=packages,
        data=tuple(job.requires.data),
        free_disk_gb=job.requires.free_disk_gb,
        backend=backend_of(job.args),
        rendezvous=job.rendezvous,
        fabric_names=names,
        imports=imports,
    )


def backend_of(args: Sequence[str]) -> str | None:
    """The backend that a script's arguments name, as nearly all scripts call it; None: it chooses by itself."""
    found = None
    for index, argument in enumerate(args):
        name, _, value = argument.partition("=")
        if name.lstrip("-").replace("_", "-") in ("backend", "dist-backend") and name.startswith("--"):
            value = value or (args[index + 1] if index + 1 < len(args) else "")
            found = value if value in ("nccl", "gloo") else None
    return found
