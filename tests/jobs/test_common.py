"""How a job finds its place and its device."""

from __future__ import annotations

import argparse

import pytest

from tests.lazy import Lazy

from .conftest import forked

torch = Lazy("torch")
common = Lazy("common")


@pytest.mark.parametrize(
    "given", [["--local_rank=3"], ["--local-rank=3"], ["--local_rank", "3"], ["--local-rank", "3"]]
)
def test_both_spellings_of_the_local_rank(alone: None, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    parser = argparse.ArgumentParser()
    common.add_options(parser)
    args = parser.parse_args([*given, "--backend", "gloo"])
    assert common.join(args)[:3] == (0, 3, 1)
    torch.distributed.destroy_process_group()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert common.join(args)[:3] == (0, 1, 1)


def test_nccl_without_cuda_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    with pytest.raises(common.JobError, match="the nccl backend needs CUDA"):
        common.choose_device("nccl", 0)


def test_more_processes_than_gpus_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(common.JobError, match="local rank 2 has no GPU, 2 are visible here"):
        common.choose_device("auto", 2)


ASKED = """
import os, signal, torch.distributed as dist
from common import SaveRequest, say
dist.init_process_group("gloo")
rank, request, agreed = dist.get_rank(), SaveRequest(), []
for step in range(1, 9):
    if (rank, step) in ((1, 3), (0, 6), (2, 6)):
        os.kill(os.getpid(), signal.SIGUSR1)
    if request.agreed():
        agreed.append(step)
say(f"rank {rank} saves at {agreed}")
"""


def test_ranks_that_are_asked_at_different_moments_save_after_the_same_step() -> None:
    done = forked(ASKED, {}, {}, {})
    assert done.status == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} saves at [3, 6]" for rank in range(3)]
