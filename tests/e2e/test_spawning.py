"""Scripts that start their own processes, as tutorials show them: on each host, without the variables of a rank."""

from __future__ import annotations

import pytest

from tests.e2e.site import Site, assert_nothing_runs
from tests.lab import Lab

HEAD = """\
import os, sys, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(4, 10)), torch.randn(4, 5)).backward()
    optimizer.step()

"""
BASIC = (
    HEAD
    + """
def demo_basic(rank, world_size):
    setup(rank, world_size)
    model = DDP(nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(3):
        step(model, optimizer)
    print(f"trained {rank} {dist.get_world_size()} {sorted(set(os.environ) & {'RANK'})}\\n", end="")
    dist.destroy_process_group()


def run_demo(demo, world_size):
    mp.spawn(demo, args=(world_size,), nprocs=world_size, join=True)


if __name__ == "__main__":
    run_demo(demo_basic, 2)
"""
)
CHECKPOINT = (
    HEAD
    + """
def demo_checkpoint(rank, world_size):
    setup(rank, world_size)
    model = DDP(nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    path = os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "model.pt")
    step(model, optimizer)
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    model.load_state_dict(torch.load(path, map_location="cpu"))
    step(model, optimizer)
    dist.barrier()
    print(f"trained {rank} {dist.get_world_size()} {sorted(set(os.environ) & {'RANK'})}\\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(demo_checkpoint, args=(2,), nprocs=2)
"""
)
TWO_PROCESSES = """\
import os
import torch
import torch.distributed as dist
from torch.multiprocessing import Process


def run(rank, size):
    tensor = torch.ones(1) * rank
    dist.all_reduce(tensor)
    assert tensor.item() == 1
    print(f"trained {rank} {dist.get_world_size()} {sorted(set(os.environ) & {'RANK'})}\\n", end="", flush=True)


def init_process(rank, size, fn, backend="gloo"):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29400"
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)


if __name__ == "__main__":
    size = 2
    processes = []
    for rank in range(size):
        p = Process(target=init_process, args=(rank, size, run))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
"""
ADDRESS = """\
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world_size):
    dist.init_process_group("gloo", init_method="tcp://localhost:23456", rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == 3
    print(f"trained {rank} {dist.get_world_size()} {sorted(set(os.environ) & {'RANK'})}\\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, nprocs=2, args=(2,))
"""
ACROSS_HOSTS = """\
import argparse, os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main_worker(local, per_node, args):
    rank = int(os.environ["RANK"]) * per_node + local
    world_size = int(os.environ["WORLD_SIZE"]) * per_node
    dist.init_process_group(args.dist_backend, init_method="env://", rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == 10
    print(f"trained {rank} {world_size} {os.environ['WORLD_SIZE']}\\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist-backend", default="gloo")
    mp.spawn(main_worker, nprocs=2, args=(2, parser.parse_args()))
"""
COVERED = pytest.mark.full(
    covered_by="tests/e2e/test_spawning.py::test_a_script_that_starts_its_own_processes_trains_on_each_host"
)
PROGRAMS = {"basic": BASIC, "checkpoint": CHECKPOINT, "two_processes": TWO_PROCESSES, "address": ADDRESS}


@pytest.mark.parametrize(
    "name", ["basic", *(pytest.param(name, marks=COVERED) for name in PROGRAMS if name != "basic")]
)
def test_a_script_that_starts_its_own_processes_trains_on_each_host(torch_site: Site, lab: Lab, name: str) -> None:
    site = torch_site.only(0, 1)
    done = site("up", "--job", site.job(name, PROGRAMS[name], env={"OMP_NUM_THREADS": "1"}), timeout=180).ok()
    lines = site("tail", name, "-n", "all", "--no-fold").ok().stdout.splitlines()
    found = sorted(line for line in lines if "trained" in line)
    want = [f"{host}:{rank} | trained {one} 2 []" for rank, host in enumerate(("node0", "node1")) for one in (0, 1)]
    assert found == want, lines
    assert f"{name}.py starts its own processes ({name}.py:" in done.stderr
    assert "each host trains alone" in " ".join(done.stderr.split())
    assert_nothing_runs(lab)


@pytest.mark.full(
    covered_by="tests/e2e/test_spawning.py::test_a_script_that_starts_its_own_processes_trains_on_each_host"
)
def test_a_script_that_asks_for_its_host_trains_on_all_of_them(torch_site: Site, lab: Lab) -> None:
    site = torch_site.only(0, 1)
    done = site("up", "--job", site.job("across", ACROSS_HOSTS, env={"OMP_NUM_THREADS": "1"}), timeout=180).ok()
    found = sorted(line.partition("trained ")[2] for line in done.stdout.splitlines() if "trained" in line)
    assert found == [f"{rank} 4 2" for rank in range(4)], done.stdout
    assert "RANK is the number of the host" in " ".join(done.stderr.split())
    assert_nothing_runs(lab)
