"""What a job measures of itself: lines of metrics, samples per second, and the share of time in communication."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy import Lazy

from .conftest import forked

torch = Lazy("torch")
metrics = Lazy("metrics")
dist = Lazy("torch.distributed")

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda span: (span[0], sum(span))), max_size=8)


@given(SPANS)
def test_the_union_counts_every_second_once(spans: list[tuple[int, int]]) -> None:
    assert metrics.union_s(spans) == len({second for begun, end in spans for second in range(begun, end)})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """$DDPCTL_METRICS is a file; a call gives the lines in it."""
    path = tmp_path / "rank-0.jsonl"
    monkeypatch.setenv("DDPCTL_METRICS", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that metrics.py sees: it stands still until the test moves it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_lines_are_appended(written: Any) -> None:
    metrics.write_metrics(step=1, loss=0.5)
    metrics.write_metrics(step=2)
    assert written() == [{"step": 1, "loss": 0.5}, {"step": 2}]


def test_without_ddpctl_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DDPCTL_METRICS", raising=False)
    monkeypatch.chdir(tmp_path)
    metrics.write_metrics(step=1)
    assert not list(tmp_path.iterdir())


def test_a_line_a_second_and_the_first_step_in_none(clock: SimpleNamespace, written: Any) -> None:
    meter = metrics.Meter()
    for seconds, samples in [(7.0, 1000), (0.4, 10), (0.4, 10), (0.4, 10), (0.5, 30), (0.7, 30)]:
        clock.now += seconds
        meter.step(samples, loss=torch.tensor(0.25))
    first, second = written()
    assert first == {"step": 4, "samples_per_s": pytest.approx(30 / 1.2), "loss": 0.25}
    assert second == {"step": 6, "samples_per_s": pytest.approx(60 / 1.2), "loss": 0.25}


def test_what_is_no_training_does_not_count(clock: SimpleNamespace, written: Any) -> None:
    meter = metrics.Meter()
    meter.step(10)
    clock.now += 0.5
    meter.step(10)
    clock.now += 60.0  # an evaluation
    meter.start()
    clock.now += 2.0
    meter.step(10)
    meter.write()  # no step since the last line: no new line
    assert written() == [{"step": 3, "samples_per_s": 5.0}]


@pytest.fixture
def parallel(alone: None) -> Any:
    """A DDP model of one rank; its gradients fill several buckets."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    return torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.01)


def backward(model: Any) -> None:
    """A backward pass."""
    model(torch.ones(2, 64)).sum().backward()


def test_the_share_is_of_the_time_since_the_last_line(clock: SimpleNamespace, written: Any, parallel: Any) -> None:
    meter = metrics.Meter(parallel)
    meter.step(1)
    for share in (0.5, 9.0):
        meter.communication._spans = [(torch.device("cpu"), 1.0, 1.0 + 2 * share)]
        clock.now += 2.0
        meter.step(1)
    assert [line["comm_share"] for line in written()] == [0.5, 1.0]


def test_every_bucket_is_timed_and_none_without_a_reduction(parallel: Any) -> None:
    timer = metrics.CommunicationTimer(parallel)
    backward(parallel)
    backward(parallel)  # the first pass has larger buckets
    assert len(timer._spans) > 2
    assert timer.take() > 0.0
    assert timer.take() == 0.0
    with parallel.no_sync():
        backward(parallel)
    assert timer.take() == 0.0


RANK = """
import copy, json, time
import torch
import torch.distributed as dist
import metrics
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
inputs = torch.randn(8, 128, generator=torch.Generator().manual_seed(rank))

def wrapped(group=None):
    return DistributedDataParallel(copy.deepcopy(model), process_group=group, bucket_cap_mb=0.1)

def gradients(parallel):
    parallel.zero_grad()
    parallel(inputs).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in parallel.parameters()])

def same(group=None):
    plain, timed = wrapped(group), wrapped(group)
    timer = metrics.CommunicationTimer(timed)
    pairs = [(gradients(plain), gradients(timed)) for _ in range(3)]  # after the first, DDP makes other buckets
    return timed, timer, all(torch.equal(*pair) for pair in pairs)

timed, timer, whole = same()
some = dist.new_group([0, 1])
part = same(some)[2] if rank < 2 else True
timer.take()
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for late in range(size):
        if rank == late:
            time.sleep(1.5)  # the others wait in their first bucket: long, next to what a busy machine adds to a step
        gradients(timed)
    seconds = timer.take()
events = [event.time_range for event in profiler.events() if event.name == "gloo:all_reduce"]
spans = [(event.start / 1e6, event.end / 1e6) for event in events]
profiled = metrics.union_s(spans)
dist.barrier()
print(json.dumps({
    "whole": whole, "part": part, "timed": seconds, "profiled": profiled, "buckets": len(spans),
    "sum": sum(end - begun for begun, end in spans),
}), flush=True)
dist.destroy_process_group()
"""


def test_three_ranks_get_the_same_gradients_and_the_profilers_time() -> None:
    """Three, because a third is no binary fraction: dividing by 3 and multiplying by 1/3 differ in the last bit."""
    done = forked(RANK, {}, {}, {}, preload="torch torch._dynamo")  # DDP imports the second
    assert done.status == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ranks) == 3
    for rank in ranks:
        assert rank["whole"], "DDP's own gradients, bit for bit"
        assert rank["part"], "and those of a model over a part of the ranks"
        assert rank["buckets"] > 3
        assert rank["sum"] > 1.2 * rank["profiled"], "buckets are under way at once"
        assert rank["timed"] > 0.9 * rank["profiled"], rank
        # A busy machine calls the timer late, which adds a little; counting each bucket by itself would give the sum.
        assert rank["timed"] - rank["profiled"] < (rank["sum"] - rank["profiled"]) / 2, rank
