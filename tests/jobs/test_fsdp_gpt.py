"""A small GPT under FSDP2 and DDP: the same losses, on any number of ranks, also through a sharded checkpoint."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lazy import Lazy

from .conftest import JOBS, Interpreter, ended, forked, started

torch = Lazy("torch")
job = Lazy("fsdp_gpt")
common = Lazy("common")
metrics = Lazy("metrics")

TINY = ("--layers", "1", "--width", "8", "--heads", "2", "--context", "8", "--batch_size", "4", "--text_bytes", "20000")
OFTEN = ("--print_every", "1", "--learning_rate", "0.02")


@pytest.fixture(autouse=True)
def new_torch() -> None:
    if not job.NEW_ENOUGH:
        pytest.skip("torch has no fully_shard")


class Rank(NamedTuple):
    """How one rank ended."""

    status: int
    stdout: str
    stderr: str
    steps: list[tuple[float, float]]  # loss and norm of the gradient


# Runs the job as its own script would, in a new process; output and steps go to files.
RANK = """
import json, os, sys
for number, name in ((1, "stdout"), (2, "stderr")):
    os.dup2(os.open(os.path.join(os.environ["FOLDER"], name), os.O_WRONLY | os.O_CREAT), number)
import torch, common, fsdp_gpt
if os.environ["RANK"] != "0":
    fsdp_gpt.read_sources = None  # only rank 0 may need its own node's text
step, steps = fsdp_gpt.train_step, []
def remembered(*args):
    steps.append(step(*args))
    with open(os.path.join(os.environ["FOLDER"], "steps"), "w") as file:
        json.dump(steps, file)
    return steps[-1]
fsdp_gpt.train_step = remembered
torch.set_num_threads(1)
sys.argv = ["fsdp_gpt.py", *json.loads(os.environ["ARGS"])]
common.run(fsdp_gpt.main)
"""
PRELOAD = "torch torch.distributed.fsdp torch.distributed.checkpoint.state_dict common fsdp_gpt"


def remember_steps(module: Any, keep: Callable[[list[tuple[float, float]]], object]) -> None:
    """Call ``keep`` after every step of a training with the results of all steps so far."""
    step = module.train_step
    steps: list[tuple[float, float]] = []

    def remembered(*args: Any) -> tuple[float, float]:
        steps.append(step(*args))
        keep(steps)
        return steps[-1]

    module.train_step = remembered


def two_ranks(folder: Path, *args: str, model_dirs: tuple[str, str] | None = None) -> list[Rank]:
    """The job on two ranks: of one node, or of two nodes that see different folders.

    They are forked from a process that has imported torch already: a launch would cost that once a rank.
    """
    places = []
    for rank in range(2):
        own = folder / f"run-{len(list(folder.glob('run-*')))}"
        own.mkdir(parents=True)
        local_rank = rank if model_dirs is None else 0
        model_dir = str(folder / "model") if model_dirs is None else model_dirs[rank]
        argv = json.dumps([*TINY, *OFTEN, "--model_dir", model_dir, *args])
        places.append({"FOLDER": str(own), "LOCAL_RANK": str(local_rank), "ARGS": argv})
    done = forked(RANK, *places, preload=PRELOAD)
    return [read_rank(Path(place["FOLDER"]), status) for place, status in zip(places, done.ranks, strict=True)]


def read_rank(folder: Path, status: int) -> Rank:
    stdout, stderr = ((folder / name).read_text() for name in ("stdout", "stderr"))
    steps = json.loads((folder / "steps").read_text()) if (folder / "steps").exists() else []
    return Rank(status, stdout, stderr, steps)


def train(folder: Path, *args: str) -> list[tuple[float, float]]:
    """The job in this process, the only rank; the loss and the norm of each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "train_step", job.train_step)  # for it to be put back
        steps: list[list[tuple[float, float]]] = [[]]
        remember_steps(job, steps.append)
        try:
            job.main([*TINY, *OFTEN, "--model_dir", str(folder), *args])
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    return steps[-1]


def near(steps: list[Any]) -> Any:
    """Equal to 1e-4, loss by loss and norm by norm."""
    return [pytest.approx(step, abs=1e-4) for step in steps]


def checkpoint(folder: Path, step: int) -> Path:
    """The folder of a step."""
    return folder / "fsdp_gpt" / f"step_{step:06d}"


def damage(path: Path) -> None:
    """Another byte in the middle, of the same size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def test_fsdp_and_ddp_do_the_same_and_hold_different_amounts(alone: None, tmp_path: Path) -> None:
    sharded = two_ranks(tmp_path / "fsdp", "--steps", "20")
    copied = two_ranks(tmp_path / "ddp", "--steps", "20", "--parallel", "ddp")
    for rank in (*sharded, *copied):
        assert (rank.status, rank.stderr) == (0, "")
        assert rank.steps == near(sharded[0].steps)
    assert train(tmp_path / "alone", "--steps", "20") == near(sharded[0].steps)
    losses, norms = zip(*sharded[0].steps, strict=True)
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
    assert max(norms) > job.LONGEST_GRADIENT  # so that clipping was put to the test
    total = sum(parameter.numel() for parameter in job.GPT(8, 1, 8, 2).parameters())
    for number in range(2):
        assert f"rank {number} holds {total // 2} of {total} parameters, " in sharded[number].stdout
        assert f"rank {number} holds {total} of {total} parameters, " in copied[number].stdout
    assert f"step 20/20 loss {losses[-1]:.4f} gradient {norms[-1]:.4f}\n" in sharded[0].stdout
    assert "sample: 'def " in sharded[0].stdout
    assert "step" not in sharded[1].stdout


def test_other_numbers_of_ranks_go_on_as_if_nothing_had_stopped(alone: None, tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", "--steps", "9")
    assert two_ranks(tmp_path, "--steps", "3")[0].steps == near(straight[:3])
    assert train(tmp_path / "model", "--steps", "6", "--resume", "--parallel", "ddp") == near(straight[3:6])
    again = two_ranks(tmp_path, "--steps", "9", "--resume")[0]
    assert again.steps == near(straight[6:])
    assert f"resumed {checkpoint(tmp_path / 'model', 6)}\n" in again.stdout


def test_nodes_without_a_shared_disk_are_found_when_saving_and_when_resuming(tmp_path: Path) -> None:
    nodes = (str(tmp_path / "node-0"), str(tmp_path / "node-1"))
    saved = two_ranks(tmp_path, "--steps", "2", model_dirs=nodes)
    assert [rank.status for rank in saved] == [0, 0]
    (line,) = [line for line in saved[0].stdout.splitlines() if "no shared disk" in line]
    assert "no shared disk: rank 1 on " in line
    assert f" has 1 of 3 files of {checkpoint(Path(nodes[0]), 2)}; to resume, copy all its files to every node" in line

    refused = two_ranks(tmp_path, "--steps", "3", "--resume", model_dirs=nodes)
    assert [rank.status for rank in refused] == [1, 1]
    (line,) = refused[0].stderr.splitlines()
    assert line.startswith(f"fsdp_gpt: {checkpoint(Path(nodes[0]), 2)} on ")
    assert " lacks __1_0.distcp: to resume, copy" in line
    assert refused[1].stderr == ""

    for one, other in (nodes, nodes[::-1]):
        shutil.copytree(one, other, dirs_exist_ok=True)
    resumed = two_ranks(tmp_path, "--steps", "3", "--resume", model_dirs=nodes)
    assert [(rank.status, len(rank.steps)) for rank in resumed] == [(0, 1), (0, 1)]


def test_two_checkpoints_are_kept(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "5", "--checkpoint_every", "1")
    assert sorted(path.name for path in (tmp_path / "fsdp_gpt").iterdir()) == ["step_000004", "step_000005"]
    assert len(train(tmp_path, "--steps", "6", "--resume")) == 1
    assert sorted(path.name for path in (tmp_path / "fsdp_gpt").iterdir()) == ["step_000005", "step_000006"]


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "whole.json"])
def test_the_one_before_a_damaged_checkpoint_is_taken(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    straight = train(tmp_path, "--steps", "4", "--checkpoint_every", "2")
    if name == "whole.json":
        (checkpoint(tmp_path, 4) / name).write_text('{"step": 4, ')
    else:
        damage(checkpoint(tmp_path, 4) / name)
    capsys.readouterr()
    assert train(tmp_path, "--steps", "4", "--resume") == near(straight[2:])
    said = capsys.readouterr().out.splitlines()
    assert str(checkpoint(tmp_path, 4)) in said[0]
    assert name in said[0]
    assert said[0].endswith(": the checkpoint before it is next")
    assert said[1] == f"resumed {checkpoint(tmp_path, 2)}"
    assert train(tmp_path, "--steps", "4", "--resume") == []  # the damaged checkpoint was replaced


def test_it_saves_when_it_is_asked(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = job.train_step

    def asked_in_step_2(trainer: Any, number: int) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return step(trainer, number)

    monkeypatch.setattr(job, "train_step", asked_in_step_2)
    train(tmp_path, "--steps", "4")
    assert sorted(path.name for path in (tmp_path / "fsdp_gpt").iterdir()) == ["step_000002", "step_000004"]


def test_one_that_has_not_got_its_name_is_not_read(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "2", "--checkpoint_every", "1")
    whole = checkpoint(tmp_path, 2)
    whole.rename(f"{whole}.part")  # killed right before the rename
    assert len(train(tmp_path, "--steps", "2", "--resume")) == 1
    assert [path.name for path in whole.parent.iterdir() if path.suffix == ".part"] == []


def test_a_checkpoint_without_its_marker_is_not_read(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "2", "--checkpoint_every", "1")
    (checkpoint(tmp_path, 2) / "whole.json").unlink()
    assert len(train(tmp_path, "--steps", "2", "--resume")) == 1


def test_nothing_is_resumed_from_damaged_checkpoints_alone(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "1")
    damage(checkpoint(tmp_path, 1) / "__0_0.distcp")
    with pytest.raises(common.Refused, match="is damaged: start again with another --model_dir"):
        train(tmp_path, "--steps", "2", "--resume")


def test_the_one_before_a_checkpoint_with_missing_files_is_taken(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after the loss of a node with its shards."""
    straight = train(tmp_path, "--steps", "4", "--checkpoint_every", "2")
    (checkpoint(tmp_path, 4) / "__0_0.distcp").unlink()
    capsys.readouterr()
    assert train(tmp_path, "--steps", "4", "--resume") == near(straight[2:])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{checkpoint(tmp_path, 4)} on ")
    assert said[0].endswith(" lacks __0_0.distcp: the checkpoint before it is next")
    assert f"resumed {checkpoint(tmp_path, 2)}" in said


def test_a_missing_file_is_named(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "1")
    (checkpoint(tmp_path, 1) / ".metadata").unlink()
    with pytest.raises(common.Refused, match=r"step_000001 on \S+ lacks \.metadata: to resume, copy all its files"):
        train(tmp_path, "--steps", "2", "--resume")


def test_a_run_that_does_not_resume_sets_aside_what_is_there(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in ("1", "2", "3"):
        train(tmp_path, "--steps", steps)
    folder, old = tmp_path / "fsdp_gpt", tmp_path / "fsdp_gpt.old"
    assert [path.name for path in folder.iterdir()] == ["step_000003"]
    assert [path.name for path in old.iterdir()] == ["step_000002"]
    assert f"{folder} of an earlier training is now {old}\n" in capsys.readouterr().out


def test_another_models_checkpoint_is_refused(alone: None, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "1")
    with pytest.raises(common.Refused, match=r"has width 8, not 4; text's CRC-32 [0-9a-f]{8}, not [0-9a-f]{8}: resume"):
        train(tmp_path, "--steps", "2", "--resume", "--width", "4", "--text_bytes", "10000")


def test_a_resume_takes_the_learning_rate_of_its_own_command_line(alone: None, tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", "--steps", "3")
    train(tmp_path / "model", "--steps", "1")
    other = train(tmp_path / "model", "--steps", "3", "--resume", "--learning_rate", "0.2")
    assert other[0] == near(straight[1:2])[0]  # its loss is that of the weights of step 1
    assert abs(other[1][0] - straight[2][0]) > 1e-2


def test_no_checkpoint_means_from_the_start(alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(train(tmp_path, "--steps", "1", "--resume")) == 1
    assert f"no checkpoint in {tmp_path}/fsdp_gpt: step 1 is next\n" in capsys.readouterr().out


def test_a_checkpoint_that_cannot_be_written_says_why(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.distributed.checkpoint.FileSystemWriter, "write_data", full)
    with pytest.raises(
        common.Refused, match=r"cannot write .*step_000001: rank 0: OSError: .*No space left on device$"
    ):
        train(tmp_path, "--steps", "1")


def test_metrics_have_sequences_tokens_and_the_loss(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPCTL_METRICS", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setattr(metrics, "EVERY_S", 0.0)
    steps = train(tmp_path, "--steps", "3")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 3]
    for line, (loss, _) in zip(lines, steps[1:], strict=True):
        assert line["tokens_per_s"] == pytest.approx(8 * line["samples_per_s"])
        assert line["loss"] == loss


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--width", "10", "--heads", "4"], "--width 10 is not a multiple of --heads 4"),
        (["--learning_rate", "nan"], "--learning_rate nan is not a number above 0"),
        (["--learning_rate", "0"], "--learning_rate 0.0 is not a number above 0"),
        (["--steps", "0"], "0 is not between 1 and"),
        (["--parallel", "fsdp1"], "invalid choice: 'fsdp1'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_arguments_are_usage_errors(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        job.parse_args(given)
    assert exited.value.code == 2
    assert said in capsys.readouterr().err


def test_the_batch_has_to_be_divisible() -> None:
    place = common.Place(0, 0, 3, torch.device("cpu"))
    with pytest.raises(common.Refused, match="--batch_size 4 is not a multiple of the world size, 3"):
        job.prepare(job.parse_args(["--batch_size", "4"]), place)


def test_the_text_has_to_be_longer_than_a_sequence(alone: None, tmp_path: Path) -> None:
    with pytest.raises(common.Refused, match="5 characters of text are too few for --context 8: raise --text_bytes"):
        train(tmp_path, "--text_bytes", "5")


def test_a_node_without_sources_says_so(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.os, "__file__", str(tmp_path / "python.zip" / "os.py"))
    with pytest.raises(common.Refused, match=r"cannot read Python's sources: .*python\.zip"):
        train(tmp_path)


def test_a_loss_that_is_no_number_ends_the_training(alone: None, tmp_path: Path) -> None:
    with pytest.raises(common.Refused, match=r"the loss is (nan|inf) in step 2: try a smaller --learning_rate"):
        train(tmp_path, "--learning_rate", "1e30")


def test_checkpoints_go_where_they_outlive_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DDPCTL_OUTPUT_DIR", "DDPCTL_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert job.parse_args([]).model_dir == "saved_models"
    monkeypatch.setenv("DDPCTL_OUTPUT_DIR", "/run/outputs")
    assert job.parse_args([]).model_dir == "/run/outputs"
    monkeypatch.setenv("DDPCTL_CHECKPOINT_DIR", "/kept")
    assert job.parse_args([]).model_dir == "/kept"


@pytest.mark.torch
def test_a_torch_that_is_too_old_says_which_is_needed(debian: Interpreter) -> None:
    done = ended(started([debian.path, str(JOBS / "fsdp_gpt.py")]))
    version = debian.torch.split()[0]
    line = f"fsdp_gpt: torch {version} has no fully_shard: torch 2.6 or newer is needed"
    assert (done.status, done.stderr.splitlines()) == (1, [line])
