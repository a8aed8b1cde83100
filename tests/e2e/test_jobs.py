"""Every job in the box, on two hosts of two processes each."""

from __future__ import annotations

import re

import pytest

from tests.e2e.site import Site, assert_nothing_runs
from tests.lab import Lab
from tests.lab.disk import CHECKOUT

JOBS = CHECKOUT / "worker" / "jobs"
SMALL_RESNET = ["--data_dir", "synthetic", "--train_size", "960", "--test_size", "200", "--width", "8"]
SMALL_RESNET += ["--batch_size", "8", "--learning_rate", "0.02"]
# name -> arguments for a short run, and what rank 0 says in the end
JOBS_OF_THE_BOX = {
    "init_proc": (["--size_mb", "1"], r'"ok": true'),
    "toy_ddp": (["--demo", "basic", "checkpoint", "model_parallel", "syncbn"], r"1 in DDP, 1 after the step"),
    "sampler": (["--samples", "91"], r"every sample exactly once, but twice: \d+ \(ranks 0 and 3\)"),
    "resnet_ddp": ([*SMALL_RESNET, "--num_epochs", "1"], r"epoch 1/1 loss \d"),
    "segmentation": (["--data_dir", "synthetic", "--num_epochs", "1", "--size", "32", "--batch_size", "2"], r"mIoU 0"),
    "allreduce_bench": (["--min_bytes", "4K", "--max_bytes", "64K", "--iters", "2"], r"parameter_server"),
    "fsdp_gpt": (["--steps", "10", "--layers", "1", "--width", "32"], r"step 10/10 loss \d"),
}
OLD = ["init_proc", "toy_ddp", "sampler", "resnet_ddp"]  # the others need a newer torch or Pillow
EPOCH = re.compile(r"epoch (\d+)/(\d+) loss (\S+) accuracy (\S+) ")


def add(site: Site, name: str, *args: str) -> None:
    site.keys["defaults"]["slots"] = 2
    site.only(0, 1)
    keys = {"script": f"{name}.py", "code": str(JOBS), "env": {"OMP_NUM_THREADS": "1"}}
    site.jobs[name] = {"args": list(args), **keys}


@pytest.fixture
def site(torch_site: Site) -> Site:
    """The jobs of the box compute."""
    return torch_site


@pytest.mark.parametrize("name", JOBS_OF_THE_BOX)
def test_job(site: Site, lab: Lab, name: str) -> None:
    args, said = JOBS_OF_THE_BOX[name]
    add(site, name, *args)
    done = site("up", "--job", name, timeout=250).ok()
    assert re.search(said, done.stdout), done.stdout
    assert_nothing_runs(lab)


@pytest.mark.parametrize("name", OLD)
def test_job_with_an_old_torch(old_site: Site, lab: Lab, name: str) -> None:
    args, said = JOBS_OF_THE_BOX[name]
    add(old_site, name, *args)
    done = old_site("up", "--job", name, timeout=250).ok()
    assert re.search(said, done.stdout), done.stdout
    assert_nothing_runs(lab)


def test_a_training_continues_after_a_kill(site: Site, lab: Lab) -> None:
    """The same losses, epoch for epoch, as those of a training that was never interrupted."""
    add(site, "whole", *SMALL_RESNET, "--num_epochs", "3")
    add(site, "parts", *SMALL_RESNET, "--num_epochs", "3", "--resume")
    for name in ("whole", "parts"):
        site.jobs[name]["script"] = "resnet_ddp.py"
    whole = EPOCH.findall(site("up", "--job", "whole", timeout=250).ok().stdout)
    site.up("parts")
    site.wait_for_output("parts", "epoch 1/3", timeout=120)
    site("kill", "parts").ok()
    rest = site("up", "--job", "parts", timeout=250).ok().stdout
    assert "resumed" in rest
    continued = EPOCH.findall(rest)
    assert continued
    assert continued == whole[-len(continued) :]
