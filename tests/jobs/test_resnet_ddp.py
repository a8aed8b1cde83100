"""Whole trainings in this process, and trainings of several ranks in which a rank is killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import Lazy

from .conftest import Ended, forked

torch = Lazy("torch")
batches = Lazy("batches")
checkpoint = Lazy("checkpoint")
common = Lazy("common")
resnet = Lazy("resnet")
job = Lazy("resnet_ddp")

SMALL = ("--data_dir", "synthetic", "--train_size", "40", "--test_size", "20", "--batch_size", "8", "--width", "2")


def train(folder: Path, *args: str) -> None:
    """Trains the smallest model."""
    job.main([*SMALL, "--model_dir", str(folder), *args])


def weights(folder: Path) -> dict[str, Any]:
    """The model that a training left."""
    found: dict[str, Any] = torch.load(folder / "resnet_ddp.pth", weights_only=True)
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def epoch_lines(output: str) -> list[str]:
    """The epochs' lines without their times."""
    return [line.split(" time ")[0] for line in output.splitlines() if line.startswith("epoch ")]


def test_what_a_training_leaves(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--num_epochs", "2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "resnet_ddp.ckpt",
        "resnet_ddp.ckpt.prev",
        "resnet_ddp.pth",
    ]
    resnet.ResNet18(width=2).load_state_dict(weights(tmp_path))
    state = torch.load(tmp_path / "resnet_ddp.ckpt", weights_only=True)
    assert (state["epoch"], state["images"], state["seed"]) == (2, 0, 0)
    assert_same(state["model"], weights(tmp_path))


@pytest.mark.parametrize("extra", [(), ("--accumulate", "2", "--schedule", "cosine", "--warmup_epochs", "1", "--amp")])
def test_a_resumed_training_ends_as_one_that_never_stopped(
    alone: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    extra: tuple[str, ...],
) -> None:
    """It ends in the middle of the second epoch, right after a checkpoint."""
    args = (*extra, "--num_epochs", "3", "--checkpoint_steps", "2")
    train(tmp_path / "straight", *args)
    straight = epoch_lines(capsys.readouterr().out)

    class Killed(BaseException):
        """An exception that no code catches."""

    saved: list[str] = []
    really = checkpoint.save

    def save_and_die(path: str, state: dict[str, Any]) -> None:
        really(path, state)
        saved.append(path)
        if state["epoch"] == 1 and state["images"]:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(Killed):
            train(tmp_path / "resumed", *args)
    torch.distributed.destroy_process_group()
    train(tmp_path / "resumed", *args, "--resume")
    output = capsys.readouterr().out
    images = 32 if extra else 16
    assert f"resumed {saved[-1]} of epoch 1 and {images} images of the next\n" in output
    assert epoch_lines(output) == straight
    assert_same(weights(tmp_path / "straight"), weights(tmp_path / "resumed"))


def test_a_damaged_checkpoint_costs_an_epoch_and_nothing_else(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "straight", "--num_epochs", "3")
    train(tmp_path / "resumed", "--num_epochs", "2")
    path = tmp_path / "resumed" / "resnet_ddp.ckpt"
    path.write_bytes(path.read_bytes()[:-1000])
    capsys.readouterr()
    train(tmp_path / "resumed", "--num_epochs", "3", "--resume")
    output = capsys.readouterr().out
    assert f"{path} is damaged (" in output
    assert f"resumed {path}.prev of epoch 1\n" in output
    assert_same(weights(tmp_path / "straight"), weights(tmp_path / "resumed"))


def test_a_seed_makes_the_run(alone: None, tmp_path: Path) -> None:
    for folder, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        train(tmp_path / folder, "--num_epochs", "1", "--random_seed", seed)
    first, again, other = (weights(tmp_path / folder)["fc.weight"] for folder in ("first", "again", "other"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_epoch_has_an_order_of_its_own(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    shuffled = batches.Sampler.__iter__

    def remembered(sampler: Any) -> Iterator[int]:
        orders.append(list(shuffled(sampler)))
        return iter(orders[-1])

    monkeypatch.setattr(batches.Sampler, "__iter__", remembered)
    train(tmp_path, "--num_epochs", "2")
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1]


def test_one_line_an_epoch(alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "--num_epochs", "2", "--resume")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 0 local_rank 0 world_size 1 host ")
    assert lines[1] == f"no checkpoint {tmp_path}/resnet_ddp.ckpt: epoch 1 is next"
    assert [line.split(" loss ")[0] for line in lines[2:-2]] == ["epoch 1/2", "epoch 2/2"]
    assert re.fullmatch(r"1 replicas, the same to the last bit: [0-9a-f]{16}", lines[-2])
    assert lines[-1] == f"done: {tmp_path}/resnet_ddp.pth"


def test_metrics_of_every_epoch(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPCTL_METRICS", str(tmp_path / "metrics"))
    train(tmp_path, "--num_epochs", "2")
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    for epoch in (1, 2):
        here = [line for line in lines if line["epoch"] == epoch]
        assert sum("accuracy" in line for line in here) == 1
        assert all(line["samples_per_s"] > 0 for line in here if "accuracy" not in line)
        assert any("comm_share" in line for line in here)
    assert lines[-1]["step"] == 10


def test_a_finished_training_resumes_to_nothing(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "--num_epochs", "1")
    train(tmp_path, "--num_epochs", "1", "--resume", str(tmp_path / "resnet_ddp.ckpt"))
    assert epoch_lines(capsys.readouterr().out.split("resumed")[1]) == []


def test_another_trainings_checkpoint_is_refused(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--num_epochs", "1")
    for given, said in (
        (["--resume", "--width", "3"], "holds another model than --arch builtin --width 3 makes: give the same"),
        (["--resume", "--random_seed", "1"], "was made with --random_seed 0: give the same one"),
        (["--resume", str(tmp_path / "resnet_ddp.pth")], "it has no epoch: name a .ckpt file"),
    ):
        with pytest.raises(common.Refused, match=said):
            train(tmp_path, "--num_epochs", "2", *given)
        torch.distributed.destroy_process_group()


def test_a_loss_that_is_no_number_ends_the_training(alone: None, tmp_path: Path) -> None:
    with pytest.raises(common.Refused, match=r"the loss is (nan|inf) in epoch 1: try a smaller --learning_rate"):
        train(tmp_path, "--num_epochs", "2", "--learning_rate", "1e30")
    assert not list(tmp_path.iterdir())


def linear_training(*args: str) -> tuple[Any, list[int]]:
    """A training of a network without batch norm, and a list that grows with each reduction of its gradients."""
    parsed = job.parse_args(["--learning_rate", "0.1", *args])
    place = common.join(parsed)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    model = torch.nn.parallel.DistributedDataParallel(net)
    reductions: list[int] = []

    def hook(state: object, bucket: Any) -> Any:
        reductions.append(bucket.index())
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__ = {}  # DDP compares them with types
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = job.make_scaler(False)
    return job.Training(parsed, place, model, model, optimizer, scaler, None, None, None, None), reductions


def test_accumulated_batches_are_one_large_step_and_one_reduction(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last batch is smaller: each image counts the same."""
    monkeypatch.setattr(batches, "augment", lambda images, generator, mirror: images)
    images = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(10)
    splits = {"one": [10], "three": [4, 4, 2]}
    results = {}
    for name, sizes in splits.items():
        training, reductions = linear_training()
        group = list(zip(images.split(sizes), labels.split(sizes), strict=True))
        loss = job.train_step(training, group, 10, torch.Generator())
        assert len(reductions) == 1
        results[name] = (float(loss), training.model.module[1].weight.detach().clone())
        torch.distributed.destroy_process_group()
    assert results["one"][0] == pytest.approx(results["three"][0], abs=1e-5)
    assert torch.allclose(results["one"][1], results["three"][1], atol=1e-7)
    assert not torch.allclose(results["one"][1], linear_training()[0].model.module[1].weight, atol=1e-3)


def test_amp_computes_in_16_bits_and_keeps_weights_in_32(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[Any] = set()
    entropy = job.functional.cross_entropy

    def remembered(scores: Any, *args: Any, **keys: Any) -> Any:
        seen.add(scores.dtype)
        return entropy(scores, *args, **keys)

    monkeypatch.setattr(job.functional, "cross_entropy", remembered)
    train(tmp_path, "--num_epochs", "1", "--amp")
    assert seen == {torch.bfloat16}
    assert weights(tmp_path)["fc.weight"].dtype == torch.float32


def test_the_scale_of_the_loss_survives_a_resume(alone: None, tmp_path: Path) -> None:
    """fp16 itself needs a GPU; torch has the same scaler for the CPU since 2.3."""
    made = [linear_training("--model_dir", str(tmp_path))[0]]
    torch.distributed.destroy_process_group()
    made.append(linear_training("--model_dir", str(tmp_path))[0])
    first, second = (each._replace(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**12)) for each in made)
    first.scaler.scale(torch.ones(()))
    first.scaler.update(2.0**9)
    job.save(first, 1, 0, 0.0)
    args = job.parse_args(["--model_dir", str(tmp_path), "--resume"])
    path, state = job.find_state(args, second.place)
    job.restore(state, args, second.model.module, second.optimizer, second.scaler)
    assert (path, second.scaler.get_scale()) == (str(tmp_path / "resnet_ddp.ckpt"), 2.0**9)


RANK = """
import os, checkpoint, resnet_ddp
if "DIE_AT" in os.environ and os.environ["RANK"] == "0":
    really = checkpoint.save
    def save_and_die(path, state):
        really(path, state)
        if (state["epoch"], state["images"]) == (1, int(os.environ["DIE_AT"])):
            os.kill(os.getpid(), 9)
    checkpoint.save = save_and_die
resnet_ddp.main(os.environ["ARGS"].split())
"""


def test_three_ranks_of_which_one_is_killed_continue_to_the_same_end(tmp_path: Path) -> None:
    """Three ranks, because the sum of two numbers is the same in either order: two ranks would hide a new order."""

    def launch(folder: str, *args: str, **extra: str) -> Ended:
        line = [*SMALL, "--model_dir", str(tmp_path / folder), "--num_epochs", "4", "--checkpoint_steps", "1", *args]
        place = {"ARGS": " ".join(line), **extra}
        return forked(RANK, place, place, place, preload="torch torch._dynamo resnet_ddp")

    straight = launch("straight")
    assert straight.status == 0, straight.stderr
    killed = launch("resumed", DIE_AT="24")
    assert killed.status == 1
    resumed = launch("resumed", "--resume")
    assert resumed.status == 0, resumed.stderr
    path = tmp_path / "resumed" / "resnet_ddp.ckpt"
    assert f"resumed {path} of epoch 1 and 24 images of the next\n" in resumed.stdout
    assert epoch_lines(killed.stdout + resumed.stdout) == epoch_lines(straight.stdout)
    assert_same(weights(tmp_path / "straight"), weights(tmp_path / "resumed"))


ASKED = """
import os, signal, checkpoint, resnet_ddp
step = resnet_ddp.train_step
def asked_after_two(*args):
    asked_after_two.steps += 1
    if asked_after_two.steps == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGUSR1)
    return step(*args)
asked_after_two.steps = 0
resnet_ddp.train_step = asked_after_two
really = checkpoint.save
def save(path, state):
    really(path, state)
    if path.endswith(".ckpt"):
        print("saved", state["epoch"], state["images"], flush=True)
checkpoint.save = save
resnet_ddp.main(os.environ["ARGS"].split())
"""


def test_a_rank_that_is_asked_has_rank_0_save_after_that_step(tmp_path: Path) -> None:
    place = {"ARGS": " ".join([*SMALL, "--model_dir", str(tmp_path), "--num_epochs", "1"])}
    done = forked(ASKED, place, place, preload="torch torch._dynamo resnet_ddp")
    assert done.status == 0, done.stderr
    batch = int(SMALL[SMALL.index("--batch_size") + 1])
    assert [line for line in done.stdout.splitlines() if line.startswith("saved")] == [
        f"saved 0 {2 * 2 * batch}",  # two steps of two ranks
        "saved 1 0",
    ]


DIFFERENT = """
import torch, torch.distributed as dist, resnet_ddp
from common import Place, Refused, say
dist.init_process_group("gloo")
rank = dist.get_rank()
place = Place(rank, rank, 2, torch.device("cpu"))
torch.manual_seed(0)
model = torch.nn.Linear(3, 3)
resnet_ddp.check_replicas(model, place)
with torch.no_grad():
    model.bias[1] += rank * 1e-7
try:
    resnet_ddp.check_replicas(model, place)
except Refused as error:
    say(str(error))
dist.destroy_process_group()
"""


def test_different_replicas_are_refused_on_every_rank() -> None:
    done = forked(DIFFERENT, {}, {}, preload="torch resnet_ddp")
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("2 replicas, the same to the last bit: ") for line in lines) == 1
    refused = "rank 1 and rank 0 hold different weights: look for what a rank does alone"
    assert [line for line in lines if "replicas" not in line] == [refused, refused]
