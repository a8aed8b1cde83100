"""Do these processes find each other? Every rank joins the process group, adds up known numbers and times a larger sum.

Started like any training script. Each rank prints a line as it enters each phase, so that the last line of a rank that
hangs tells where; and at the end, or when a phase fails, one JSON object on one line. Exit status 0: all was right.
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
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto is nccl with CUDA, gloo without")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="longest wait in each phase")
    add("--size_mb", type=float, default=8.0, metavar="MB", help="size of the larger sum, 10^6 bytes")
    add("--repeats", type=int, default=3, metavar="N", help="how often; the best one counts")
    add("--local_rank", "--local-rank", type=int, default=0, metavar="N", help="$LOCAL_RANK goes before it")
    args = parser.parse_args(argv)
    if "RANK" not in os.environ:
        parser.error("no RANK in the environment: start this with torchrun, or with ddpctl")
    return args


def new_report(args: argparse.Namespace) -> Report:
    """Who this is, with nothing done yet. ``phase`` is the one under way; ``seconds`` holds those that are over."""
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
    """One line on stdout, at once and in one piece: print() may write the newline apart, after another rank's line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def phase(report: Report, name: str) -> Iterator[None]:
    """Announces a phase and times it."""
    say(f"rank {report['rank']}: {name}")
    report["phase"] = name
    started = time.monotonic()
    yield
    report["seconds"][name] = round(time.monotonic() - started, 4)


def run_phases(report: Report, args: argparse.Namespace) -> None:
    """All phases in order, each of them met by every rank."""
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
    """Every rank gives its number plus one; all must get the sum of 1 to world_size."""
    value = torch.tensor([rank + 1], device=device)
    dist.all_reduce(value)
    expected = world_size * (world_size + 1) // 2
    if int(value) != expected:
        raise RuntimeError(f"the sum of 1 to {world_size} came back as {int(value)}, not {expected}")


def measure(size_mb: float, repeats: int, device: torch.device) -> float:
    """Best rate of an all_reduce in MB/s: bytes of the tensor by seconds, whatever the links carry for it."""
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
    """The whole test; the report is printed however it ends."""
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
        os._exit(1)  # an orderly end would wait for ranks that wait for this one
