"""The inventory: the hosts, the environment and the jobs of a cluster, as a frozen value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ddpctl.errors import UsageError
from ddpctl.spec.host import Host, HostEntry, HostKeys, expand_hosts
from ddpctl.spec.job import JobEntry, JobKeys, JobSpec
from ddpctl.spec.limits import MOST_VALID_NAMES
from ddpctl.spec.origin import JobId, as_name
from ddpctl.spec.ranges import RangeFault, expand
from ddpctl.spec.values import (
    NAME_PATTERN,
    AsTuple,
    Fault,
    Filled,
    KeyPattern,
    Name,
    PathText,
    Strict,
    Words,
    make_fault,
    plural,
    with_message,
)

_PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the entry of ``words`` that is most similar to ``word``; None: no entry is similar."""
    valid = list(words)
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.6)
    if not close and len(word) > 2:
        close = [name for name in valid if name.startswith(word)] or [name for name in valid if word in name]
    return close[0] if close else None


def suggestion(word: str, words: Iterable[str]) -> str | None:
    """Return the hint for an unknown name: the most similar valid name, or the first names; None: no valid names."""
    valid = list(words)
    close = nearest(word, valid)
    if close is not None:
        return f"did you mean {close}?"
    if not valid:
        return None
    more = f", ... ({len(valid)} in all)" if len(valid) > MOST_VALID_NAMES else ""
    return f"valid: {', '.join(valid[:MOST_VALID_NAMES])}{more}"


# Other tools' names for keys of the inventory -> the hint.
_SLOTS = "did you mean slots? It is how many processes the host runs; default: one for each GPU"
_NPROC = "did you mean nproc_per_node? It is how many processes each node runs; default: the host's slots"
_HOST_KEYS = {
    **dict.fromkeys(("gpus", "num_gpus", "gpu_count", "nproc_per_node"), _SLOTS),
    **dict.fromkeys(("hostname", "host", "ip"), "did you mean address? It is where SSH goes; default: the name"),
    **dict.fromkeys(("key", "ssh_key", "key_file"), "did you mean identity_file?"),
    **dict.fromkeys(("proxy_jump", "proxyjump", "bastion"), "did you mean jump?"),
    "username": "did you mean user?",
}
_JOB_KEYS = {
    **dict.fromkeys(("gpus", "num_gpus", "gpus_per_node", "slots"), _NPROC),
    **dict.fromkeys(("nnodes", "num_nodes", "hosts"), "did you mean nodes?"),
    **dict.fromkeys(("command", "entrypoint"), "did you mean script? It is a Python file; its arguments go to args"),
    "max_restarts": "did you mean restarts?",
}


def meant_key(word: str, *models: type[Strict]) -> str | None:
    """Return the hint for a key that no model of ``models`` has."""
    hints: dict[str, str] = {}
    for model in models:
        hints |= _HOST_KEYS if issubclass(model, HostKeys) else _JOB_KEYS if issubclass(model, JobKeys) else {}
    return hints.get(word.lower()) or suggestion(word, sorted({key for model in models for key in model.model_fields}))


Mode = Literal["existing", "managed"]
Backend = Annotated[
    str,
    Field(pattern=r"^(auto|cpu|xpu|cu\d{2,4}|rocm\d+(\.\d+)*)$"),
    with_message("must be auto, cpu, or a build such as cu126, rocm6.3 or xpu"),
]


def _requirement(value: str) -> str:
    """Accept a requirement of PEP 508."""
    from packaging.requirements import InvalidRequirement, Requirement  # here, because few inventories need them

    try:
        Requirement(value)
    except InvalidRequirement as error:
        raise make_fault(f"is not a requirement: {str(error).splitlines()[0]}", _requirement_hint(value)) from None
    return value


def _requirement_hint(value: str) -> str:
    name, equals, version = value.partition("=")
    if equals and name[-1:] not in "<>!~" and version.strip()[:1].isdigit():
        return f"write {name.strip()}=={version.strip()}"
    return "write for instance torch==2.13.0 or torch>=2.4,<3"


Requirements = Annotated[tuple[Annotated[Filled, AfterValidator(_requirement)], ...], AsTuple]


class Environment(Strict):
    """The python packages of the nodes. An index address may hold a password, so it never shows in a repr."""

    mode: Mode = Field(
        default="existing", description="existing: each host's python, checked only; managed: ddpctl builds it."
    )
    packages: Requirements = Field(default=(), description="Requirement strings, for instance torch==2.13.0.")
    requirements: PathText | None = Field(
        default=None, description="Instead of packages: a requirements file or a pylock.toml, relative to this file."
    )
    torch_backend: Backend = Field(
        default="auto", description="auto (what every driver here supports), cpu, cu126, ..."
    )
    build: bool = Field(default=True, description="true: build packages that have no wheel, once; false: refuse them.")
    project: PathText | None = Field(
        default=None, description="A folder with a pyproject.toml: the job's own package, installed too."
    )
    index_url: Filled | None = Field(default=None, description="Package index, passed to the resolver.", repr=False)
    extra_index_urls: Words = Field(default=(), description="Further package indexes.", repr=False)
    find_links: Words = Field(default=(), description="Folders and pages with wheels.", repr=False)

    @model_validator(mode="after")
    def _one_source(self) -> Environment:
        if self.packages and self.requirements:
            raise make_fault("both packages and requirements are set", "write one of the two")
        if self.mode == "managed" and not (self.packages or self.requirements or self.project):
            raise make_fault("mode managed, but no packages", "add packages: [torch] or requirements: FILE")
        if self.mode == "existing" and self.project:
            raise make_fault("project is set, but nothing is installed in mode existing", "write mode: managed")
        if self.project and self.locked:
            raise make_fault("requirements is a lock, and project cannot add to one", "put the project into the lock")
        return self

    @property
    def locked(self) -> bool:
        """Return whether ``requirements`` names a lock, by the file names of PEP 751."""
        return bool(self.requirements and _PYLOCK.fullmatch(self.requirements.rpartition("/")[2]))


def _host_entry(value: Any) -> Any:
    """Turn the short form, a bare name, into the long form."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, (Mapping, HostEntry)):
        raise make_fault("must be a host's name or a mapping with a name", "quote it if it is a name")
    return value


def _not_empty(entries: tuple[HostEntry, ...]) -> tuple[HostEntry, ...]:
    if not entries:
        raise make_fault("is empty", "add at least one host")
    return entries


class _OrName:
    """Adds the short form to the JSON Schema."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        name = HostEntry.model_json_schema()["properties"]["name"]
        return {"anyOf": [name, handler(core)]}


Entry = Annotated[HostEntry, BeforeValidator(_host_entry), _OrName()]
# Not Field(min_length=1): pydantic counts valid items only, so it calls a list with a single invalid item empty.
Entries = Annotated[tuple[Entry, ...], AsTuple, AfterValidator(_not_empty), Field(json_schema_extra={"minItems": 1})]
Jobs = Annotated[Mapping[Name, JobEntry], KeyPattern(NAME_PATTERN)]


class InventoryFile(Strict):
    """The file as it is written, before ranges are expanded and defaults are merged."""

    cluster: Name = Field(default="default", description="Names the cluster in records and output.")
    project: Name | None = Field(
        default=None,
        description="Keeps its jobs apart from those of other projects; default: the name of this file's folder.",
    )
    ssh_config: PathText | None = Field(default=None, description="As for `ssh -F`; default: the files that ssh reads.")
    known_hosts: PathText | None = Field(default=None, description="Known host keys; default: the files of ssh_config.")
    defaults: HostKeys = Field(default=HostKeys(), description="Defaults for all hosts: any key of a host.")
    hosts: Entries = Field(description="The machines: names, ranges, or mappings with a name.")
    environment: Environment = Field(default=Environment(), description="The python packages of the nodes.")
    jobs: Jobs = Field(default={}, description="The jobs by name.")


class Inventory(Strict):
    """The complete inventory. ``file``: its file, for messages and records."""

    cluster: Name = "default"
    project: Name = "default"
    ssh_config: str | None = None  # None: ~/.ssh/config, then the machine's
    known_hosts: str | None = None  # None: the files in ssh_config, else ~/.ssh/known_hosts
    hosts: tuple[Host, ...]
    environment: Environment = Environment()
    jobs: Mapping[str, JobSpec] = {}
    file: str = "inventory.yaml"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all hosts, in order."""
        return tuple(host.name for host in self.hosts)

    def job_id(self, job: str) -> JobId:
        """Return the identity of the project's job of that name; the job need not be in the file."""
        return JobId(self.cluster, self.project, job)

    def host(self, name: str) -> Host:
        """Return the host of that name.

        Raises:
            UsageError: there is no such host.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        raise UsageError(f"{self.file} has no host {name!r}", hint=suggestion(name, self.names))

    def job(self, name: str | None = None) -> JobSpec:
        """Return the job of that name; without a name, the only job.

        Raises:
            UsageError: there is no such job, or no name is given and the number of jobs is not 1.
        """
        if name is None:
            return self._only_job()
        if name not in self.jobs:
            raise UsageError(f"{self.file} has no job {name!r}", hint=suggestion(name, self.jobs))
        return self.jobs[name]

    def _only_job(self) -> JobSpec:
        if len(self.jobs) == 1:
            return next(iter(self.jobs.values()))
        if not self.jobs:
            raise UsageError(f"{self.file} has no jobs", hint="add one below jobs:, or give a script after --")
        raise UsageError(
            f"{self.file} has {len(self.jobs)} jobs", hint=f"choose one with --job: {', '.join(self.jobs)}"
        )


def build(document: InventoryFile, file: str, folder: str) -> tuple[Inventory | None, list[Fault]]:
    """Return the inventory in a file, or all faults between its parts. ``folder``: the name of the file's folder."""
    hosts, faults = expand_hosts(document.defaults, document.hosts)
    jobs = {name: _spec(name, entry) for name, entry in document.jobs.items()}
    if not faults:
        names = tuple(host.name for host in hosts)
        faults = [fault for job in jobs.values() for fault in _job_faults(job, names)]
    if faults:
        return None, faults
    inventory = Inventory(
        cluster=document.cluster,
        project=document.project or as_name(folder, "project"),
        ssh_config=document.ssh_config,
        known_hosts=document.known_hosts,
        hosts=tuple(hosts),
        environment=document.environment,
        jobs=jobs,
        file=file,
    )
    return inventory, []


def _spec(name: str, entry: JobEntry) -> JobSpec:
    return JobSpec(name=name, **{key: getattr(entry, key) for key in JobKeys.model_fields})


def _job_faults(job: JobSpec, known: tuple[str, ...]) -> Iterable[Fault]:
    """Yield the faults of a job: unknown host names, and more nodes than there are hosts."""
    where = ("jobs", job.name)
    if job.master is not None and job.master not in known:
        yield Fault((*where, "master"), f"no host is named {job.master}", suggestion(job.master, known))
        return
    try:
        select(job, known)
    except UsageError as error:
        yield Fault((*where, "nodes"), error.message, error.hint)


def select(job: JobSpec, known: tuple[str, ...], nodes: int | str | tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return the names of the job's nodes in the order of node ranks: the master first, then as in the inventory.

    ``nodes`` overrides the job's own ``nodes``.

    Raises:
        UsageError: too few hosts, an unknown name, or a master that is not among the nodes.
    """
    wanted = job.nodes if nodes is None else nodes
    master = job.master
    if wanted == "all" and job.spares and nodes is None:
        wanted = max(1, len(known) - job.spares)
    if isinstance(wanted, int):
        chosen = _first(wanted, known, master)
    elif wanted == "all":
        chosen = known
    else:
        chosen = _named((wanted,) if isinstance(wanted, str) else wanted, known)
    if master is None:
        return chosen
    if master not in chosen:
        raise UsageError(f"the master {master} of job {job.name} is not among its nodes", hint=f"add {master} to nodes")
    return (master, *(name for name in chosen if name != master))


def _first(count: int, known: tuple[str, ...], master: str | None) -> tuple[str, ...]:
    if not 1 <= count <= len(known):
        hosts = plural(len(known), "host")
        raise UsageError(f"{count} nodes, but the inventory has {hosts}", hint=f"1 to {len(known)}, or all")
    rest = [name for name in known if name != master]
    chosen = {*rest[: count - 1], master} if master in known else set(rest[:count])
    return tuple(name for name in known if name in chosen)


def _named(texts: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    chosen: set[str] = set()
    every = frozenset(known)
    for text in texts:
        try:
            names = expand(text)
        except RangeFault as error:
            raise UsageError(str(error)) from None
        for name in names:
            if name not in every:
                raise UsageError(f"no host is named {name}", hint=suggestion(name, known))
            if name in chosen:
                raise UsageError(f"host {name} is given twice", hint="remove one of the two")
            chosen.add(name)
    return tuple(name for name in known if name in chosen)


def job_hosts(inventory: Inventory, job: JobSpec, nodes: int | str | tuple[str, ...] | None = None) -> tuple[Host, ...]:
    """Return the job's hosts in the order of node ranks; ``nodes`` overrides the job's own ``nodes``.

    Raises:
        UsageError: too few hosts, an unknown name, or a master that is not among the nodes.
    """
    return tuple(inventory.host(name) for name in select(job, inventory.names, nodes))


def spare_hosts(inventory: Inventory, job: JobSpec, nodes: Sequence[Host]) -> tuple[Host, ...]:
    """Return the spares: the first hosts of the inventory that are not in ``nodes``.

    Raises:
        UsageError: the inventory has too few hosts.
    """
    taken = {host.name for host in nodes}
    rest = tuple(host for host in inventory.hosts if host.name not in taken)
    if len(rest) < job.spares:
        hosts = plural(len(inventory.hosts), "host")
        raise UsageError(
            f"{len(nodes)} nodes and {plural(job.spares, 'spare')}, but the inventory has {hosts}",
            hint=f"set nodes: {max(1, len(inventory.hosts) - job.spares)} for job {job.name}, or fewer spares",
        )
    return rest[: job.spares]


__all__ = [
    "Environment",
    "Host",
    "HostEntry",
    "HostKeys",
    "Inventory",
    "InventoryFile",
    "JobKeys",
    "JobSpec",
    "build",
    "job_hosts",
    "meant_key",
    "nearest",
    "select",
    "spare_hosts",
    "suggestion",
]
