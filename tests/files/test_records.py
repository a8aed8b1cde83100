"""The records that this machine keeps about its runs."""

from __future__ import annotations

import itertools
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.files import records
from ddpctl.files.positions import Positions, load_positions
from ddpctl.files.records import (
    forget_hashes,
    forget_run,
    last_end,
    last_hashes,
    recorded_runs,
    save_end,
    save_hashes,
    save_run,
    state_dir,
)
from tests.examples import few

_NUMBERS = itertools.count(100)


@pytest.fixture(autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


def test_the_newest_run_of_a_job_and_any_run_by_its_id() -> None:
    save_run("train", "train-1", {"hosts": ["a"]})
    save_run("train", "train-2", {"hosts": ["b"]})
    assert recorded_runs("train") == [{"hosts": ["b"], "job": "train", "run": "train-2"}]
    assert recorded_runs("train-1") == [{"hosts": ["a"], "job": "train", "run": "train-1"}]
    assert recorded_runs("other") == []
    assert recorded_runs("../../etc/passwd") == []


def test_the_last_run_of_a_job_is_kept_for_each_inventory_file() -> None:
    for number, file in enumerate(("/a/inventory.yaml", "/b/inventory.yaml", "/a/inventory.yaml")):
        save_run("train", f"r{number}", {"inventory": file})
    assert [(one["run"], one["inventory"][:2]) for one in recorded_runs("train")] == [("r2", "/a"), ("r1", "/b")]
    forget_run("r2")
    assert [one["run"] for one in recorded_runs("train")] == ["r1", "r0"]
    forget_run("r1")
    assert [one["run"] for one in recorded_runs("train")] == ["r0"]


def test_the_folder_of_an_inventory_may_have_a_name_that_is_not_utf_8() -> None:
    file = os.fsdecode(b"/caf\xe9/inventory.yaml")
    save_run("train", "r1", {"inventory": file})
    assert [run["inventory"] for run in recorded_runs("train")] == [file]


def test_runs_by_the_beginning_of_their_ids() -> None:
    for run in ("20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"):
        save_run("train", run, {})
    assert [one["run"] for one in recorded_runs("20260101")] == ["20260101T000000Z-aaaaaa"]
    assert len(recorded_runs("2026")) == 2
    assert recorded_runs("202") == recorded_runs("../20") == []
    save_run("2026", "train-1", {})
    assert [one["run"] for one in recorded_runs("2026")] == ["train-1"]  # a name wins


def test_a_run_that_is_forgotten_leaves_nothing_and_the_one_before_is_the_last_again() -> None:
    for number in (1, 2):
        save_run("train", f"run-{number}", {})
        save_positions(f"run-{number}", {"a": number})
        save_end(f"run-{number}", {"state": "failed"})
    save_run("other", "run-3", {})
    forget_run("run-2")
    assert not (state_dir() / "runs" / "run-2").exists()
    assert recorded_runs("train") == [{"job": "train", "run": "run-1"}]
    forget_run("run-1")
    forget_run("run-1")
    assert recorded_runs("train") == []
    assert recorded_runs("other") != []
    with pytest.raises(ValueError, match="not the name of a run"):
        forget_run("../last")


def save_positions(run: str, positions: dict[str, int]) -> None:
    with Positions(run) as file:
        file.save(positions)


def test_records_are_for_this_user_alone() -> None:
    save_run("train", "train-1", {})
    save_positions("train-1", {"a": 1})
    for path in state_dir().rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_end_is_remembered_once_and_only_that_of_its_run() -> None:
    assert last_end("train-1") is None
    save_end("train-1", {"state": "succeeded"})
    save_end("train-1", {"state": "failed"})
    assert last_end("train-1") == {"state": "succeeded"}
    assert last_end("train-2") is None
    assert last_end("../../etc") is None


def test_a_damaged_record_is_no_record(caplog: pytest.LogCaptureFixture) -> None:
    save_run("train", "run-1", {})
    for path in (state_dir() / "last").glob("train@*.json"):
        path.write_text('{"run": ')
    assert recorded_runs("train") == []
    assert "cannot be read" in caplog.text


def test_old_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEEP_RUNS", 3)
    for number in range(5):
        save_run("train", f"train-{number}", {})
        save_positions(f"train-{number}", {"a": number})
        os.utime(state_dir() / "runs" / f"train-{number}", (number, number))
    save_run("train", "train-5", {})
    assert sorted(path.name for path in (state_dir() / "runs").iterdir()) == ["train-3", "train-4", "train-5"]


def test_positions_that_cannot_be_read_are_unknown() -> None:
    (state_dir() / "runs" / "run-1" / "positions").mkdir(parents=True)
    assert load_positions("run-1") == {}


def test_positions_come_back() -> None:
    assert load_positions("run-1") == {}
    assert load_positions("../x") == {}
    save_positions("run-1", {"a": 10, "b": 0})
    save_positions("run-1", {"a": 20, "c": 2**63})
    save_positions("run-1", {})
    assert load_positions("run-1") == {"a": 20, "b": 0, "c": 2**63}


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "n" * 63]), st.integers(0, 2**64 - 1)), max_size=8))
@few
def test_the_last_position_counts(saves: list[dict[str, int]]) -> None:
    run = f"run-{next(_NUMBERS)}"
    want: dict[str, int] = {}
    for save in saves:
        save_positions(run, save)
        want.update(save)
    assert load_positions(run) == want


def test_a_torn_slot_falls_back_to_the_one_before() -> None:
    """Whatever bytes of the newer slot reached the disk, the older slot is still there."""
    save_positions("run-1", {"a": 111})
    save_positions("run-1", {"a": 222})
    file = state_dir() / "runs" / "run-1" / "positions"
    whole = file.read_bytes()
    newer = 64 + 24
    for cut in range(24):
        file.write_bytes(whole[:newer] + whole[newer : newer + cut] + b"\xaa" * (24 - cut) + whole[newer + 24 :])
        assert load_positions("run-1")["a"] in (111, 222)
    file.write_bytes(whole[:100])
    assert load_positions("run-1") == {}


WRITER = """
import sys
from ddpctl.files.positions import Positions
number = 0
while True:
    number += 1
    with Positions("run-1") as file:
        file.save({f"host{index}": number for index in range(8)})
    if number == 1:
        print("ready", flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_a_value_it_wrote() -> None:
    last = dict.fromkeys((f"host{index}" for index in range(8)), 0)
    for _ in range(15):
        writer = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(random.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = load_positions("run-1")
        assert set(found) == set(last)
        assert len(set(found.values())) == 1, "a save of all hosts is there or is not"
        assert min(found.values()) >= 1


def test_the_folder_follows_the_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir() == tmp_path / "ddpctl" / "controller"


def test_the_hashes_of_a_data_folder_are_kept_for_that_folder_until_they_are_wrong(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    save_hashes(data, {"a": [1, 2, 3, 4, "0" * 64]})
    assert last_hashes(tmp_path / "link") == {"a": [1, 2, 3, 4, "0" * 64]}
    assert last_hashes(other) is None
    forget_hashes(data)
    assert last_hashes(data) is None
