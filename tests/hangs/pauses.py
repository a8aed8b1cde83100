"""The text of programs that pause for long and do not hang: a healthy job must never be called hung. Pure.

A program gets three arguments: the length of its pause in seconds, the rank that is slow, and the name of the job.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

BUSY_STALL = 0.5  # of the pause: a rank that uses its core is given three times the stall
ASLEEP_STALL = 1.5  # of the pause: a rank that sleeps for a while looks like a rank that sleeps for ever

HEAD = """\
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PAUSE_S, SLOW, NAME = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
STEP_S = 0.15


def begin_pause():
    # For the campaign, which calls the doctor inside the pause.
    print("rank", RANK, "pauses", flush=True)
    open(f"/tmp/{NAME}.pause", "a").close()


def compute(seconds):
    # Work for one core: matrix products in C, and a loop in Python.
    end, matrix, total = time.monotonic() + seconds, torch.randn(128, 128), 0
    while time.monotonic() < end:
        matrix = torch.tanh(matrix @ matrix)
        total += sum(number * number for number in range(500))
    return total


"""

MAIN = """\
def train_step(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(STEP_S)
    metric = loss.detach().clone()
    dist.all_reduce(metric)
    return float(metric) / WORLD


def main():
    #FIRST
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for step in range(6):
            loss = train_step(model, optimizer)
            if RANK == 0:
                print("epoch", epoch, "step", step, "loss", loss, flush=True)
        if epoch == 0:
            begin_pause()
            pause(model, optimizer)
        dist.barrier()
    dist.destroy_process_group()


"""

# The program's own end: Python's can hang in torch's threads, which is not what is measured here.
TAIL = """\
main()
sys.stdout.flush()
os._exit(0)
"""


@dataclass(frozen=True)
class Pause:
    """A healthy program. `lines` is the body of `pause(model, optimizer)`."""

    name: str
    lines: str = "pass"
    functions: str = ""
    first: str = ""  # before the process group
    asleep: bool = False  # a rank sleeps through the pause and uses no core
    busy_machine: bool = False  # the driver keeps all cores busy

    @property
    def stall(self) -> float:
        """The job key doctor.stall, as a share of the pause."""
        return ASLEEP_STALL if self.asleep else BUSY_STALL

    @property
    def text(self) -> str:
        body = f"def pause(model, optimizer):\n{textwrap.indent(self.lines, '    ').rstrip()}\n\n\n"
        first = textwrap.indent(self.first, "    ").lstrip() or "pass"
        return HEAD + self.functions + body + MAIN.replace("#FIRST", first) + TAIL


SAVE = """\
def save_checkpoints(model):
    end, size = time.monotonic() + PAUSE_S, 1 << 16
    while time.monotonic() < end:
        path = os.path.expanduser(f"~/{NAME}.pt")
        with open(path, "wb") as file:
            torch.save({"model": model.state_dict(), "moments": torch.randn(size)}, file)
            file.flush()
            os.fsync(file.fileno())
        size = min(size * 2, 1 << 23)  # 32 MB
    os.unlink(path)


"""
EVALUATE = """\
def evaluate(network):
    end, total, count = time.monotonic() + PAUSE_S, 0.0, 0
    with torch.no_grad():
        while time.monotonic() < end:
            total += float(network(torch.randn(512, 16)).square().mean())
            count += 1
    print("mean", total / count, flush=True)


"""
BATCHES = """\
def train_alone(network, seconds):
    end, batches = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        loss = network(torch.randn(256, 16)).square().mean()
        loss.backward()
        compute(0.1)
        batches += 1
    network.zero_grad()
    print("rank", RANK, "did", batches, "batches", flush=True)


"""
SLOW_DATA = """\
class SlowData(Dataset):
    # Six items: the slow rank waits for each of its own.
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if RANK == SLOW:
            time.sleep(PAUSE_S / 6)
        return torch.randn(16)


"""
BUSY_DATA = """\
class SlowData(Dataset):
    # The first item of the slow rank takes its worker the whole pause.
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if RANK == SLOW and index == 0:
            compute(PAUSE_S)
        return torch.randn(16)


"""
LOAD = """\
for item in DataLoader(SlowData(), batch_size=1, num_workers=1):
    train_step(model, optimizer)
"""
BATCH_AFTER_BATCH = """\
end = time.monotonic() + PAUSE_S
go = torch.ones(1)
while go.item():
    train_step(model, optimizer)
    go = torch.tensor([float(time.monotonic() < end)])
    dist.broadcast(go, src=0)
"""
JOIN = """\
steps = int(PAUSE_S / 0.3) if RANK == SLOW else 5
with Join([model]):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(0.25)
"""
ACCUMULATE = """\
end = time.monotonic() + (PAUSE_S if RANK == SLOW else PAUSE_S / 4)
with model.no_sync():
    while time.monotonic() < end:
        model(torch.randn(256, 16)).square().mean().backward()
model(torch.randn(8, 16)).square().mean().backward()
optimizer.step()
"""
MONITORED = """\
if RANK == SLOW:
    compute(PAUSE_S)
dist.monitored_barrier(timeout=datetime.timedelta(hours=1))
"""
ASYNC = """\
if RANK == SLOW:
    compute(PAUSE_S)
works = [dist.all_reduce(torch.ones(1000 + number), async_op=True) for number in range(4)]
compute(1.0)
for work in works:
    work.wait()
"""
COMPILE = """\
import torch._dynamo
import torch._inductor

compute(PAUSE_S * (1 + RANK / WORLD / 10))
"""

PROGRAMS: dict[str, Pause] = {
    pause.name: pause
    for pause in (
        Pause("checkpoint-asleep", "if RANK == 0:\n    time.sleep(PAUSE_S)", asleep=True),
        Pause("checkpoint-saves", "if RANK == 0:\n    save_checkpoints(model)", SAVE),
        Pause("evaluation", "if RANK == 0:\n    evaluate(model.module)", EVALUATE),
        Pause("preparation", first="begin_pause()\nif RANK == SLOW:\n    compute(PAUSE_S)"),
        Pause("preparation-all", first="begin_pause()\ncompute(PAUSE_S)"),
        Pause("first-step", "if RANK == SLOW:\n    compute(PAUSE_S)\ntrain_step(model, optimizer)"),
        Pause("uneven-batches", "train_alone(model.module, PAUSE_S * (2 if RANK == SLOW else 1))", BATCHES),
        Pause("overloaded", BATCH_AFTER_BATCH, busy_machine=True),
        Pause("slow-loader", LOAD, SLOW_DATA),
        Pause("busy-loader", LOAD, BUSY_DATA),
        Pause("compile", COMPILE),
        Pause("join", JOIN),
        Pause("accumulation", ACCUMULATE),
        Pause("monitored-barrier", MONITORED),
        Pause("async", ASYNC),
    )
}


@dataclass(frozen=True)
class Run:
    """A healthy job."""

    number: int
    program: str
    hosts: int
    slow: int  # rank
    looks: tuple[float, ...]  # when the doctor is called: shares of the pause, from its beginning


def plan(seed: int, number: int, programs: Sequence[str] = (), looks: int = 3) -> list[Run]:
    """Every program equally often; every fourth on four hosts."""
    return [_one_run(seed, index, sorted(programs or PROGRAMS), looks) for index in range(number)]


def _one_run(seed: int, number: int, programs: Sequence[str], looks: int) -> Run:
    bag, place = divmod(number, len(programs))
    name = random.Random(f"{seed} bag {bag}").sample(programs, len(programs))[place]
    dice = random.Random(f"{seed} healthy {number}")
    hosts = dice.choice((2, 2, 2, 4))
    when = sorted(round(dice.uniform(-0.1, 1.1), 2) for _ in range(looks))
    return Run(number, name, hosts, dice.randrange(2 * hosts), tuple(when))
