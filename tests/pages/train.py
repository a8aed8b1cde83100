"""A small training for reports: real DDP, a line of metrics from every rank at every tenth step, a checkpoint at every
hundredth. `train.py STEPS [FAILING_STEP]`: at that step of the first attempt rank 1 is killed."""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps, failing = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
saves = sorted(name for name in os.listdir(folder) if name.startswith("step_"))
begin = int(saves[-1][5:-3]) if saves else 0
if saves:
    model.load_state_dict(torch.load(os.path.join(folder, saves[-1])))
trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
data = torch.Generator().manual_seed(begin + rank)
print("from step", begin, flush=True)
for step in range(begin + 1, steps + 1):
    since = time.monotonic()
    x = torch.randn(32, 8, generator=data)
    y = (x.sum(1, keepdim=True)).sin() + 0.1 * torch.randn(32, 1, generator=data)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(trained(x), y)
    torch.autograd.backward(loss)
    optimizer.step()
    if step == failing and rank == 1 and os.environ["DDPCTL_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if step % 10 == 0:
        line = {"step": step, "loss": loss.item(), "samples_per_s": 32 / (time.monotonic() - since)}
        with open(os.environ["DDPCTL_METRICS"], "a") as file:
            file.write(json.dumps(line) + "\n")
    if step % 100 == 0 and rank == 0:
        torch.save(model.state_dict(), os.path.join(folder, "aside.part"))
        os.replace(os.path.join(folder, "aside.part"), os.path.join(folder, f"step_{step:06d}.pt"))
    time.sleep(0.005)
dist.destroy_process_group()
