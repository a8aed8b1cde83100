"""The whole launch as a value. ``--dry-run`` prints it, the stages run it, tests compare it.

``make_plan`` is pure: the same inventory, job and facts give the same plan, and nothing it is given is changed. What
only the nodes can tell (GPUs, cores, the fabric address, a free port) comes in as ``Facts``; where a fact is not known
yet (a dry run opens no connection) the plan says ``auto`` in its place and names it under ``open_questions``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpctl.errors import UsageError
from ddpctl.spec.command import REDACTED, Command
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.job import SILENCE_WARNING_S, JobSpec
from ddpctl_worker import contract

AUTO = "auto"
LAUNCH = "torch.distributed.launch"
RUN = "torch.distributed.run"
DEFAULT_ETCD_PORT = 2379
_LITERAL_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z")


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
    local_rank_arg: str | None = None  # how a script that lies on the node wants its local rank


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
    nodes: tuple[NodePlan, ...]
    master: str
    master_addr: str
    master_port: int | None
    gang_port: int | None
    world_size: int | None
    launcher: str
    rendezvous: str
    code: CodeRef | None
    outputs: tuple[str, ...]
    timeouts: Mapping[str, Any]
    user: str
    controller: str
    created: str
    open_questions: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    def node(self, host: str) -> NodePlan:
        return next(node for node in self.nodes if node.host == host)

    def to_json(self) -> dict[str, Any]:
        """What ``--dry-run --json`` prints; no secret's value is in it."""
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "run": self.run,
            "cluster": self.cluster,
            "launcher": self.launcher,
            "rendezvous": self.rendezvous,
            "master": self.master,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "world_size": self.world_size,
            "code": self.code.to_json() if self.code else None,
            "outputs": list(self.outputs),
            "timeouts": dict(self.timeouts),
            "nodes": [node.to_json() for node in self.nodes],
            "open_questions": list(self.open_questions),
        }

    def record(self, node: NodePlan) -> dict[str, Any]:
        """The immutable part of the run's record on ``node`` (the worker writes it as run.json)."""
        return {
            "schema": contract.SCHEMA,
            "run": self.run,
            "job": self.job,
            "cluster": self.cluster,
            "host": node.host,
            "node_rank": node.node_rank,
            "nnodes": len(self.nodes),
            "hosts": list(self.hosts),
            "nproc": node.nproc,
            "ranks": list(node.ranks),
            "world_size": self.world_size,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "launcher": self.launcher,
            "rendezvous": self.rendezvous,
            "user": self.user,
            "controller": self.controller,
            "created": self.created,
            "code": self.code.to_json() if self.code else None,
            "outputs": list(self.outputs),
            "timeouts": dict(self.timeouts),
            "gang": self._gang(node),
        }

    def _gang(self, node: NodePlan) -> dict[str, Any] | None:
        """Where the nodes watch each other; an elastic run loses and regains nodes by design, so it has no gang."""
        if len(self.nodes) < 2 or self.gang_port is None or self.rendezvous != "static":
            return None
        return {
            "hub_host": self.nodes[0].host,
            "hub_addr": self.nodes[0].address,
            "port": self.gang_port,
            "bind_addr": node.address,
        }


@dataclass(frozen=True)
class Identity:
    """Who starts the run and when: the parts of a plan that are not in any file. ``created`` is ISO 8601 in UTC."""

    run: str
    user: str
    controller: str
    created: str


def make_plan(
    inventory: Inventory,
    job: JobSpec,
    hosts: Sequence[Host],
    identity: Identity,
    *,
    facts: Facts | None = None,
    code: CodeRef | None = None,
    local_rank_arg: str | None = None,
    secret_names: Sequence[str] = (),
    nproc: int | None = None,
) -> Plan:
    """The plan of ``job`` on ``hosts`` (node rank order, the master first).

    ``local_rank_arg`` is how the job's script wants its local rank ("--local_rank", "--local-rank" or None), as read
    from the script; the job file's own word wins over it. ``nproc`` overrides processes per node.

    Raises:
        UsageError: the job cannot be planned on these hosts (no hosts, old launchers with uneven slots, ...).
    """
    if not hosts:
        raise UsageError(f"job {job.name} has no hosts", hint="name at least one under `hosts:`")
    facts = facts or Facts()
    counts = {host.name: _processes(host, job, facts.node(host.name), nproc) for host in hosts}
    _refuse_uneven_on_old_launchers(hosts, counts, facts)
    master = hosts[0]
    port = job.master_port if isinstance(job.master_port, int) else facts.master_port
    if port is None and job.rendezvous == "etcd-v2":
        port = DEFAULT_ETCD_PORT
    launcher = _launcher(job, [facts.node(host.name) for host in hosts])
    shared = _Shared(
        job=job,
        run=identity.run,
        nnodes=len(hosts),
        master_addr=_address(master, facts.node(master.name), alone=len(hosts) == 1),
        master_port=port,
        launcher=launcher,
        local_rank_arg=local_rank_arg,
        secret_names=tuple(secret_names),
    )
    nodes, first_rank = [], 0
    for node_rank, host in enumerate(hosts):
        count = counts[host.name]
        nodes.append(_node(shared, host, node_rank, count, first_rank, facts.node(host.name)))
        first_rank += count or 0
    known = all(count is not None for count in counts.values())
    return Plan(
        job=job.name,
        run=identity.run,
        cluster=inventory.cluster,
        nodes=tuple(nodes),
        master=master.name,
        master_addr=shared.master_addr,
        master_port=port,
        gang_port=facts.gang_port,
        world_size=first_rank if known else None,
        launcher=launcher,
        rendezvous=job.rendezvous,
        code=code,
        outputs=tuple(job.outputs),
        timeouts=_timeouts(job),
        user=identity.user,
        controller=identity.controller,
        created=identity.created,
        open_questions=_open_questions(nodes, port),
    )


@dataclass(frozen=True)
class _Shared:
    """What is the same on every node of a plan."""

    job: JobSpec
    run: str
    nnodes: int
    master_addr: str
    master_port: int | None
    launcher: str
    local_rank_arg: str | None
    secret_names: tuple[str, ...]


def _processes(host: Host, job: JobSpec, facts: NodeFacts, override: int | None) -> int | None:
    """How many processes a node runs: the command line, then the job, then the host, then its GPUs, then one."""
    for wish in (override, job.nproc_per_node, host.slots):
        if isinstance(wish, int):
            return wish
    if facts.gpus is None:
        return None
    return max(1, facts.gpus)


def torch_release(version: str | None) -> tuple[int, int] | None:
    """(major, minor) of a torch version string such as ``1.8.1+cu111``; None when it has no such form."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def _is_old(facts: NodeFacts) -> bool:
    """torch 1.8 and older: its launcher has no agent, no ``${local_rank}`` and counts ranks as nnodes x nproc."""
    release = torch_release(facts.torch)
    return release is not None and release <= (1, 8)


def _refuse_uneven_on_old_launchers(hosts: Sequence[Host], counts: Mapping[str, int | None], facts: Facts) -> None:
    old = [host.name for host in hosts if _is_old(facts.node(host.name))]
    if old and len(set(counts.values())) > 1:
        raise UsageError(
            f"torch {facts.node(old[0]).torch} cannot run a different number of processes per node (it would count "
            f"nodes x processes and hang)",
            host=old[0],
            hint="set one nproc_per_node for the job, or use torch 1.9 or newer",
        )


def _launcher(job: JobSpec, nodes: Sequence[NodeFacts]) -> str:
    """`launch` works from torch 1.6 to today; `run` where a torch has lost it, and always for elastic rendezvous."""
    if job.rendezvous != "static" or job.launcher == "torchrun":
        return RUN
    if job.launcher == AUTO and any(node.has_launch is False for node in nodes):
        return RUN
    return LAUNCH


def _address(host: Host, facts: NodeFacts, *, alone: bool = False) -> str:
    """The address that the other nodes use for this one.

    Never a name: a name may resolve differently on every node (or to a loopback address on its own).
    """
    address = host.fabric_address or facts.fabric_address
    if address:
        return address
    if host.connection == "local" or alone:
        return "127.0.0.1"
    return host.address if _LITERAL_IPV4.match(host.address) else AUTO


def _node(
    shared: _Shared, host: Host, node_rank: int, nproc: int | None, first_rank: int, facts: NodeFacts
) -> NodePlan:
    address = _address(host, facts, alone=shared.nnodes == 1)
    interface = host.interface or facts.interface
    env, tokens = _environment(shared, host, interface, nproc, facts)
    argv = (facts.python or host.python, "-m", shared.launcher, *_launcher_args(shared, node_rank, nproc, address))
    argv += (*_script_args(shared, facts),)
    return NodePlan(
        host=host.name,
        node_rank=node_rank,
        nproc=nproc,
        ranks=tuple(range(first_rank, first_rank + (nproc or 0))),
        address=address,
        interface=interface,
        command=Command(argv=argv, env=env, cwd=shared.job.workdir or contract.CODE_DIR_TOKEN),
        token_env=tokens,
        secret_names=shared.secret_names,
    )


def _launcher_args(shared: _Shared, node_rank: int, nproc: int | None, address: str) -> list[str]:
    """The launcher's own options, in the underscore spelling that torch 1.6 and today's both take."""
    per_node = AUTO if nproc is None else str(nproc)
    port = AUTO if shared.master_port is None else str(shared.master_port)
    if shared.job.rendezvous == "static":
        args = ["--nnodes", str(shared.nnodes), "--node_rank", str(node_rank), "--nproc_per_node", per_node]
        return [*args, "--master_addr", shared.master_addr, "--master_port", port]
    elastic = shared.job.elastic
    nnodes = f"{elastic.min_nodes}:{elastic.max_nodes}" if elastic else str(shared.nnodes)
    args = ["--nnodes", nnodes, "--nproc_per_node", per_node]
    if elastic:
        args += ["--max_restarts", str(elastic.max_restarts)]
    args += ["--rdzv_backend", shared.job.rendezvous, "--rdzv_endpoint", f"{shared.master_addr}:{port}"]
    args += ["--rdzv_id", shared.run]
    # Without it c10d publishes the node's FQDN as MASTER_ADDR, which breaks without DNS.
    args += ["--local_addr", address]
    if shared.job.rendezvous == "c10d":
        # c10d guesses who hosts the store by comparing names; the plan knows.
        args += ["--rdzv_conf", f"is_host={1 if node_rank == 0 else 0}"]
    return args


def _script_args(shared: _Shared, facts: NodeFacts) -> list[str]:
    """``--use_env -- SCRIPT ARGS``: ``--`` keeps a script's ``--n`` from being read as the launcher's ``--nnodes``."""
    job = shared.job
    old = _is_old(facts)
    style = _local_rank_style(job, shared.local_rank_arg or facts.local_rank_arg)
    words: list[str] = []
    if shared.launcher == LAUNCH and not (old and style):
        words.append("--use_env")  # else the launcher appends its own spelling of the local rank
    if job.module:
        words.append("--module")
    program = job.module or job.script or ""
    words += ["--", _escaped(program, old)]
    if style and not old:
        words.append(f"{style}=${{local_rank}}")
    return [*words, *(_escaped(arg, old) for arg in job.args)]


def _local_rank_style(job: JobSpec, found: str | None) -> str | None:
    """The job file's word, or what was read from the script."""
    wish = job.local_rank_arg
    if wish == AUTO:
        return found
    return None if wish in ("none", None) else wish


def _escaped(arg: str, old: bool) -> str:
    """``$`` doubled, since the launcher runs every argument through string.Template (torch 1.9 and newer)."""
    return arg if old else arg.replace("$", "$$")


def _environment(
    shared: _Shared, host: Host, interface: str | None, nproc: int | None, facts: NodeFacts
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables a node's launcher gets; the names whose values hold a token come second."""
    env: dict[str, str] = {}
    if interface:
        env["NCCL_SOCKET_IFNAME"] = interface
        env["GLOO_SOCKET_IFNAME"] = interface
    if facts.cores is not None and nproc:
        env["OMP_NUM_THREADS"] = str(max(1, facts.cores // nproc))
    env.update(_mended_defaults(facts, nproc))
    env.update(host.env)
    env.update(shared.job.env)
    for name in shared.secret_names:
        env.pop(name, None)  # the secret's own value wins
    env[contract.ENV_JOB] = shared.job.name
    env[contract.ENV_RUN] = shared.run
    env[contract.ENV_RUN_DIR] = contract.RUN_DIR_TOKEN
    env[contract.ENV_OUTPUT_DIR] = contract.OUTPUT_DIR_TOKEN
    # torchrun leaves a folder in /tmp at every run unless it is given one.
    env["PET_LOG_DIR"] = f"{contract.RUN_DIR_TOKEN}/torchelastic"
    return env, (contract.ENV_RUN_DIR, contract.ENV_OUTPUT_DIR, "PET_LOG_DIR")


def _mended_defaults(facts: NodeFacts, nproc: int | None) -> dict[str, str]:
    """torch 1.9 to 1.13 cannot launch on Python 3.11 and newer with its own defaults for redirects and tee.

    Iterating an IntFlag leaves out its zero there, so the launcher turns "nothing" into None and fails. Naming a local
    rank that does not exist gives it a map instead; it takes one digit only, so a node with ten or more is left alone.
    """
    release = torch_release(facts.torch)
    if release is None or not (1, 9) <= release < (2, 0) or (nproc or 1) > 9:
        return {}
    return {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}


def _timeouts(job: JobSpec) -> dict[str, Any]:
    silence = job.timeouts.silence
    return {
        "start": job.timeouts.start,
        "stop": job.timeouts.stop,
        "silence": SILENCE_WARNING_S if silence is None else silence,
        "silence_enforced": silence is not None,
    }


def _open_questions(nodes: Sequence[NodePlan], port: int | None) -> tuple[str, ...]:
    """What a dry run cannot know, in words."""
    words = [f"{node.host}: processes per node (auto: its GPUs, or 1)" for node in nodes if node.nproc is None]
    words += [f"{node.host}: fabric address (found by preflight)" for node in nodes if node.address == AUTO]
    words += [f"{node.host}: interface (the one that owns {node.address})" for node in nodes if not node.interface]
    if port is None:
        words.append(f"{nodes[0].host}: master port (auto: a free port picked at launch)")
    return tuple(words)
