"""Every job in the box, on two hosts of two processes each."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e.site import Site, assert_nothing_runs
from tests.lab import Lab
from tests.lab.disk import CHECKOUT

JOBS = CHECKOUT / "worker" / "jobs"
SMALL_RESNET = ["--data_dir", "synthetic", "--train_size", "960", "--test_size", "200", "--width", "8"]
SMALL_RESNET += ["--batch_size", "8", "--learning_rate", "0.02"]
# name -> arguments for a short run, the last words of rank 0, and the test that runs the job without ddpctl
JOBS_OF_THE_BOX = {
    "init_proc": (
        ["--size_mb", "1"],
        r'"ok": true',
        "test_launch.py::test_init_proc_reports_every_phase_of_every_rank",
    ),
    "toy_ddp": (
        ["--demo", "basic", "checkpoint", "model_parallel", "syncbn"],
        r"1 in DDP, 1 after the step",
        "test_toy_ddp.py::test_all_demos_on_two_ranks_show_what_a_hand_computes",
    ),
    "sampler": (
        ["--samples", "91"],
        r"every sample exactly once, but twice: \d+ \(ranks 0 and 3\)",
        "test_sampler.py::test_two_ranks_print_one_table",
    ),
    "resnet_ddp": (
        [*SMALL_RESNET, "--num_epochs", "1"],
        r"epoch 1/1 loss \d",
        "test_resnet_ddp.py::test_one_line_an_epoch",
    ),
    "segmentation": (
        ["--data_dir", "synthetic", "--num_epochs", "1", "--size", "32", "--batch_size", "2"],
        r"mIoU 0",
        "test_segmentation.py::test_two_ranks_and_one_process_do_the_same_work",
    ),
    "allreduce_bench": (
        ["--min_bytes", "4K", "--max_bytes", "64K", "--iters", "2"],
        r"parameter_server",
        "test_allreduce_bench.py::test_two_ranks_fill_the_table",
    ),
    "fsdp_gpt": (
        ["--steps", "10", "--layers", "1", "--width", "32"],
        r"step 10/10 loss \d",
        "test_fsdp_gpt.py::test_fsdp_and_ddp_do_the_same_and_hold_different_amounts",
    ),
}
OLD = ["init_proc", "toy_ddp", "sampler", "resnet_ddp"]  # the other jobs need a newer torch or Pillow


def beside(name: str) -> Any:
    """A job with a test of its own that is enough on most days."""
    return pytest.param(name, marks=pytest.mark.full(covered_by=f"tests/jobs/{JOBS_OF_THE_BOX[name][2]}"))


EPOCH = re.compile(r"epoch (\d+)/(\d+) loss (\S+) accuracy (\S+) ")


def add(site: Site, name: str, *args: str) -> None:
    site.keys["defaults"]["slots"] = 2
    site.only(0, 1)
    keys = {"script": f"{name}.py", "code": str(JOBS), "env": {"OMP_NUM_THREADS": "1"}}
    site.jobs[name] = {"args": list(args), **keys}


@pytest.mark.parametrize("name", list(map(beside, JOBS_OF_THE_BOX)))
def test_job(torch_site: Site, lab: Lab, name: str) -> None:
    args, said, _ = JOBS_OF_THE_BOX[name]
    add(torch_site, name, *args)
    done = torch_site("up", "--job", name, timeout=250).ok()
    assert re.search(said, done.stdout), done.stdout
    assert_nothing_runs(lab)


@pytest.mark.parametrize("name", list(map(beside, OLD)))
def test_job_with_an_old_torch(old_site: Site, lab: Lab, name: str) -> None:
    args, said, _ = JOBS_OF_THE_BOX[name]
    add(old_site, name, *args)
    done = old_site("up", "--job", name, timeout=250).ok()
    assert re.search(said, done.stdout), done.stdout
    assert_nothing_runs(lab)


@pytest.mark.full(covered_by="tests/jobs/test_resnet_ddp.py::test_a_resumed_training_ends_as_one_that_never_stopped")
def test_a_training_continues_after_a_kill(torch_site: Site, lab: Lab) -> None:
    """The losses equal the losses of a training that was never interrupted, epoch for epoch."""
    site = torch_site

    def add_training(name: str, epochs: int, *args: str) -> None:
        add(site, name, *SMALL_RESNET, "--num_epochs", str(epochs), *args)
        site.jobs[name]["script"] = "resnet_ddp.py"

    add_training("parts", 1000, "--resume")
    site.up("parts")
    site.wait_for_output("parts", "epoch 1/1000", timeout=120)
    site("kill", "parts").ok()
    done = EPOCH.findall(site("tail", "parts", "--rank", "0", "-n", "all").ok().stdout)
    epochs = int(done[-1][0]) + 2
    add_training("parts", epochs, "--resume")
    rest = site("up", "--job", "parts", timeout=250).ok().stdout
    assert "resumed" in rest
    add_training("whole", epochs)
    whole = EPOCH.findall(site("up", "--job", "whole", timeout=250).ok().stdout)
    continued = EPOCH.findall(rest)
    assert continued
    assert continued == whole[-len(continued) :]
