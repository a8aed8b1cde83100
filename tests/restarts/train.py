"""A real training, and the right result at each step."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

STEPS_FOLDER = "/root/steps"  # one file a host, job and attempt
FAULT = "/root/fault"  # what a rank on the host is to do; /tmp/enough: it may end

# Full batches in double precision: the loss of a step is the same with one rank, two or three, but for rounding. Each
# rank writes down the loss of every step, and when it was, by a clock that all hosts of a lab share.
TRAIN = """\
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

place, last, pace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
outputs = os.environ.get("DDPCTL_OUTPUT_DIR", place)
os.makedirs(place, exist_ok=True)
x = torch.randn(60, 8)
y = torch.sin(x @ torch.randn(8, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
velocity = [torch.zeros_like(one) for one in model.parameters()]  # SGD by hand: torch.optim takes 1.5 s to import
saves = {int(name[5:-3]): name for name in os.listdir(folder) if name.startswith("step_") and name.endswith(".pt")}
step = 0
if saves:
    state = torch.load(os.path.join(folder, saves[max(saves)]))
    model.load_state_dict(state["model"])
    velocity = state["velocity"]
    step = state["step"]
ddp = DistributedDataParallel(model)
name = ".".join([os.environ.get("DDPCTL_JOB", "job"), os.environ.get("DDPCTL_ATTEMPT", "0")])
steps = open(os.path.join(place, name), "a", buffering=1)
steps.write("resumed %d\\n" % step)


def fault():
    with open("/root/fault") as file:
        what = file.read().strip()
    if what == "raise":
        os.unlink("/root/fault")
    if what.startswith("raise"):
        raise ValueError("batch %d is broken" % step)
    if what == "eat":
        os.unlink("/root/fault")
        ballast = []
        while True:
            ballast.append(os.urandom(1 << 24))


def save():
    with open(os.path.join(outputs, "sample.part"), "wb") as file:
        file.write(os.urandom(1 << 16))
    os.replace(os.path.join(outputs, "sample.part"), os.path.join(outputs, "sample.bin"))
    aside = os.path.join(folder, "step.part")
    torch.save({"model": model.state_dict(), "velocity": velocity, "step": step}, aside)
    os.replace(aside, os.path.join(folder, "step_%d.pt" % step))


enough = 0.0
while step < last and not enough:
    if os.path.exists("/root/fault"):
        fault()
    step += 1
    model.zero_grad()
    part = ((ddp(x[rank::world]) - y[rank::world]) ** 2).sum() / len(x)
    (part * world).backward()
    with torch.no_grad():
        for one, speed in zip(model.parameters(), velocity):
            speed.mul_(0.9).add_(one.grad)
            one.sub_(0.02 * speed)
    told = torch.stack([part.detach(), torch.tensor(float(os.path.exists("/tmp/enough")))])
    dist.all_reduce(told)
    loss, enough = told.tolist()
    steps.write("%d %.17g %.3f\\n" % (step, loss, time.monotonic()))
    if step % 10 == 0 and rank == 0:
        save()
    time.sleep(pace)
print("rank", rank, "ends at step", step, flush=True)
dist.barrier()
os._exit(0)  # Python's own end can hang in torch's threads, which is not what is tried here
"""


def uninterrupted(folder: Path, python: Path, steps: int) -> dict[int, float]:
    """The loss of every step of the same training, in one process that nothing happens to."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = {**os.environ, **alone, "DDPCTL_CHECKPOINT_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    argv = [str(python), str(folder / "train.py"), str(folder / "steps"), str(steps), "0"]
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return {step: loss for step, loss, _ in Steps.read((folder / "steps" / "job.0").read_text()).rows}


class Steps:
    """The lines of a single rank about a single attempt."""

    def __init__(self, resumed: int | None, rows: list[tuple[int, float, float]]) -> None:
        self.resumed = resumed
        self.rows = rows  # step, loss, time

    @staticmethod
    def read(text: str) -> Steps:
        """A last line that is cut off does not count."""
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        resumed = [int(words[1]) for words in lines if words[0] == "resumed"]
        rows = [(int(words[0]), float(words[1]), float(words[2])) for words in lines if len(words) == 3]
        return Steps(resumed[0] if resumed else None, rows)
