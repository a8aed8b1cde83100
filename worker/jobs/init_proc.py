"""Do these processes find each other? Every rank joins the process group, adds known numbers, and times a larger sum.

Start it like a training script. Each rank prints a line when it enters a phase, so that the last line of a rank that
hangs names the phase. At its end, or when a phase fails, a rank prints a JSON object on a line. Exit status 0: success.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import traceback
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Dict, Iterator, Sequence

STARTED = time.monotonic()  # before torch, whose import is the first phase

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: E402

IMPORTED = time.monotonic()

Report = Dict[str, Any]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto is nccl with CUDA, gloo without")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="longest wait in each phase")
    add("--size_mb", type=float, default=8.0, metavar="MB", help="size of the larger sum, 10^6 bytes")
    add("--repeats", type=int, default=3, metavar="N", help="runs; the best counts")
    add("--local_rank", "--local-rank", type=int, default=0, metavar="N", help="$LOCAL_RANK goes before it")
    args = parser.parse_args(argv)
    if "RANK" not in os.environ:
        parser.error("no RANK in the environment: start this with torchrun, or with ddpctl")
    return args


def new_report(args: argparse.Namespace) -> Report:
    """Return an empty report. ``phase`` is the present phase; ``seconds`` holds the finished phases."""
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", args.local_rank))
    return {
        "schema": 1,
        "ok": False,
        "rank": int(os.environ["RANK"]),
        "local_rank": local_rank,
        "world_size": int(os.environ["WORLD_SIZE"]),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "backend": args.backend if args.backend != "auto" else "nccl" if cuda else "gloo",
        "device": f"cuda:{local_rank}" if cuda else "cpu",
        "torch": str(torch.__version__),
        "phase": "import",
        "seconds": {"import": round(IMPORTED - STARTED, 4)},
        "mb_per_s": None,
        "error": None,
    }


def say(text: str) -> None:
    """Print a line at once and in one piece: print() may write the newline later, after another rank's line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def phase(report: Report, name: str) -> Iterator[None]:
    """Announce a phase and time it."""
    say(f"rank {report['rank']}: {name}")
    report["phase"] = name
    started = time.monotonic()
    yield
    report["seconds"][name] = round(time.monotonic() - started, 4)


def run_phases(report: Report, args: argparse.Namespace) -> None:
    """Run all phases in order. Every rank takes part in each phase."""
    device = torch.device(report["device"])
    with phase(report, "init_process_group"):
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(report["backend"], timeout=timedelta(seconds=args.timeout))
    with phase(report, "all_reduce"):
        check_sum(report["rank"], report["world_size"], device)
    with phase(report, "barrier"):
        dist.barrier(device_ids=[device.index] if report["backend"] == "nccl" else None)
    with phase(report, "bandwidth"):
        report["mb_per_s"] = round(measure(args.size_mb, args.repeats, device), 1)
    with phase(report, "destroy_process_group"):
        dist.destroy_process_group()
    report.update(ok=True, phase=None)


def check_sum(rank: int, world_size: int, device: torch.device) -> None:
    """Let every rank give its number plus one, and check that every rank gets the sum of 1 to world_size."""
    value = torch.tensor([rank + 1], device=device)
    dist.all_reduce(value)
    expected = world_size * (world_size + 1) // 2
    if int(value) != expected:
        raise RuntimeError(f"the sum of 1 to {world_size} came back as {int(value)}, not {expected}")


def measure(size_mb: float, repeats: int, device: torch.device) -> float:
    """Return the best rate of an all_reduce in MB/s: bytes of the tensor by seconds, not bytes on the links."""
    data = torch.empty(max(1, int(size_mb * 1e6 / 4)), dtype=torch.float32, device=device)
    best = float("inf")
    for _ in range(max(1, repeats)):
        data.fill_(1.0)
        started = time.monotonic()
        dist.all_reduce(data)
        if float(data[-1]) != dist.get_world_size():  # reading it waits for the GPU
            raise RuntimeError(f"a sum of {dist.get_world_size()} ones came back as {float(data[-1])}")
        best = min(best, time.monotonic() - started)
    return data.numel() * 4 / 1e6 / best


@record
def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole test, and print the report however it ends."""
    args = parse_args(argv)
    report = new_report(args)
    say("pid {pid} rank {rank} of {world_size} local_rank {local_rank} host {host}".format(**report))
    try:
        run_phases(report, args)
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    finally:
        say(json.dumps(report))


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        os._exit(1)  # an orderly exit would wait for ranks that wait for this rank
