"""The whole launch as a value. ``--dry-run`` prints it, the stages run it, tests compare it. planning.py makes it.

What only the nodes can tell (GPUs, cores, the fabric address, a free port) comes in as ``Facts``; where a fact is not
known yet (a dry run opens no connection) the plan says ``auto`` in its place and names it under ``open_questions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ddpctl.spec.again import Earlier, Settings
from ddpctl.spec.command import REDACTED, Command
from ddpctl.spec.origin import JobId, Origin
from ddpctl.spec.script import Start
from ddpctl_worker.wire import contract

AUTO = "auto"  # in the place of what is not known


@dataclass(frozen=True)
class NodeFacts:
    """What a node told about itself; None: not known."""

    gpus: int | None = None
    cores: int | None = None
    fabric_address: str | None = None
    interface: str | None = None
    torch: str | None = None
    has_launch: bool | None = None
    python: str | None = None  # the interpreter of a managed environment, once it stands
    environment: str | None = None  # and the hash of its lock
    local_rank_arg: str | None = None  # how a script that lies on the node wants its local rank
    start: Start | None = None  # and how its processes begin
    machine: str | None = None  # its type as the kernel calls it: x86_64, aarch64


@dataclass(frozen=True)
class Facts:
    """What the nodes told, by host, and the free ports that the master picked."""

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    master_port: int | None = None
    gang_port: int | None = None

    def node(self, host: str) -> NodeFacts:
        return self.nodes.get(host, NodeFacts())


@dataclass(frozen=True)
class CodeRef:
    """The archive of the job's code: what it hashes to and which commit it was made from."""

    sha256: str
    size: int
    git_commit: str | None = None
    dirty: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return {"hash": self.sha256, "size": self.size, "git_commit": self.git_commit, "dirty": self.dirty}


@dataclass(frozen=True)
class NodePlan:
    """One node's part: its launcher's command line and environment.

    ``cwd`` and the values named in ``token_env`` may hold the tokens of contract.py (``{run_dir}`` ...): folders whose
    absolute names only the node knows. ``secret_names`` are variables from ``env_file``: their values are not here.
    """

    host: str
    node_rank: int
    nproc: int | None
    ranks: tuple[int, ...]
    address: str
    interface: str | None
    command: Command
    token_env: tuple[str, ...]
    secret_names: tuple[str, ...] = ()
    torch: str | None = None
    environment: str | None = None

    def to_json(self) -> dict[str, Any]:
        env = dict(self.command.env) | dict.fromkeys(self.secret_names, REDACTED)
        return {
            "host": self.host,
            "node_rank": self.node_rank,
            "nproc": self.nproc,
            "ranks": list(self.ranks),
            "address": self.address,
            "interface": self.interface,
            "argv": list(self.command.argv),
            "env": dict(sorted(env.items())),
            "cwd": self.command.cwd,
        }


@dataclass(frozen=True)
class Plan:
    """The launch of one run on all its nodes, in node rank order."""

    job: str
    run: str
    cluster: str
    project: str
    nodes: tuple[NodePlan, ...]
    master: str
    master_addr: str
    master_port: int | None
    gang_port: int | None
    world_size: int | None
    launcher: str
    rendezvous: str
    min_nodes: int | None  # torch's own elastic agent goes down to so few; None: it loses none
    code: CodeRef | None
    outputs: tuple[str, ...]
    timeouts: Mapping[str, Any]
    doctor: Mapping[str, float] | None  # None: off
    keep_runs: int | None  # ended runs of this name that stay on a node; None: all
    notify: tuple[Mapping[str, Any], ...]  # as it may be shown
    checkpoint: Mapping[str, Any]
    origin: Origin
    created: str
    restarts: int = 0  # attempts after the first
    spares: int = 0  # of the nodes, the last ones: they only step in
    least: int = 1  # nodes that an attempt may run on
    open_questions: tuple[str, ...] = ()
    settings: Settings | None = None  # for a restart
    earlier: Earlier | None = None  # the run that this one continues

    @property
    def job_id(self) -> JobId:
        return JobId(self.cluster, self.project, self.job)

    @property
    def first(self) -> int:
        """The number of its first attempt."""
        return self.earlier.last + 1 if self.earlier else 1

    @property
    def active(self) -> tuple[NodePlan, ...]:
        """The nodes of the first attempt."""
        return self.nodes[: len(self.nodes) - self.spares]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What no launcher can be started without, in words; the other open questions have defaults of torch's own."""
        words = [f"processes per node of {node.host}" for node in self.nodes if node.nproc is None]
        if self.rendezvous == "static":
            nameless = [self.master] if self.master_addr == AUTO else []
        else:
            nameless = [node.host for node in self.nodes if node.address == AUTO]
        words += [f"fabric address of {host}" for host in nameless]
        return (*words, "master port") if self.master_port is None else tuple(words)

    def node(self, host: str) -> NodePlan:
        return next(node for node in self.nodes if node.host == host)

    def with_own_checkpoints(self) -> Plan:
        """The same, but checkpoints go to the run's own folder: a benchmark neither finds nor replaces the job's."""
        folder = {contract.ENV_CHECKPOINT_DIR: f"{contract.RUN_DIR_TOKEN}/checkpoints"}
        nodes = [
            replace(node, command=replace(node.command, env={**node.command.env, **folder})) for node in self.nodes
        ]
        return replace(self, nodes=tuple(nodes))

    def to_json(self) -> dict[str, Any]:
        """What ``--dry-run --json`` prints; no secret's value is in it."""
        return {
            **self._shared(),
            "master": self.master,
            "nodes": [node.to_json() for node in self.nodes],
            "open_questions": list(self.open_questions),
        }

    def record(self, node: NodePlan) -> dict[str, Any]:
        """The immutable part of the run's record on ``node`` (the worker writes it as run.json)."""
        return {
            **self._shared(),
            "host": node.host,
            "node_rank": node.node_rank,
            "nnodes": len(self.active),
            "hosts": list(self.hosts),
            "nproc": node.nproc,
            "ranks": list(node.ranks),
            "argv": list(node.command.argv),
            "cwd": node.command.cwd,
            "origin": self.origin.to_json(),
            "created": self.created,
            "torch": node.torch,
            "environment": node.environment,
            "gang": self._gang(node),
            "restart": self._restart(),
            "settings": self.settings.to_json() if self.settings else None,
            "attempt": self.first,
            "continues": self.earlier.to_json() if self.earlier else None,
        }

    def _shared(self) -> dict[str, Any]:
        """What a person reads of the whole run, and every node's record holds."""
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "run": self.run,
            "cluster": self.cluster,
            "project": self.project,
            "launcher": self.launcher,
            "rendezvous": self.rendezvous,
            "min_nodes": self.min_nodes,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "world_size": self.world_size,
            "code": self.code.to_json() if self.code else None,
            "outputs": list(self.outputs),
            "timeouts": dict(self.timeouts),
            "doctor": dict(self.doctor) if self.doctor is not None else None,
            "restarts": self.restarts,
            "spares": [node.host for node in self.nodes[len(self.active) :]],
            "keep_runs": self.keep_runs,
            "notify": [dict(one) for one in self.notify],
            "checkpoint": dict(self.checkpoint),
        }

    def _gang(self, node: NodePlan) -> dict[str, Any] | None:
        """Where the nodes watch each other; below torch's elastic agent, which loses nodes by design, there is none."""
        if len(self.active) < 2 or self.gang_port is None or self.rendezvous != "static":
            return None
        return {
            "hub_host": self.nodes[0].host,
            "hub_addr": self.nodes[0].address,
            "port": self.gang_port,
            "bind_addr": node.address,
        }

    def _restart(self) -> dict[str, Any] | None:
        """What the nodes need to start further attempts by themselves (ddpctl_worker/agent/); None: there are none."""
        if not self.restarts:
            return None
        first = {
            "attempt": self.first,
            "hosts": [node.host for node in self.active],
            "started": self.created,
            "ended": None,
        }
        first |= {"master_port": self.master_port, "gang_port": self.gang_port, "cause": None, "set_aside": []}
        hosts = [{"host": one.host, "address": one.address, "nproc": one.nproc} for one in self.nodes]
        return {
            "restarts": self.restarts + self.first - 1,  # by their numbers
            "nodes": len(self.active),
            "least": self.least,
            "hosts": hosts,
            "first": first,
        }


@dataclass(frozen=True)
class RunIdentity:
    """Who starts the run, from where and when: no file says that. ``created`` is ISO 8601 in UTC."""

    run: str
    origin: Origin
    created: str
