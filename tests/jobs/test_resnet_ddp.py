"""Arguments, images, checkpoints and a whole training in this one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cifar10 = pytest.importorskip("cifar10")
job = pytest.importorskip("resnet_ddp")

SMALL = ("--data_dir", "synthetic", "--train_size", "40", "--test_size", "20", "--batch_size", "8", "--width", "2")


def train(folder: Path, *args: str) -> None:
    """Trains the smallest model."""
    job.main.__wrapped__([*SMALL, "--model_dir", str(folder), *args])


def checkpoint(folder: Path) -> dict[str, Any]:
    """What a training left."""
    state: dict[str, Any] = torch.load(folder / "resnet_ddp.pth", weights_only=True)
    return state


def test_every_argument_has_a_default(alone: None) -> None:
    args = job.parse_args([])
    assert (args.width, args.model_dir, args.backend, args.resume) == (64, "saved_models", "auto", False)


def test_outputs_go_where_ddpctl_collects_them(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPCTL_OUTPUT_DIR", "/run/outputs")
    assert job.checkpoint_path(job.parse_args([])) == "/run/outputs/resnet_ddp.pth"


@pytest.mark.parametrize(
    "given", [["--local_rank=3"], ["--local-rank=3"], ["--local_rank", "3"], ["--local-rank", "3"]]
)
def test_both_spellings_of_the_local_rank(alone: None, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    args = job.parse_args(given)
    assert job.find_place(args.local_rank) == (0, 3, 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert job.find_place(args.local_rank) == (0, 1, 1)


def test_the_place_is_the_launchers(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    assert job.find_place(0) == (5, 1, 6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--num_epochs", "0"], "0 is not between 1 and"),
        (["--batch_size", "-1"], "-1 is not between 1 and"),
        (["--random_seed", str(2**32)], "is not between 0 and 4294967295"),
        (["--num_workers", "two"], "invalid whole number value: 'two'"),
        (["--backend", "mpi"], "invalid choice: 'mpi'"),
        (["--epochs", "3"], "unrecognized arguments: --epochs 3"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_arguments_are_usage_errors(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        job.parse_args(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_nccl_without_cuda_says_so() -> None:
    with pytest.raises(job.JobError, match="the nccl backend needs CUDA"):
        job.choose_device("nccl", 0)


def test_more_processes_than_gpus_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(job.JobError, match="local rank 2 has no GPU, 2 are visible here"):
        job.choose_device("auto", 2)


def test_augmented_images_are_moved_and_mirrored_ones() -> None:
    image = torch.arange(1, 65, dtype=torch.uint8).reshape(1, 8, 8).repeat(3, 1, 1)
    moved = job.augment(image.repeat(200, 1, 1, 1), torch.Generator().manual_seed(0))
    assert moved.shape == (200, 3, 8, 8)
    assert moved.dtype == torch.uint8
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    windows = [padded[:, y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
    allowed = {bytes(way.contiguous().numpy().tobytes()) for window in windows for way in (window, window.flip(2))}
    seen = {bytes(one.contiguous().numpy().tobytes()) for one in moved}
    assert seen <= allowed
    assert len(seen) > 50


def test_augmenting_follows_its_generator() -> None:
    images = torch.from_numpy(cifar10.load("synthetic", 0, 20, 1)[0].images)
    first, second, other = (job.augment(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_normalised_pixels_are_about_zero_and_one() -> None:
    made = job.normalise(torch.tensor([[0, 255]], dtype=torch.uint8).reshape(1, 1, 1, 2).repeat(1, 3, 1, 1))
    assert made.dtype == torch.float32
    assert made.min() > -2.5
    assert made.max() < 2.5


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    job.save_checkpoint(str(path), {"epoch": 1})
    with pytest.raises(Exception, match="lambda"):
        job.save_checkpoint(str(path), {"epoch": lambda: 2})
    assert torch.load(path, weights_only=True) == {"epoch": 1}


def test_a_checkpoint_says_what_it_is(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--num_epochs", "1")
    state = checkpoint(tmp_path)
    assert state["epoch"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["resnet_ddp.pth"]
    job.ResNet18(width=2).load_state_dict(state["model"])


def test_a_resumed_training_ends_as_one_that_never_stopped(alone: None, tmp_path: Path) -> None:
    train(tmp_path / "straight", "--num_epochs", "3")
    train(tmp_path / "resumed", "--num_epochs", "1")
    train(tmp_path / "resumed", "--num_epochs", "3", "--resume")
    straight, resumed = checkpoint(tmp_path / "straight"), checkpoint(tmp_path / "resumed")
    assert straight["epoch"] == resumed["epoch"] == 3
    for name, value in straight["model"].items():
        assert torch.equal(value, resumed["model"][name]), name


def test_a_seed_makes_the_run(alone: None, tmp_path: Path) -> None:
    for folder, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        train(tmp_path / folder, "--num_epochs", "1", "--random_seed", seed)
    first, again, other = (
        checkpoint(tmp_path / folder)["model"]["fc.weight"] for folder in ("first", "again", "other")
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_epoch_has_an_order_of_its_own(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    shuffled = job.DistributedSampler.__iter__

    def remembered(sampler: Any) -> Iterator[int]:
        orders.append(list(shuffled(sampler)))
        return iter(orders[-1])

    monkeypatch.setattr(job.DistributedSampler, "__iter__", remembered)
    train(tmp_path, "--num_epochs", "2")
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1]


def test_one_line_an_epoch(alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "--num_epochs", "2", "--resume")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 0 local_rank 0 world_size 1 host ")
    assert lines[1] == f"no checkpoint {tmp_path}/resnet_ddp.pth: epoch 1 is next"
    assert [line.split(" loss ")[0] for line in lines[2:-1]] == ["epoch 1/2", "epoch 2/2"]
    assert lines[-1] == f"done: {tmp_path}/resnet_ddp.pth"


def test_a_finished_training_resumes_to_nothing(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "--num_epochs", "1")
    train(tmp_path, "--num_epochs", "1", "--resume")
    assert "epoch 1/1" not in capsys.readouterr().out.split("resumed")[1]


def test_another_models_checkpoint_is_refused(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--num_epochs", "1")
    with pytest.raises(job.JobError, match="holds another model than --width 3 makes"):
        train(tmp_path, "--num_epochs", "2", "--resume", "--width", "3")


def test_a_loss_that_is_no_number_ends_the_training(alone: None, tmp_path: Path) -> None:
    with pytest.raises(job.JobError, match=r"the loss is (nan|inf) in epoch 1: try a smaller --learning_rate"):
        train(tmp_path, "--num_epochs", "2", "--learning_rate", "1e30")
    assert not list(tmp_path.iterdir())
