"""The training programs under torch's launcher: several processes on loopback, with a new and an old torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import JOBS, Ended, Interpreter, both_interpreters, ended, free_port, started

pytestmark = pytest.mark.torch

EPOCH = re.compile(r"^epoch (\d+)/(\d+) loss (\d+\.\d{4}) accuracy (\d\.\d{3}) time \d+\.\ds$", re.MULTILINE)
QUICK = ("--data_dir", "synthetic", "--train_size", "400", "--test_size", "200", "--width", "8", "--batch_size", "8")


@pytest.mark.full(
    covered_by="tests/jobs/test_resnet_ddp.py::test_three_ranks_of_which_one_is_killed_continue_to_the_same_end"
)
def test_two_processes_learn_and_go_on_from_their_checkpoint(debian: Interpreter, tmp_path: Path) -> None:
    """With the old torch; test_resnet_ddp.py does it with the new torch."""
    args = (*QUICK, "--learning_rate", "0.02", "--model_dir", str(tmp_path), "--resume")
    first = debian.launch(2, "resnet_ddp.py", *args, "--num_epochs", "2", "--num_workers", "1")
    assert first.status == 0, first.stderr
    assert "UserWarning" not in first.stderr
    assert (
        len(re.findall(r"^rank ([01]) local_rank \1 world_size 2 host \S+ pid \d+ device ", first.stdout, re.MULTILINE))
        == 2
    )
    second = debian.launch(2, "resnet_ddp.py", *args, "--num_epochs", "3")
    assert second.status == 0, second.stderr
    assert f"resumed {tmp_path}/resnet_ddp.ckpt of epoch 2\n" in second.stdout
    assert len(re.findall(r"^2 replicas, the same to the last bit: ", first.stdout + second.stdout, re.MULTILINE)) == 2
    epochs = EPOCH.findall(first.stdout + second.stdout)
    assert [epoch[0] for epoch in epochs] == ["1", "2", "3"]
    assert float(epochs[2][2]) < float(epochs[0][2]) - 0.5
    assert float(epochs[2][3]) > 0.3


@both_interpreters("tests/jobs/test_launch.py::test_a_node_with_other_data_stops_all")
def test_a_node_with_other_data_stops_all(interpreter: Interpreter, tmp_path: Path) -> None:
    one, other = two_ranks(interpreter, tmp_path, ["--train_size", "100"], ["--train_size", "90"])
    assert one.status == other.status == 1
    assert "resnet_ddp: 100 training images here, 90 to 100 elsewhere: all nodes need the same" in one.stderr
    assert "resnet_ddp: 90 training images here, 90 to 100 elsewhere: all nodes need the same" in other.stderr


@both_interpreters("tests/jobs/test_launch.py::test_a_rank_that_fails_does_not_leave_the_other_waiting")
def test_a_rank_that_fails_does_not_leave_the_other_waiting(interpreter: Interpreter, tmp_path: Path) -> None:
    one, other = two_ranks(interpreter, tmp_path, [], ["--data_dir", str(tmp_path)])
    assert one.status == other.status == 1
    assert other.stderr.splitlines()[-1].startswith(f"resnet_ddp: no CIFAR-10 in {tmp_path}: ")


def two_ranks(interpreter: Interpreter, folder: Path, *differences: list[str]) -> list[Ended]:
    """Run two processes without a launcher, so that the failure of a process does not end its peer."""
    port, command = (
        str(free_port()),
        [interpreter.path, str(JOBS / "resnet_ddp.py"), *QUICK, "--model_dir", str(folder)],
    )
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": "0"}
    ranks = [started([*command, *args], RANK=str(rank), **place) for rank, args in enumerate(differences)]
    return [ended(rank) for rank in ranks]


@both_interpreters("tests/jobs/test_launch.py::test_init_proc_reports_every_phase_of_every_rank")
def test_init_proc_reports_every_phase_of_every_rank(interpreter: Interpreter) -> None:
    done = interpreter.launch(2, "init_proc.py", "--size_mb", "1")
    assert done.status == 0, done.stderr
    reports = reports_of(done)
    assert [report["rank"] for report in reports] == [0, 1]
    for report in reports:
        assert report["ok"] is True
        assert (report["world_size"], report["backend"], report["phase"], report["error"]) == (2, "gloo", None, None)
        phases = ["import", "init_process_group", "all_reduce", "barrier", "bandwidth", "destroy_process_group"]
        assert list(report["seconds"]) == phases
        assert report["mb_per_s"] > 0
        assert f"pid {report['pid']} rank {report['rank']} of 2 local_rank {report['rank']} host " in done.stdout


@both_interpreters("tests/jobs/test_launch.py::test_init_proc_names_the_phase_that_failed")
def test_init_proc_names_the_phase_that_failed(interpreter: Interpreter) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = ended(started([interpreter.path, str(JOBS / "init_proc.py"), "--timeout", "2"], **place))
    assert done.status == 1
    (report,) = reports_of(done)
    assert (report["ok"], report["phase"]) == (False, "init_process_group")
    assert report["error"]


@both_interpreters("tests/jobs/test_launch.py::test_init_proc_alone_says_how_to_start_it")
def test_init_proc_alone_says_how_to_start_it(interpreter: Interpreter) -> None:
    done = ended(started([interpreter.path, str(JOBS / "init_proc.py")]))
    assert done.status == 2
    assert "no RANK in the environment" in done.stderr


def reports_of(done: Ended) -> list[dict[str, Any]]:
    """The machine-readable lines, by rank."""
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(reports, key=lambda report: report["rank"])
