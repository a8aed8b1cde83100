"""What every job here does in the same way: find its place, join the process group, say things, and end.

A job reads ``$RANK``, ``$LOCAL_RANK`` and ``$WORLD_SIZE``, which torch's launcher sets in each process. Started without
a launcher it is one process alone, so every script also runs as plain ``python SCRIPT``.
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
    """The job cannot continue; the message says why and what to do, in one line."""


class Refused(JobError):
    """Every rank finds the same fault in what was asked for and raises this; rank 0 alone prints it."""


class Place(NamedTuple):
    """Which of all processes this one is, and the device that it computes on."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def whole(least: int, most: int = 2**63 - 1) -> Any:
    """A parser of whole numbers in a range, for argparse."""

    def parse(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not between {least} and {most}")
        return number

    parse.__name__ = "whole number"
    return parse


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every job takes."""
    add = parser.add_argument
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto is nccl with CUDA, gloo without")
    add("--timeout", type=whole(1), default=1800, metavar="SECONDS", help="longest wait for the other processes")
    add("--local_rank", "--local-rank", type=whole(0), default=0, metavar="N", help="$LOCAL_RANK wins over it")


def say(text: str) -> None:
    """One line on stdout, at once and in one piece: print() may write the newline apart, after another rank's line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def join(args: argparse.Namespace) -> Place:
    """Join the process group of this launch: the first thing that every rank does.

    The timeout is that of every later collective: a rank that never comes is an error after it, not a hang.

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


# The process group lives as long as the process. A DDP model holds it too, and where the model goes last, its end joins
# gloo's threads without letting go of Python's lock, which one of them may be waiting for: with torch 1.13 one in seven
# trainings on a busy machine had ended and never exited.
_kept: List[Any] = []


def choose_device(backend: str, local_rank: int) -> torch.device:
    """This process's own GPU, or the CPU where there is none.

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
    """A barrier: returns when every rank has called it."""
    dist.barrier(device_ids=[device.index] if dist.get_backend() == "nccl" else None)


def gather(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values of every rank, of one shape on all, stacked by rank: (world size, ...), on the CPU."""
    mine = values.detach().to(device if dist.get_backend() == "nccl" else "cpu").contiguous()
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows).cpu()


class SaveRequest:
    """Whether somebody wants a checkpoint now: ``ddpctl checkpoint`` and ``ddpctl kill --save`` send SIGUSR1.

    The signal reaches the ranks at different moments, maybe in different steps. So it only sets a flag, and the ranks
    agree after each step: if one of them has it, all save that step.
    """

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGUSR1, self._note)
        # The flags travel over gloo, from the CPU: NCCL would have each step wait until the GPU has computed it.
        self._group = dist.new_group(backend="gloo") if dist.get_backend() == "nccl" else None

    def _note(self, *_: object) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """Whether all ranks save now; every rank calls this after every step."""
        flag = torch.tensor(int(self._asked))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        if flag:
            self._asked = False
        return bool(flag)


def run(main: Callable[[], None]) -> None:
    """Run the job to its end. ``record`` leaves an exception where torch's launcher finds it and names the rank."""
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    try:
        record(main)()
        leave(0)
    except Refused as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)  # rank 0 speaks first: a launcher ends all its ranks as soon as one has ended
            give_up("")
        give_up(f"{name}: {error}")
    except (JobError, OSError) as error:
        give_up(f"{name}: {error}")
    except Exception:
        give_up(traceback.format_exc())


def give_up(reason: str) -> NoReturn:
    """Ends this process at once: an orderly exit would wait for ranks that wait for this one."""
    if reason:
        print(reason, file=sys.stderr, flush=True)
    leave(1)


def leave(status: int) -> NoReturn:
    """Ends this process without Python's own clean-up, in which threads of torch can hang or abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(status)
