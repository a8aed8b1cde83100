"""torchrun with the static rendezvous, the only rendezvous here: the ranks of a node, and the store of all nodes."""

from __future__ import annotations

import argparse
import os
import string
import sys
import tempfile

from . import ranks
from .elastic.multiprocessing.errors import record
from .store import Server, Store

RENDEZVOUS_S = 600.0
EXIT_BARRIER_S = 300.0
_ROLE = "default"


def parser() -> argparse.ArgumentParser:
    """torchrun's options, in both spellings; each can come from the environment as PET_NAME too."""
    made = argparse.ArgumentParser(description="the stand-in for torch's launcher")
    for name, kind, default in (
        ("nnodes", str, "1:1"),
        ("nproc-per-node", str, "1"),
        ("node-rank", int, 0),
        ("master-addr", str, "127.0.0.1"),
        ("master-port", int, None),
        ("max-restarts", int, 0),
        ("monitor-interval", float, 0.1),
        ("rdzv-backend", str, "static"),
        ("rdzv-endpoint", str, ""),
        ("rdzv-id", str, "none"),
        ("log-dir", str, None),
        ("redirects", str, "0"),
        ("tee", str, "0"),
        ("signals-to-handle", str, "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
        ("shutdown-timeout", int, None),
    ):
        key = name.replace("-", "_")
        given = os.environ.get(f"PET_{key.upper()}", default)
        made.add_argument(f"--{name}", *({f"--{key}"} - {f"--{name}"}), type=kind, default=given)
    for name in ("module", "no-python"):
        key = name.replace("-", "_")
        given = os.environ.get(f"PET_{key.upper()}", "0") == "1"
        also = {"-m"} if name == "module" else {f"--{key}"}
        made.add_argument(f"--{name}", *also, action="store_true", default=given)
    made.add_argument("training_script")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return made


def run(options: argparse.Namespace) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write("pt_elastic")  # as torch names itself: ddpctl knows a launcher by it
    nodes = _nodes(options)
    local_size = _local_size(options.nproc_per_node)
    if "OMP_NUM_THREADS" not in os.environ and local_size > 1:
        stars = "*" * 41
        notice = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your "
        for line in ("", stars, f"{notice}system being overloaded.", stars):
            ranks.say("W", line)
        os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = options.signals_to_handle
    program = _program(options)
    port = options.master_port
    server = Server(port or 0) if options.node_rank == 0 else None  # serves until this process ends
    port = port or (server.port if server else 29500)
    store = Store(options.master_addr, port, RENDEZVOUS_S)
    sizes = _agree(store, options.node_rank, nodes, local_size)
    environments = _environments(options, port, sizes)
    name = next((word for word in program[1:] if not word.startswith("-")), "") if len(program) > 1 else program[0]
    ranks.run(
        name if program[0] == sys.executable else program[0],
        [[_fill_in(word, local) for word in program] for local in range(local_size)],
        environments,
        signals=options.signals_to_handle,
        patience=_patience(options),
        interval=options.monitor_interval,
    )
    try:  # node 0 may end, and its store with it, before this node has the answer
        if store.add("exit", 1) == nodes:
            store.set("all have ended", True)
        store.wait("all have ended", EXIT_BARRIER_S)
    except RuntimeError as error:
        ranks.say("E", f"Error waiting on exit barrier: {error}")


def _nodes(options: argparse.Namespace) -> int:
    """How many nodes; refuses all that needs the real torch."""
    least, _, most = options.nnodes.partition(":")
    elastic = options.rdzv_backend != "static" or options.rdzv_endpoint or (most or least) != least
    if elastic or options.max_restarts or options.tee != "0" or options.redirects != "0":
        sys.exit("the stand-in for torch's launcher: static rendezvous only, no restarts, no redirects, no tee")
    return int(least)


def _local_size(wish: str) -> int:
    return (os.cpu_count() or 1) if wish in ("auto", "cpu") else int(wish)


def _patience(options: argparse.Namespace) -> float:
    if options.shutdown_timeout is not None:
        return float(options.shutdown_timeout)
    return float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30))


def _program(options: argparse.Namespace) -> list[str]:
    """Return the command of each rank, with the macros in it."""
    words = [] if options.no_python else [os.environ.get("PYTHON_EXEC", sys.executable), "-u"]
    words += ["-m"] if options.module else []
    words.append(options.training_script)
    if not getattr(options, "use_env", True):
        words.append("--local-rank=${local_rank}")
    return words + list(options.training_script_args)


def _fill_in(word: str, local_rank: int) -> str:
    return string.Template(word).safe_substitute(local_rank=local_rank)


def _agree(store: Store, node: int, nodes: int, mine: int) -> list[int]:
    """The number of ranks of every node, once all nodes have come."""
    store.set(f"ranks of {node}", mine)
    return [store.get(f"ranks of {number}") for number in range(nodes)]


def _environments(options: argparse.Namespace, port: int, sizes: list[int]) -> list[dict[str, str]]:
    """The variables of each rank of this node."""
    node = options.node_rank
    folder = options.log_dir or tempfile.mkdtemp(prefix="torchelastic_")
    os.makedirs(folder, exist_ok=True)
    folder = os.path.join(tempfile.mkdtemp(prefix=f"{options.rdzv_id}_", dir=folder), "attempt_0")
    found = []
    for local in range(sizes[node]):
        rank = str(sum(sizes[:node]) + local)
        os.makedirs(os.path.join(folder, str(local)))
        found.append(
            {
                "LOCAL_RANK": str(local),
                "RANK": rank,
                "GROUP_RANK": str(node),
                "ROLE_RANK": rank,
                "ROLE_NAME": _ROLE,
                "LOCAL_WORLD_SIZE": str(sizes[node]),
                "WORLD_SIZE": str(sum(sizes)),
                "GROUP_WORLD_SIZE": str(len(sizes)),
                "ROLE_WORLD_SIZE": str(sum(sizes)),
                "MASTER_ADDR": options.master_addr,
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "0",
                "TORCHELASTIC_RUN_ID": options.rdzv_id,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_ERROR_FILE": os.path.join(folder, str(local), "error.json"),
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            }
        )
    return found


@record
def main() -> None:
    run(parser().parse_args())


if __name__ == "__main__":
    main()
