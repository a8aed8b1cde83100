"""Plans the start of a script that starts its own processes: without torch's launcher, once on each host. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ddpctl.errors import UsageError
from ddpctl.spec.job import JobSpec
from ddpctl.spec.script import NODE, RANKS, ScriptFacts, Start


def start_of(job: JobSpec, found: Start | None) -> Start:
    """Return how the job's processes begin. ``found`` in its script counts unless the job names a launcher."""
    if found is None or job.launcher != "auto" or job.rendezvous != "static":
        return "ranks"
    return found


def refuse_number(job: JobSpec, start: Start, nproc: int | None) -> None:
    """Refuse a number of processes that a script which starts its own processes would ignore.

    ``nproc``: the number on the command line.

    Raises:
        UsageError: the number is greater than 1.
    """
    count = nproc if nproc is not None else job.nproc_per_node
    if start != RANKS and isinstance(count, int) and count > 1:
        program = job.script or job.module
        raise UsageError(
            f"job {job.name}: {program} starts its own processes, so {count} processes per node cannot be promised",
            hint="leave nproc_per_node (--nproc) out; or set launcher: torchrun to start the script once for each rank",
        )


def plain_argv(python: str, job: JobSpec) -> tuple[str, ...]:
    """Return the command line that starts the program without a launcher."""
    program = ("-m", job.module) if job.module else (job.script or "",)
    return (python, *program, *job.args)


def node_variables(node_rank: int, nodes: int, address: str, port: str) -> Mapping[str, str]:
    """Return the variables of torch's launcher for one process per host.

    Nothing listens on ``port``: the script opens the store there itself.
    """
    number, size = str(node_rank), str(nodes)
    variables = dict.fromkeys(("RANK", "NODE_RANK", "GROUP_RANK"), number)
    variables.update(WORLD_SIZE=size, GROUP_WORLD_SIZE=size, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    return {**variables, "MASTER_ADDR": address, "MASTER_PORT": port}


ALONE = "so each host trains alone"


def processes_text(job: JobSpec, facts: ScriptFacts | None, hosts: int) -> str | None:
    """Return the sentence that says how the processes begin; ``None``: torch's launcher starts them.

    ``facts``: the facts about the job's script.
    """
    start = start_of(job, facts.start if facts is not None else None)
    if facts is None or facts.spawning is None or start == RANKS:
        return None
    program, spawning = job.script or f"-m {job.module}", facts.spawning
    text = f"{program} starts its own processes ({spawning.place}: {spawning.call}), so it is started once on each host"
    if start == NODE:
        return f"{text}; there RANK is the number of the host, and WORLD_SIZE the number of hosts"
    if hosts < 2:
        return text
    why = f"they meet at {spawning.loopback}" if spawning.loopback else "it does not ask for RANK"
    return f"{text}; {why}, {ALONE}"
