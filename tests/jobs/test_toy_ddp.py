"""The demos of a single DDP step against values computed here with plain tensor math: no DDP, no autograd, no
BatchNorm.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import Lazy

from .conftest import JOBS, Interpreter, both_interpreters, ended, interpreter_at, started

torch = Lazy("torch")
common = Lazy("common")
job = Lazy("toy_ddp")

ALL = ("--demo", "basic", "checkpoint", "model_parallel", "syncbn")


def toy(seed: int = 0) -> Any:
    """The model that a rank of this number makes."""
    torch.manual_seed(seed)
    cpu = torch.device("cpu")
    return job.Toy(cpu, cpu)


def gradients_by_hand(model: Any, rank: int) -> list[Any]:
    """Of the mean squared error on one rank's batch, by the chain rule: in the order of the model's parameters."""
    inputs, targets = job.batch(rank)
    w1, b1, w2, b2 = (parameter.detach() for parameter in model.parameters())
    sums = inputs @ w1.T + b1
    hidden = sums.clamp(min=0)
    error = 2 * (hidden @ w2.T + b2 - targets) / len(inputs)
    back = (error @ w2) * (sums > 0)
    return [back.T @ inputs, back.sum(dim=0), error.T @ hidden, error.sum(dim=0)]


def row(tensors: list[Any]) -> Any:
    """Return all values in a single row."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def run_demo(*args: str) -> None:
    """Demos in this process, as the only rank."""
    job.main(list(args))


def test_the_gradient_of_one_rank_is_that_of_the_chain_rule() -> None:
    for rank in range(3):
        model = toy()
        job.backward(model, rank)
        assert torch.allclose(job.gradient(model), row(gradients_by_hand(model, rank)), atol=1e-6)


@pytest.mark.torch
@both_interpreters("tests/jobs/test_toy_ddp.py::test_all_demos_on_two_ranks_show_what_a_hand_computes")
def test_all_demos_on_two_ranks_show_what_a_hand_computes(interpreter: Interpreter, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    done = interpreter.launch(2, "toy_ddp.py", *ALL, "--checkpoint", str(file))
    assert done.status == 0, done.stderr
    own = torch.stack([row(gradients_by_hand(toy(), rank)) for rank in (0, 1)])
    average = own.mean(dim=0)
    step = [
        *(
            f"rank {rank}: gradient of the output bias {own[rank, -1]:+.6f} alone, {average[-1]:+.6f} by DDP"
            for rank in (0, 1)
        ),
        f"average of the ranks' own gradients {average[-1]:+.6f}",
        "different versions of the 31 weights: 2 before DDP, 1 in DDP, 1 after the step",
    ]
    mean, deviation = 3.5, math.sqrt(5.25)  # of 0 to 7
    alone = "-1.342 -0.447 +0.447 +1.342"  # (x - 1.5) / sqrt(1.25), and the same for x - 5.5
    lower, upper = (" ".join(f"{(x - mean) / deviation:+.3f}" for x in half) for half in (range(4), range(4, 8)))
    assert done.stdout.splitlines() == [
        "--- basic: 2 ranks, gloo, cpu",
        *step,
        "--- checkpoint: 2 ranks, gloo, cpu",
        f"2 ranks hold the same 31 weights, from {file.stat().st_size} bytes of {file}",
        "--- model_parallel: 2 ranks, gloo, cpu",
        "rank 0 has its lower layer on cpu, its upper layer on cpu",
        "no GPUs: this shows that DDP takes such a model, not that a model larger than a device fits",
        *step,
        "--- syncbn: 2 ranks, gloo, cpu",
        "synchronized by an all_reduce of our own, as torch.nn.SyncBatchNorm takes GPU tensors only",
        "rank 0: batch 0 1 2 3, mean 1.50, variance 1.25",
        f"rank 0: BatchNorm {alone}, synchronized {lower}",
        "rank 1: batch 4 5 6 7, mean 5.50, variance 1.25",
        f"rank 1: BatchNorm {alone}, synchronized {upper}",
        "global batch: mean 3.50, variance 5.25",
    ]
    saved = torch.load(file, weights_only=True)
    stepped = job.weights(toy()) - 0.1 * average
    assert torch.allclose(row(list(saved.values())), stepped, atol=1e-6)


@pytest.mark.torch
def test_spawned_ranks_meet_and_end_together_when_the_checkpoint_is_damaged(tmp_path: Path) -> None:
    python, file = interpreter_at(sys.executable), tmp_path / "model.pt"
    file.write_bytes(b"not a checkpoint")
    options = ["--spawn", "2", "--demo", "basic", "checkpoint", "--checkpoint", str(file)]
    done = ended(started([python.path, str(JOBS / "toy_ddp.py"), *options]))
    assert done.status == 1
    assert "2 before DDP, 1 in DDP, 1 after the step\n" in done.stdout
    first, last = (line for line in done.stderr.splitlines() if line.startswith("toy_ddp: "))
    assert first.startswith(f"toy_ddp: the checkpoint {file} is damaged or not of this model (")
    assert last in [f"toy_ddp: rank {rank} failed: see above" for rank in (0, 1)]


def test_a_temporary_checkpoint_is_removed(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_demo("--demo", "checkpoint")
    assert f" bytes of {tmp_path}/toy_ddp-" in capsys.readouterr().out
    assert not list(tmp_path.glob("toy_ddp-*"))


def test_a_given_checkpoint_is_kept_and_loaded_the_next_time(alone: None, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "model.pt"
    run_demo("--demo", "checkpoint", "--checkpoint", str(file))
    saved = file.read_bytes()
    torch.save(toy(seed=5).state_dict(), file)
    assert saved != file.read_bytes()
    run_demo("--demo", "checkpoint", "--checkpoint", str(file))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    model = toy()
    job.load(model, str(file), file.read_bytes(), torch.device("cpu"))
    assert torch.equal(job.weights(model), job.weights(toy(seed=5)))


def flipped(content: bytes) -> bytes:
    """Return the content with a bit of a weight flipped."""
    weight = toy().lower.weight.detach().numpy().tobytes()
    assert content.count(weight) == 1
    return content.replace(weight, bytes([weight[0] ^ 1]) + weight[1:])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flipped, "the checksum of .*/data/0 is wrong"),
        (lambda content: content[:-100], "File is not a zip file"),
        (lambda content: b"", "File is not a zip file"),
    ],
    ids=["a flipped bit", "cut short", "empty"],
)
def test_damage_is_noticed(tmp_path: Path, damage: Any, reason: str) -> None:
    torch.save(toy().state_dict(), tmp_path / "model.pt")
    content = (tmp_path / "model.pt").read_bytes()
    with pytest.raises(common.Refused, match=rf"^the checkpoint here is damaged or not of this model \({reason}\)"):
        job.load(toy(), "here", damage(content), torch.device("cpu"))


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(4, 5).state_dict(), tmp_path / "model.pt")
    with pytest.raises(common.Refused, match="Missing key") as refused:
        job.load(toy(), "here", (tmp_path / "model.pt").read_bytes(), torch.device("cpu"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "no folder/model.pt"], ids=["a folder", "in no folder"])
def test_a_file_that_cannot_be_used_is_named(alone: None, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with pytest.raises(common.Refused, match=f"^cannot use the checkpoint {file}: "):
        run_demo("--demo", "checkpoint", "--checkpoint", str(file))


@pytest.mark.parametrize(
    ("call", "said"),
    [(4, "is not the average of the ranks' own gradients"), (5, "the replicas are not identical")],
)
def test_a_rank_that_differs_is_noticed(alone: None, monkeypatch: pytest.MonkeyPatch, call: int, said: str) -> None:
    calls: list[int] = []

    def gather(values: Any, device: Any) -> Any:
        """A second rank that holds the same, but in this call another last value."""
        calls.append(1)
        other = values.clone()
        other[-1] += len(calls) == call
        return torch.stack([values, other])

    monkeypatch.setattr(job, "gather", gather)
    with pytest.raises(common.JobError, match=said):
        run_demo()


def test_one_bit_makes_another_version() -> None:
    assert job.versions(torch.tensor([[0.0, 1.0], [0.0, 1.0]])) == 1
    assert job.versions(torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]])) == 2


def test_each_rank_gets_two_gpus_of_its_own(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    common.join(argparse.Namespace(local_rank=0, backend="gloo", timeout=60))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    second = common.Place(1, 1, 2, torch.device("cuda", 1))
    assert job.two_devices(second) == (torch.device("cuda", 2), torch.device("cuda", 3))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(common.Refused, match=r"the host of rank 0 has 4 for its 3: start fewer ranks there"):
        job.two_devices(second)


def test_synchronized_statistics_keep_their_digits(alone: None) -> None:
    common.join(argparse.Namespace(local_rank=0, backend="gloo", timeout=60))
    far = 1e6 + torch.tensor([[0.0, 8.0], [1.0, 10.0], [2.0, 12.0], [3.0, 14.0]])
    by_hand = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / math.sqrt(1.25)
    assert torch.allclose(job.synchronized(far), torch.stack([by_hand, by_hand], dim=1), atol=1e-4)


def test_torchs_own_synchronized_version_still_refuses_cpu_tensors(alone: None) -> None:
    common.join(argparse.Namespace(local_rank=0, backend="gloo", timeout=60))
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
        torch.nn.SyncBatchNorm(1)(torch.zeros(4, 1))


def test_spawn_under_a_launcher_is_refused(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(common.Refused, match="--spawn starts the ranks itself"):
        run_demo("--spawn", "2")


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--demo", "other"], "invalid choice: 'other'"), (["--spawn", "0"], "0 is not between 1 and")],
)
def test_bad_arguments_are_usage_errors(given: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        job.parse_args(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
