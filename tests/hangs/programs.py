"""The text of programs that hang: a small training loop, with a single error in it.

A program gets three arguments: the step of the hang, the odd ranks (`1` or `1,2`) and the name of the job. The lines
at which the odd ranks may stand carry the comment `# HANG`. Every rank writes the time of each finished step to
`/tmp/NAME.RANK`, so that the campaign knows when the last progress was.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

MARK = "# HANG"

HEAD = """\
import ctypes
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEP, ODD, NAME = int(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")], sys.argv[3]
BATCH, STEP_S = 4, 0.15


def write_time(name):
    with open(f"/tmp/{NAME}.new{RANK}", "w") as file:
        file.write(str(time.time()))
    os.replace(file.name, f"/tmp/{NAME}.{name}")


"""

DATA = """\
class Samples(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        #LOAD
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(16, generator=generator)
        return inputs, inputs.sum().view(1)


#FUNCTIONS
"""

# The parts of the loop that both frames have; #NAME is where a hang puts its own lines.
DDP = """\
def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=WORKERS)
    #SETUP
    for step, (inputs, targets) in enumerate(loader):#LOADER
        odd = RANK in ODD and step == STEP
        #EARLY
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)
        metric = loss.detach().clone()
        #LATE
        #REDUCE
        dist.barrier()#BARRIER
        write_time(RANK)
        if RANK == 0:
            print("step", step, "loss", float(metric) / WORLD, flush=True)
    dist.destroy_process_group()


main()
"""

BARE = """\
def average_gradients(network):
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=WORKERS)
    #SETUP
    for step, (inputs, targets) in enumerate(loader):#LOADER
        odd = RANK in ODD and step == STEP
        #EARLY
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(inputs), targets)
        loss.backward()
        average_gradients(network)
        optimizer.step()
        time.sleep(STEP_S)
        metric = loss.detach().clone()
        #LATE
        #REDUCE
        dist.barrier()#BARRIER
        write_time(RANK)
        if RANK == 0:
            print("step", step, "loss", float(metric) / WORLD, flush=True)
    dist.destroy_process_group()


main()
"""

FRAMES = {"ddp": DDP, "bare": BARE}


@dataclass(frozen=True)
class Parts:
    """The lines of a hang, each for its place in the frame; `# HANG` marks where the odd ranks stand."""

    functions: str = ""
    setup: str = ""  # before the first step
    load: str = ""  # in __getitem__
    early: str = ""  # before forward: the other ranks wait in backward
    late: str = ""  # after the optimizer: the other ranks wait in the all_reduce of the metric
    reduce: str = "dist.all_reduce(metric)"
    loader_marked: bool = False  # the odd rank may stand at the loop's head
    barrier_marked: bool = False
    workers: int = 0


def program(frame: str, parts: Parts) -> str:
    """The Python text of a hang in a frame, `ddp` or `bare`."""
    text = HEAD + DATA + FRAMES[frame]
    for place in ("functions", "setup", "load", "early", "late", "reduce"):
        text = _put(text, f"#{place.upper()}", getattr(parts, place))
    for place, marked in (("#LOADER", parts.loader_marked), ("#BARRIER", parts.barrier_marked)):
        text = text.replace(place, f"  {MARK}" if marked else "")
    return text.replace("WORKERS", str(parts.workers))


def marked_lines(text: str) -> frozenset[int]:
    """The numbers, from 1, of the lines at which an odd rank may stand."""
    return frozenset(number for number, line in enumerate(text.splitlines(), 1) if MARK in line)


def _put(text: str, place: str, lines: str) -> str:
    """Replace the line that is `place` by these lines, at its indentation; by nothing where there are no lines."""
    found = []
    for line in text.splitlines():
        if line.strip() != place:
            found.append(line)
        elif lines:
            found += textwrap.indent(lines, line[: len(line) - len(line.lstrip())]).rstrip().splitlines()
    return "\n".join(found) + "\n"
