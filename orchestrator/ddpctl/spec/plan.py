"""The whole launch as a value. ``--dry-run`` prints it, the stages run it, tests compare it. planning.py makes it.

Facts that only the nodes know (GPUs, cores, the fabric address, a free port) come in as ``Facts``. A dry run opens no
connection: for an unknown fact the plan has ``auto``, and an entry in ``open_questions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from ddpctl.spec.bounds import Count, Flag, Hash, Short
from ddpctl.spec.command import REDACTED, Command
from ddpctl.spec.origin import JobId, Origin
from ddpctl.spec.restart import Earlier, Settings
from ddpctl.spec.script import Start
from ddpctl.spec.slots import ONE_SLOT, SlotWish
from ddpctl_worker.wire import contract

AUTO = "auto"  # stands for an unknown fact


@dataclass(frozen=True)
class NodeFacts:
    """The facts that a node reported about itself; ``None``: not known."""

    gpus: int | None = None
    cores: int | None = None
    fabric_address: str | None = None
    interface: str | None = None
    torch: str | None = None
    has_launch: bool | None = None
    python: str | None = None  # the interpreter of a managed environment, once it is installed
    environment: str | None = None  # the hash of that environment's lock
    local_rank_arg: str | None = None  # the local rank option of a script that is on the node only
    start: Start | None = None  # how the processes of such a script begin
    machine: str | None = None  # the machine type as the kernel calls it: x86_64, aarch64


@dataclass(frozen=True)
class Facts:
    """The facts of the nodes by host, and the free ports that the master picked."""

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    master_port: int | None = None
    gang_port: int | None = None

    def node(self, host: str) -> NodeFacts:
        return self.nodes.get(host, NodeFacts())


@dataclass(frozen=True)
class CodeRef:
    """The archive of the job's code: its hash, and the commit that it was made from."""

    sha256: Annotated[Hash, Field(alias="hash")]
    size: Count
    git_commit: Short | None = None
    dirty: Flag | None = None

    def to_json(self) -> dict[str, Any]:
        return {"hash": self.sha256, "size": self.size, "git_commit": self.git_commit, "dirty": self.dirty}


@dataclass(frozen=True)
class NodePlan:
    """The part of a node: the launcher's command line and environment.

    Only the node knows the absolute path of its folders. So ``cwd`` and the values of the variables in ``token_env``
    may hold tokens of contract.py (``{run_dir}`` ...). ``secret_names``: variables from ``env_file``; the plan does not
    hold their values.
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
    slots: SlotWish = ONE_SLOT

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
    """The launch of a run on all its nodes, in the order of node ranks."""

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
    min_nodes: int | None  # the fewest nodes with which torch's elastic agent continues; None: it is not used
    code: CodeRef | None
    outputs: tuple[str, ...]
    before: str | None  # shell text before the launcher, in its shell
    after: str | None  # shell text after the last rank
    links: Mapping[str, str]  # name in the working folder -> place of the node
    timeouts: Mapping[str, Any]
    doctor: Mapping[str, float] | None  # None: off
    keep_runs: int | None  # ended runs of this name that stay on a node; None: all
    notify: tuple[Mapping[str, Any], ...]  # without the secret parts
    checkpoint: Mapping[str, Any]
    origin: Origin
    created: str
    restarts: int = 0  # attempts after the first
    spares: int = 0  # the last nodes of the plan, which only replace lost nodes
    least: int = 1  # the fewest nodes of an attempt
    open_questions: tuple[str, ...] = ()
    settings: Settings | None = None  # for a restart
    earlier: Earlier | None = None  # the run that this run continues

    @property
    def job_id(self) -> JobId:
        return JobId(self.cluster, self.project, self.job)

    @property
    def first(self) -> int:
        """Return the number of the first attempt."""
        return self.earlier.last + 1 if self.earlier else 1

    @property
    def active(self) -> tuple[NodePlan, ...]:
        """Return the nodes of the first attempt."""
        return self.nodes[: len(self.nodes) - self.spares]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the unknown facts that a launcher needs, as text. The remaining open questions have defaults."""
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
        """Return the plan with checkpoints in the run's folder: a benchmark must not use or replace the job's own."""
        folder = {contract.ENV_CHECKPOINT_DIR: f"{contract.RUN_DIR_TOKEN}/checkpoints"}
        nodes = [
            replace(node, command=replace(node.command, env={**node.command.env, **folder})) for node in self.nodes
        ]
        return replace(self, nodes=tuple(nodes))

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``--dry-run --json``, without the values of secrets."""
        return {
            **self._shared(),
            "master": self.master,
            "nodes": [node.to_json() for node in self.nodes],
            "open_questions": list(self.open_questions),
        }

    def record(self, node: NodePlan) -> dict[str, Any]:
        """Return the immutable part of the run's record on ``node``; the worker writes it as run.json."""
        return {
            **self._shared(),
            "host": node.host,
            "node_rank": node.node_rank,
            "nnodes": len(self.active),
            "hosts": list(self.hosts),
            "nproc": node.nproc,
            "slots": asdict(node.slots),
            "ranks": list(node.ranks),
            "argv": list(node.command.argv),
            "cwd": node.command.cwd,
            "origin": asdict(self.origin),
            "created": self.created,
            "torch": node.torch,
            "environment": node.environment,
            "gang": self._gang(node),
            "restart": self._restart(),
            "settings": asdict(self.settings) if self.settings else None,
            "attempt": self.first,
            "continues": self.earlier.to_json() if self.earlier else None,
        }

    def _shared(self) -> dict[str, Any]:
        """Return the keys that both the printed plan and every node's record have."""
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
            "before": self.before,
            "after": self.after,
            "links": dict(self.links),
            "timeouts": dict(self.timeouts),
            "doctor": dict(self.doctor) if self.doctor is not None else None,
            "restarts": self.restarts,
            "spares": [node.host for node in self.nodes[len(self.active) :]],
            "keep_runs": self.keep_runs,
            "notify": [dict(notifier) for notifier in self.notify],
            "checkpoint": dict(self.checkpoint),
        }

    def _gang(self, node: NodePlan) -> dict[str, Any] | None:
        """Return the addresses at which the nodes watch each other; ``None``: they do not.

        Under torch's elastic agent they do not: the agent continues without lost nodes.
        """
        if len(self.active) < 2 or self.gang_port is None or self.rendezvous != "static":
            return None
        return {
            "hub_host": self.nodes[0].host,
            "hub_addr": self.nodes[0].address,
            "port": self.gang_port,
            "bind_addr": node.address,
        }

    def _restart(self) -> dict[str, Any] | None:
        """Return the data with which the nodes start further attempts (ddpctl_worker/agent/); ``None``: no restarts."""
        if not self.restarts:
            return None
        first = {
            "attempt": self.first,
            "hosts": [node.host for node in self.active],
            "started": self.created,
            "ended": None,
        }
        first |= {"master_port": self.master_port, "gang_port": self.gang_port, "cause": None, "set_aside": []}
        hosts = [{"host": node.host, "address": node.address, "nproc": node.nproc} for node in self.nodes]
        return {
            "restarts": self.restarts + self.first - 1,  # the number of the last attempt, less 1
            "nodes": len(self.active),
            "least": self.least,
            "hosts": hosts,
            "first": first,
        }


@dataclass(frozen=True)
class RunIdentity:
    """The id of a run, the account and place that start it, and the time. ``created``: ISO 8601 in UTC."""

    run: str
    origin: Origin
    created: str
