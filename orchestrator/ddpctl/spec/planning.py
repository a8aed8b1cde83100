"""Makes the plan of a run from an inventory, a job, and the facts of the nodes. Pure: no argument is changed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpctl.errors import UsageError
from ddpctl.spec.command import Command
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.limits import SILENCE_WARNING_S
from ddpctl.spec.origin import JobId
from ddpctl.spec.plan import AUTO, CodeRef, Facts, NodeFacts, NodePlan, Plan, RunIdentity
from ddpctl.spec.script import NODE, RANKS, Start
from ddpctl.spec.self_spawning import node_variables, plain_argv, refuse_number, start_of
from ddpctl.spec.slots import SlotWish
from ddpctl.spec.values import plural
from ddpctl_worker.wire import contract

LAUNCH = "torch.distributed.launch"
RUN = "torch.distributed.run"
_LITERAL_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z")


def make_plan(
    inventory: Inventory,
    job: JobSpec,
    hosts: Sequence[Host],
    identity: RunIdentity,
    *,
    facts: Facts | None = None,
    code: CodeRef | None = None,
    local_rank_arg: str | None = None,
    start: Start | None = None,
    secret_names: Sequence[str] = (),
    notify: Sequence[Mapping[str, Any]] = (),
    nproc: int | None = None,
    spares: int = 0,
) -> Plan:
    """Return the plan of ``job`` on ``hosts``.

    - ``hosts``: in the order of node ranks, the master first; the last ``spares`` of them are spares.
    - ``local_rank_arg``: the local rank option in the job's script ("--local_rank", "--local-rank" or None). The job's
      key of that name overrides it.
    - ``start``: how the script's processes begin; ``None``: only the nodes may know.
    - ``notify``: notifiers without their secret parts.
    - ``nproc``: overrides the number of processes per node.

    Raises:
        UsageError: the job cannot be planned on these hosts (no hosts, old launchers with uneven slots, ...).
    """
    if not hosts:
        raise UsageError(f"job {job.name} has no hosts", hint="name at least one under `hosts:`")
    _refuse_impossible_elastic(job, len(hosts))
    facts = facts or Facts()
    start = start_of(job, start or facts.node(hosts[0].name).start)
    refuse_number(job, start, nproc)
    plain = start != RANKS
    counts = {host.name: 1 if plain else _processes(host, job, facts.node(host.name), nproc) for host in hosts}
    _refuse_uneven_on_old_launchers(hosts, counts, facts)
    port = job.master_port if isinstance(job.master_port, int) else facts.master_port
    launcher = contract.PLAIN if plain else _launcher(job, [facts.node(host.name) for host in hosts])
    shared = _Shared(
        job=job,
        job_id=inventory.job_id(job.name),
        run=identity.run,
        nnodes=len(hosts) - spares,
        alone=len(hosts) == 1,
        master_addr=_address(hosts[0], facts.node(hosts[0].name), alone=len(hosts) == 1),
        master_port=port,
        launcher=launcher,
        start=start,
        host_map=",".join(f"{host.name}:{counts[host.name] or AUTO}" for host in hosts[: len(hosts) - spares]),
        local_rank_arg=local_rank_arg,
        secret_names=tuple(secret_names),
    )
    nodes, first_rank = [], 0
    for node_rank, host in enumerate(hosts):
        count = counts[host.name]
        node = _node(shared, host, node_rank, count, first_rank, facts.node(host.name))
        node = replace(node, slots=slots_of(host, inventory))
        nodes.append(node if node_rank < shared.nnodes else replace(node, ranks=()))
        first_rank += (count or 0) if node_rank < shared.nnodes else 0
    known = all(count is not None for count in counts.values())
    return Plan(
        job=job.name,
        run=identity.run,
        cluster=inventory.cluster,
        project=inventory.project,
        nodes=tuple(nodes),
        master=hosts[0].name,
        master_addr=shared.master_addr,
        master_port=port,
        gang_port=facts.gang_port,
        world_size=first_rank if known else None,
        launcher=launcher,
        rendezvous=job.rendezvous,
        min_nodes=job.elastic.min_nodes if job.elastic and job.rendezvous != "static" else None,
        code=code,
        outputs=tuple(job.outputs),
        before=job.before,
        after=job.after,
        links=job.links,
        timeouts=_timeouts(job),
        doctor=job.doctor.model_dump() if job.doctor is not None else None,
        keep_runs=job.keep_runs,
        notify=tuple(notify),
        checkpoint={**job.checkpoint.model_dump(), "paths": list(job.checkpoint.paths)},
        origin=identity.origin,
        created=identity.created,
        restarts=job.most_restarts,
        spares=spares,
        least=min(job.elastic.min_nodes, shared.nnodes) if job.elastic else shared.nnodes,
        open_questions=_open_questions(nodes, port),
    )


@dataclass(frozen=True)
class _Shared:
    """The values that all nodes of a plan share."""

    job: JobSpec
    job_id: JobId
    run: str
    nnodes: int
    alone: bool  # the plan has a single host
    master_addr: str
    master_port: int | None
    launcher: str
    start: Start
    host_map: str
    local_rank_arg: str | None
    secret_names: tuple[str, ...]


def _refuse_impossible_elastic(job: JobSpec, nodes: int) -> None:
    """Refuse jobs for which torch's elastic agent would wait in vain, or stop healthy nodes."""
    if job.rendezvous == "static":
        return
    limits = job.elastic
    if limits is not None and not limits.min_nodes <= nodes <= limits.max_nodes:
        raise UsageError(
            f"job {job.name} has {plural(nodes, 'node')}, elastic allows {limits.min_nodes} to {limits.max_nodes}",
            hint="change `nodes`, or min_nodes and max_nodes",
        )
    if job.timeouts.silence is not None and nodes > 1:
        raise UsageError(
            f"job {job.name}: with rendezvous {job.rendezvous} no node knows whether the others print something, so "
            "timeouts.silence cannot be kept",
            hint="leave it out, or use the static rendezvous",
        )


def _processes(host: Host, job: JobSpec, facts: NodeFacts, override: int | None) -> int | None:
    """Return the processes of a node: from the command line, else the job, else the host, else its GPUs, else 1.

    ``None``: the number of GPUs is not known.
    """
    for wish in (override, job.nproc_per_node, host.slots):
        if isinstance(wish, int):
            return wish
    if facts.gpus is None:
        return None
    return max(1, facts.gpus)


def slots_of(host: Host, inventory: Inventory) -> SlotWish:
    """Return the slots that the worker counts. All local hosts of an inventory are one machine, with their slots."""
    nodes = sum(other.local for other in inventory.hosts) if host.local else 1
    return SlotWish(host.slots if isinstance(host.slots, int) else None, nodes)


def _share(host: Host, facts: NodeFacts, nproc: int) -> int:
    """Return the processes that share the host's cores, when other runs have its remaining slots."""
    slots = host.slots if isinstance(host.slots, int) else facts.gpus
    return max(nproc, slots or 1)


def torch_release(version: str | None) -> tuple[int, int] | None:
    """Return (major, minor) of a torch version such as ``1.8.1+cu111``; ``None``: the text has another form."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def _is_old(facts: NodeFacts) -> bool:
    """Return whether the node has torch 1.8 or older.

    That launcher has no agent, does not know ``${local_rank}``, and counts ranks as nnodes x nproc.
    """
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
    """Return the launcher module: `launch`, which torch has from 1.6 to today, unless `run` is needed.

    `run` is needed for elastic rendezvous, and for a torch without `launch`.
    """
    if job.rendezvous != "static" or job.launcher == "torchrun":
        return RUN
    if job.launcher == AUTO and any(node.has_launch is False for node in nodes):
        return RUN
    return LAUNCH


def _address(host: Host, facts: NodeFacts, *, alone: bool = False) -> str:
    """Return the address that the other nodes use for this node; AUTO: not known.

    Never a name: a name may resolve differently on each node, and to a loopback address on the node itself.
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
    address = _address(host, facts, alone=shared.alone)
    interface = host.interface or facts.interface
    python = facts.python or host.python
    env, tokens = _environment(shared, host, node_rank, interface, nproc, facts)
    argv = (python, "-m", shared.launcher, *_launcher_args(shared, node_rank, nproc, address))
    argv = (*argv, *_script_args(shared, facts)) if shared.start == RANKS else plain_argv(python, shared.job)
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
        torch=facts.torch,
        environment=facts.environment,
    )


def _launcher_args(shared: _Shared, node_rank: int, nproc: int | None, address: str) -> list[str]:
    """Return the launcher's own options, spelled with underscores: torch 1.6 and today's torch accept that."""
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
    # Without --local_addr c10d publishes the node's FQDN as MASTER_ADDR, which fails without DNS.
    args += ["--local_addr", address]
    # torch's own default is to wait ten minutes for missing nodes.
    settings = [f"join_timeout={math.ceil(shared.job.timeouts.start)}"]
    if shared.job.rendezvous == "c10d":
        # Without is_host c10d compares names to guess which node hosts the store.
        settings.insert(0, f"is_host={1 if node_rank == 0 else 0}")
    return [*args, "--rdzv_conf", ",".join(settings)]


def _script_args(shared: _Shared, facts: NodeFacts) -> list[str]:
    """Return ``--use_env -- SCRIPT ARGS``. Without ``--`` the launcher reads a script's ``--n`` as ``--nnodes``."""
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
    wish = job.local_rank_arg
    if wish == AUTO:
        return found
    return None if wish in ("none", None) else wish


def _escaped(arg: str, old: bool) -> str:
    """Double every ``$``: the launcher of torch 1.9 and newer treats each argument as a string.Template."""
    return arg if old else arg.replace("$", "$$")


def _environment(
    shared: _Shared, host: Host, node_rank: int, interface: str | None, nproc: int | None, facts: NodeFacts
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables of a node's launcher, and the names of the variables that hold a token."""
    env: dict[str, str] = {}
    if interface:
        env["NCCL_SOCKET_IFNAME"] = f"={interface}"  # without "=", NCCL takes eth1 as a prefix, also of eth10
        env["GLOO_SOCKET_IFNAME"] = interface
    plain = shared.start != RANKS
    if plain:
        # In place of the option -u of torch's launcher; the processes that the script starts inherit the variable.
        env["PYTHONUNBUFFERED"] = "1"
    elif facts.cores is not None and nproc:
        env["OMP_NUM_THREADS"] = str(max(1, facts.cores // _share(host, facts, nproc)))
    if shared.job.rendezvous != "static":
        # Else, when rank 0 moves to another node, torch 2.13 keeps the old address of its store on all other nodes.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    env.update({} if plain else _launcher_defaults(facts, nproc))
    env.update(host.env)
    env.update(shared.job.env)
    for name in shared.secret_names:
        env.pop(name, None)  # the secret's own value wins
    env[contract.ENV_JOB] = shared.job.name
    env[contract.ENV_JOB_ID] = str(shared.job_id)
    env[contract.ENV_RUN] = shared.run
    env[contract.ENV_HOST] = host.name
    env[contract.ENV_HOSTS] = shared.host_map
    env[contract.ENV_ATTEMPT] = "0"
    if shared.start == NODE:
        port = AUTO if shared.master_port is None else str(shared.master_port)
        env.update(node_variables(node_rank, shared.nnodes, shared.master_addr, port))
    folders = {
        contract.ENV_RUN_DIR: contract.RUN_DIR_TOKEN,
        contract.ENV_OUTPUT_DIR: contract.OUTPUT_DIR_TOKEN,
        contract.ENV_CHECKPOINT_DIR: contract.CHECKPOINT_DIR_TOKEN,
        contract.ENV_METRICS: f"{contract.RUN_DIR_TOKEN}/metrics/node.jsonl",  # each rank gets a file of its own
    }
    if not plain:  # torchrun's default is a new folder in /tmp for every run, which it never removes
        folders["PET_LOG_DIR"] = f"{contract.RUN_DIR_TOKEN}/torchelastic"
    return env | folders, tuple(folders)


def _launcher_defaults(facts: NodeFacts, nproc: int | None) -> dict[str, str]:
    """Return variables without which torch 1.9 to 1.13 cannot launch on Python 3.11 and newer.

    Its default for redirects and tee is an IntFlag of zero. Iterating that yields no member on these Pythons, so the
    launcher gets None and fails. A map that names a local rank which does not exist avoids the default. The launcher
    reads a single digit there, so a node with ten or more ranks keeps the default.
    """
    release = torch_release(facts.torch)
    if release is None or not (1, 9) <= release < (2, 0) or (nproc or 1) > 9:
        return {}
    return {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}


def _timeouts(job: JobSpec) -> dict[str, Any]:
    silence = job.timeouts.silence
    warned = SILENCE_WARNING_S if silence is None else silence
    return {**job.timeouts.model_dump(), "silence": warned, "silence_enforced": silence is not None}


def _open_questions(nodes: Sequence[NodePlan], port: int | None) -> tuple[str, ...]:
    """Return the facts that a dry run cannot know, as text."""
    words = [f"{node.host}: processes per node (auto: its GPUs, or 1)" for node in nodes if node.nproc is None]
    words += [f"{node.host}: fabric address (found by preflight)" for node in nodes if node.address == AUTO]
    words += [f"{node.host}: interface (the one that owns {node.address})" for node in nodes if not node.interface]
    if port is None:
        words.append(f"{nodes[0].host}: master port (auto: a free port picked at launch)")
    return tuple(words)
