"""The common parts of every job: find this process's place, join the process group, print, and end.

A job reads ``$RANK``, ``$LOCAL_RANK`` and ``$WORLD_SIZE``, which torch's launcher sets in each process. Without a
launcher a job is a single process, so every script also runs as plain ``python SCRIPT``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from typing import Any, Callable, List, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


class JobError(RuntimeError):
    """The job cannot continue. The message gives the reason and the next step, in a line."""


class Refused(JobError):
    """A fault in the request. Every rank finds the same fault and raises this; only rank 0 prints it."""


class Place(NamedTuple):
    """This process's place among all processes, and its device."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def whole(least: int, most: int = 2**63 - 1) -> Any:
    """Return a parser of whole numbers in a range, for argparse."""

    def parse(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not between {least} and {most}")
        return number

    parse.__name__ = "whole number"
    return parse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every job takes."""
    add = parser.add_argument
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto is nccl with CUDA, gloo without")
    add("--timeout", type=whole(1), default=1800, metavar="SECONDS", help="longest wait for the other processes")
    add("--local_rank", "--local-rank", type=whole(0), default=0, metavar="N", help="$LOCAL_RANK wins over it")


def say(text: str) -> None:
    """Print a line at once and in one piece: print() may write the newline later, after another rank's line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def join(args: argparse.Namespace) -> Place:
    """Join the process group of this launch, as the first thing that every rank does.

    The timeout applies to every later collective: if a rank never comes, the other ranks fail after it and do not hang.

    Raises:
        JobError: there is no device for this rank.
    """
    env = os.environ
    local_rank = int(env.get("LOCAL_RANK", args.local_rank))
    device = choose_device(args.backend, local_rank)
    backend = args.backend if args.backend != "auto" else "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=args.timeout)
    if "RANK" in env:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined,unused-ignore]
    _kept.append(dist.group.WORLD)
    return Place(dist.get_rank(), local_rank, dist.get_world_size(), device)


# Keeps the process group alive as long as the process. A DDP model holds the group as well. If the model is freed last,
# it joins gloo's threads without releasing Python's lock, for which a thread may be waiting: with torch 1.13, one in
# seven trainings on a busy machine finished but never exited.
_kept: List[Any] = []


def choose_device(backend: str, local_rank: int) -> torch.device:
    """Return this process's own GPU, or the CPU without CUDA.

    Raises:
        JobError: NCCL without CUDA, or more processes than GPUs. (With gloo several processes may share a GPU.)
    """
    if not torch.cuda.is_available():
        if backend == "nccl":
            raise JobError("the nccl backend needs CUDA, which this torch does not find here: use --backend gloo")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count and backend != "gloo":
        raise JobError(f"local rank {local_rank} has no GPU, {count} are visible here: start at most {count} processes")
    device = torch.device("cuda", local_rank % count)
    torch.cuda.set_device(device)
    return device


def wait_for_all(device: torch.device) -> None:
    """Return once every rank has called this (a barrier)."""
    dist.barrier(device_ids=[device.index] if dist.get_backend() == "nccl" else None)


def gather(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return every rank's values, stacked by rank: (world size, ...), on the CPU. All shapes must be equal."""
    mine = values.detach().to(device if dist.get_backend() == "nccl" else "cpu").contiguous()
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows).cpu()


class SaveRequest:
    """A request for a checkpoint: ``ddpctl checkpoint`` and ``ddpctl kill --save`` send SIGUSR1.

    The signal reaches the ranks at different times, and maybe in different steps. So it only sets a flag, and the ranks
    agree after each step: if the flag of any rank is set, all ranks save that step.
    """

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGUSR1, self._note)
        # The flags travel over gloo, from the CPU: with NCCL each step would wait for the GPU's computation.
        self._group = dist.new_group(backend="gloo") if dist.get_backend() == "nccl" else None

    def _note(self, *_: object) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """Return whether all ranks save now. Every rank calls this after every step."""
        flag = torch.tensor(int(self._asked))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        if flag:
            self._asked = False
        return bool(flag)


def run(main: Callable[[], None]) -> None:
    """Run the job to its end. ``record`` stores an exception for torch's launcher, which then names the rank."""
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    try:
        record(main)()
        leave(0)
    except Refused as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)  # rank 0 prints first: a launcher ends all its ranks as soon as a rank has ended
            give_up("")
        give_up(f"{name}: {error}")
    except (JobError, OSError) as error:
        give_up(f"{name}: {error}")
    except Exception:
        give_up(traceback.format_exc())


def give_up(reason: str) -> NoReturn:
    """End this process at once: an orderly exit would wait for ranks that wait for this rank."""
    if reason:
        print(reason, file=sys.stderr, flush=True)
    leave(1)


def leave(status: int) -> NoReturn:
    """End this process without Python's clean-up, in which torch's threads can hang or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(status)
