"""What the ranks of a round do: they go on until there is a file /tmp/enough in the host."""

from __future__ import annotations

ENOUGH = "/tmp/enough"

PLAIN = """\
import os, time
print("rank", os.environ["RANK"], "is up", flush=True)
while not os.path.exists("/tmp/enough"):
    time.sleep(0.1)
"""

# Any host's file ends it for all: they agree on that by a collective of their own.
TORCH = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("rank", os.environ["RANK"], "is up", flush=True)
enough = torch.zeros(1)
while not enough.item():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    enough = torch.tensor([float(os.path.exists("/tmp/enough"))])
    dist.all_reduce(enough)
    time.sleep(0.05)
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # Python's own end can hang in torch's threads, which is not what is tested here
"""
