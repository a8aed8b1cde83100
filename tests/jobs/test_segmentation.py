"""The segmentation job: the same work by DDP, DataParallel and a single device, and the options that it refuses."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import Lazy

from .conftest import JOBS, Interpreter, both_interpreters, ended, started

torch = Lazy("torch")
job = Lazy("segmentation")
common = Lazy("common")
segnet = Lazy("segnet")

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def pillow() -> None:
    pytest.importorskip("PIL.Image")


SCRIPT = str(JOBS / "segmentation.py")
# 43 pictures are 5 global batches of 8 and a rest; 7 to validate with are 4 on one rank and 3 on the other.
WORK = ("--data_dir", "synthetic", "--train_size", "43", "--val_size", "7", "--size", "48", "--num_epochs", "3")
TINY = ("--data_dir", "synthetic", "--train_size", "8", "--val_size", "3", "--size", "32", "--num_epochs", "1")
EPOCH = re.compile(r"^epoch (\d)/\d loss (\d+\.\d{4}) mIoU (\d\.\d{4}) time \d+\.\ds$", re.MULTILINE)


def epochs(output: str) -> list[tuple[float, ...]]:
    """Number, loss and mIoU of each epoch."""
    return [tuple(float(value) for value in line) for line in EPOCH.findall(output)]


@both_interpreters("tests/jobs/test_segmentation.py::test_two_ranks_and_one_process_do_the_same_work")
def test_two_ranks_and_one_process_do_the_same_work(
    interpreter: Interpreter, alone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ddp = interpreter.launch(2, "segmentation.py", *WORK, "--batch_size", "4")
    assert ddp.status == 0, ddp.stderr
    assert "model small by ddp devices 2 batch 8 steps 15" in ddp.stdout
    assert "UserWarning" not in ddp.stderr
    whole = [*WORK, "--batch_size", "8", "--parallel", "dp"]
    if interpreter.path == sys.executable:
        job.main(whole)  # saves a start of Python
        dp = capsys.readouterr().out
    else:
        dp = ended(started([interpreter.path, SCRIPT, *whole])).stdout
    assert "model small by dp devices 1 batch 8 steps 15" in dp
    two, one = epochs(ddp.stdout), epochs(dp)
    assert [epoch[0] for epoch in two] == [1, 2, 3]
    assert two[2][1] < two[0][1] - 0.5
    for left, right in zip(two, one, strict=True):
        assert left == pytest.approx(right, abs=5e-4)


def test_one_device_does_what_data_parallel_does(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for parallel in ("none", "dp"):
        job.main([*TINY, "--batch_size", "4", "--parallel", parallel])
        said[parallel] = capsys.readouterr().out
    line = "DataParallel has 1 device here: it only calls the model\n"
    assert said["dp"].startswith(line)
    assert line not in said["none"]
    assert len(epochs(said["dp"])) == 1
    assert epochs(said["dp"]) == epochs(said["none"])


def prepared(*args: str) -> Any:
    """A job that is ready for its first epoch, in this one process."""
    given = job.parse_args([*TINY, *args])
    return job.prepare(given, common.join(given))


def test_nodes_with_other_pictures_are_refused(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "gather", lambda mine, device: torch.stack([mine, mine, mine + 1, mine + 2]))
    with pytest.raises(common.Refused, match="other pictures than on rank 0 are listed on rank 2, 3: give every node"):
        prepared()


def test_the_lists_of_both_splits_are_compared(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []

    def remembered(mine: Any, device: Any) -> Any:
        sums.append(int(mine))
        return mine

    monkeypatch.setattr(job, "gather", remembered)
    for sizes in (["8", "3"], ["9", "3"], ["8", "4"], ["8", "3"]):
        prepared("--train_size", sizes[0], "--val_size", sizes[1])
        torch.distributed.destroy_process_group()
    assert sums[0] == sums[3]
    assert len(set(sums)) == 3


def test_the_loss_is_the_mean_over_the_pixels_that_count(alone: None) -> None:
    small = prepared("--batch_size", "4")
    images, classes = next(iter(small.train))
    assert 0 < (classes == 255).sum() < classes.numel()
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(small.model(images), classes, ignore_index=255)
    torch.testing.assert_close(job.train_step(small, images, classes), expected)


def test_the_learning_rate_falls_as_deeplab_has_it(alone: None) -> None:
    small = prepared("--batch_size", "2", "--learning_rate", "0.1")
    rates = []
    for images, classes in small.train:
        rates.append(small.optimizer.param_groups[0]["lr"])
        job.train_step(small, images, classes)
    assert rates == pytest.approx([0.1 * (1 - step / 4) ** 0.9 for step in range(4)])


def test_miou_is_over_the_classes_that_are_there_or_named() -> None:
    confusion = torch.zeros(21, 21, dtype=torch.int64)
    confusion[0, 0], confusion[0, 3], confusion[3, 3], confusion[5, 0] = 6, 2, 4, 1
    assert job.iou_of(confusion) == pytest.approx((6 / 9 + 4 / 6 + 0) / 3)


def test_metrics_say_how_many_devices_there_are(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPCTL_METRICS", str(tmp_path / "metrics"))
    job.main([*TINY, "--batch_size", "2", "--parallel", "dp"])
    line = json.loads((tmp_path / "metrics").read_text().splitlines()[-1])
    assert line["devices"] == 1
    assert line["step"] == 4
    assert line["samples_per_s"] > 0
    assert line["loss"] > 0


def test_a_model_of_torchvision_trains(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    if segnet.torchvision_models() is None:
        pytest.skip("there is no torchvision here")
    job.main([*TINY, "--batch_size", "4", "--model", "deeplabv3_mobilenet_v3_large"])
    assert len(epochs(capsys.readouterr().out)) == 1


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    if segnet.torchvision_models() is None:
        pytest.skip("there is no torchvision here")
    with pytest.raises(common.Refused, match=r"no model 'unet': --model takes small, .*deeplabv3_resnet101, "):
        segnet.make_model("unet", 8)


def test_deeplab_is_refused_with_a_batch_of_one() -> None:
    if segnet.torchvision_models() is None:
        pytest.skip("there is no torchvision here")
    with pytest.raises(common.Refused, match="use --batch_size 2 or more"):
        segnet.make_model("deeplabv3_resnet101", 1)


def test_torchvision_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segnet, "torchvision_models", lambda: None)
    with pytest.raises(common.JobError, match=r"--model deeplabv3_resnet101 needs a torchvision for torch \d"):
        segnet.make_model("deeplabv3_resnet101", 8)


@pytest.mark.parametrize("parallel", ["dp", "none"])
def test_one_process_for_all_is_refused_where_several_were_started(parallel: str) -> None:
    place = common.Place(rank=1, local_rank=1, world_size=4, device=torch.device("cpu"))
    with pytest.raises(common.Refused, match=f"^--parallel {parallel} takes one process, not 4: start one"):
        job.prepare(job.parse_args(["--parallel", parallel]), place)


def test_too_few_pictures_for_a_batch_are_refused(alone: None) -> None:
    with pytest.raises(common.Refused, match="8 training pictures do not fill one batch of 16: use --batch_size"):
        prepared("--batch_size", "16")


def test_a_loss_that_is_no_number_ends_the_training(alone: None) -> None:
    with pytest.raises(common.Refused, match=r"the loss is (nan|inf) in epoch \d/3: try a smaller --learning_rate"):
        job.main([*TINY, "--batch_size", "2", "--num_epochs", "3", "--learning_rate", "1e30"])


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf"])
def test_a_learning_rate_that_cannot_be_is_a_usage_error(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        job.parse_args(["--learning_rate", rate])
    assert f"--learning_rate {float(rate)} is not a number above 0" in capsys.readouterr().err


def test_nothing_is_written_where_it_runs(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job.main([*TINY, "--batch_size", "4"])
    assert os.listdir(tmp_path) == []
