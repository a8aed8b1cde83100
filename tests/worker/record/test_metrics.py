"""The lines that ranks write to DDPCTL_METRICS, and the worker's reading of any content."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.record import metrics, status
from ddpctl_worker.record.limits import METRICS_CALL_BYTES
from ddpctl_worker.record.metrics import read_new_values
from ddpctl_worker.record.paths import RunPaths
from tests.worker.checkpoints import JOB, OF_JOB
from tests.worker.node import Node

WRITES = """
import json, os
rank = int(os.environ["RANK"])
with open(os.environ["DDPCTL_METRICS"], "a") as file:
    for step in range(3):
        file.write(json.dumps({"step": step, "loss": step + rank / 10, "name": "text", "bad": float("nan")}) + "\\n")
    file.write('{"accuracy": 0.5}\\n{"step": 9')
"""


def test_each_rank_has_a_file_and_status_shows_the_last_values(node: Node) -> None:
    run = node.start(WRITES)
    found = node.wait_state(run)
    assert found["state"] == "succeeded"
    assert found["metrics"] == {
        "0": {"step": 2, "loss": 2.0, "accuracy": 0.5},
        "1": {"step": 2, "loss": 2.1, "accuracy": 0.5},
    }
    assert "metrics" not in node.call("status", all=True)["runs"][0]  # `ps` reads no file of a job's own
    assert {"metrics/rank-0.jsonl", "metrics/rank-1.jsonl"} <= set(node.files(run)[0])


def test_without_metrics_the_output_has_the_last_values(node: Node) -> None:
    prints = "for step in range(40):\n    print(f'epoch 1 step {step} loss {1 / (step + 1):.3f}')\nprint('saved')"
    found = node.wait_state(node.start(prints, node.record(nproc=1, ranks=[0])))
    assert (found["metrics"], found["printed"]) == ({}, {"epoch": 1, "step": 39, "loss": 0.025})
    silent = node.wait_state(node.start("print('no numbers')"))
    assert (silent["metrics"], silent["printed"]) == ({}, {})


def test_after_a_restart_the_values_of_the_newest_attempt_count_and_the_others_are_kept(node: Node) -> None:
    """A host may have other ranks in the next attempt."""
    run = node.start(WRITES)
    node.wait_state(run)
    folder = node.folder(run)
    for attempt, rank in ((1, 1), (2, 0)):
        (folder / "attempts" / str(attempt) / "metrics").mkdir(parents=True)
        file = folder / "attempts" / str(attempt) / "metrics" / f"rank-{rank}.jsonl"
        file.write_text(json.dumps({"step": attempt}) + "\n")
    told = [{"run": run, "attempt": 2, "record": OF_JOB}]
    assert status._with_metrics(told, str(node.base), node.host)[0]["metrics"] == {"0": {"step": 2}}
    told = [{"run": run, "attempt": 3, "record": OF_JOB}]
    assert status._with_metrics(told, str(node.base), node.host)[0]["metrics"] == {}, "it runs elsewhere now"
    assert node.call("metrics", run=run, offsets={"0": 5000})["ranks"]["0"]["lines"] == [{"step": 2}]
    sent = set(node.files(run)[0])
    assert {"metrics/rank-0.jsonl", "metrics/attempts/1/rank-1.jsonl"} <= sent
    assert "metrics/rank-1.jsonl" not in sent


def test_the_verb_gives_each_line_once(node: Node) -> None:
    run = node.start(WRITES)
    node.wait_state(run)
    first = node.call("metrics", run=run)["ranks"]
    assert [values.get("step") for values in first["0"]["lines"]] == [0, 1, 2, None]
    offsets = {rank: one["offset"] for rank, one in first.items()}
    assert all(not one["lines"] for one in node.call("metrics", run=run, offsets=offsets)["ranks"].values())
    with (node.folder(run) / "metrics" / "rank-1.jsonl").open("a") as file:
        file.write("}\n")  # the line that was half there
    again = node.call("metrics", run=run, offsets=offsets)["ranks"]
    assert (again["0"]["lines"], again["1"]["lines"]) == ([], [{"step": 9}])


def test_checkpoints_have_a_folder_that_outlives_the_run(node: Node) -> None:
    program = "import os; open(os.path.join(os.environ['DDPCTL_CHECKPOINT_DIR'], os.environ['RANK']), 'w').close()"
    tokens: dict[str, Any] = {
        "env": {"DDPCTL_CHECKPOINT_DIR": "{checkpoint_dir}"},
        "token_env": ["DDPCTL_CHECKPOINT_DIR"],
    }
    for _ in range(2):
        assert node.wait_state(node.start(program, **tokens))["state"] == "succeeded"
    folder = node.base / "checkpoints" / JOB / node.host
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_no_plain_file_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "link", "folder", "none"):
        assert read_new_values(str(tmp_path / name), 0, METRICS_CALL_BYTES) == (0, [])


def test_only_files_with_the_names_of_ranks_count(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    os.mkdir(paths.metrics)
    for name in ("rank-0.jsonl", "rank-12.jsonl", "rank-\u0664.jsonl", "rank-5.jsonl.gz", "mine.jsonl"):
        Path(paths.metrics, name).touch()
    assert set(metrics.files_of(paths)) == {"0", "12"}


def test_a_line_without_end_does_not_stop_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"a": 1' + b" " * 100 + b'}\n{"b": 2}\n')
    offset, lines = read_new_values(str(path), 0, 50)
    assert (offset, lines) == (50, [])
    while not lines:
        offset, lines = read_new_values(str(path), offset, 50)
    assert lines == [{"b": 2}]


@pytest.mark.slow
@given(st.binary(max_size=400), st.integers(-100, 500), st.integers(1, 200))
def test_any_bytes_give_numbers_or_nothing(data: bytes, offset: int, most: int) -> None:
    path = Path("/dev/shm") / f"ddpctl-metrics-{os.getpid()}"
    try:
        path.write_bytes(data)
        end, lines = read_new_values(str(path), offset, most)
    finally:
        path.unlink()
    assert 0 <= end <= max(len(data), offset)
    json.dumps(lines, allow_nan=False)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text(max_size=8), st.integers() | st.floats() | st.text() | st.booleans())))
def test_every_finite_number_arrives(written: list[dict[str, Any]]) -> None:
    path = Path("/dev/shm") / f"ddpctl-metrics-{os.getpid()}"
    try:
        path.write_text("".join(json.dumps(line) + "\n" for line in written))
        lines = read_new_values(str(path), 0, METRICS_CALL_BYTES)[1]
    finally:
        path.unlink()
    numbers = [{name: value for name, value in line.items() if is_number(value)} for line in written]
    assert lines == [line for line in numbers if line]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
