"""torch's dumps of NCCL's record: kept with the run, fetched, read. Not run on a GPU: the scripts write the files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.doctor import dumps
from ddpctl_worker.doctor.limits import DUMP_BYTES
from tests.worker.doctor.test_in_rank_import import fake_torch
from tests.worker.dumped import dump
from tests.worker.node import Node

NEW, OLD = dumps.STEMS
# As torch's DebugInfoWriter: it appends the rank to the stem that it finds in the environment.
SCRIPT = """
import os, sys, time
import torch.distributed.distributed_c10d
stem = os.environ.get("TORCH_FR_DUMP_TEMP_FILE") or os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
time.sleep(1.5)
with open("DATA-" + os.environ["RANK"], "rb") as source, open(stem + os.environ["RANK"], "wb") as file:
    file.write(source.read())
open("WRITTEN-" + os.environ["RANK"], "w").close()
while not (os.path.exists("WRITTEN-0") and os.path.exists("WRITTEN-1")):
    time.sleep(0.05)
time.sleep(30 if os.environ["RANK"] == "0" else 1)
sys.exit(1)
"""


def run_of(node: Node, data: dict[int, bytes], **env: str) -> str:
    """Return the id of a failed run. Its ranks have written ``data``."""
    for rank, content in data.items():
        (node.scratch / f"DATA-{rank}").write_bytes(content)
    env["PYTHONPATH"] = fake_torch(node.scratch / "lib")
    env["SERVERS"] = str(node.scratch)
    run = node.start(SCRIPT, node.record(doctor={"stall": 30.0}), env=env)
    assert node.wait_state(run)["state"] == "failed"
    return run


def looks_of(node: Node, run: str) -> dict[int, dict[str, Any]]:
    return {one["rank"]: one for one in node.call("doctor", run=run)["looks"]}


WAITS, DONE = dump({}), dump({"collective_seq_id": 7, "state": "completed", "retired": True})


@pytest.mark.parametrize("user", [{}, {NEW: "mine_rank_"}, {OLD: "mine_rank_"}], ids=["ours", "new", "old"])
def test_a_dump_is_kept_with_the_run_and_read(node: Node, user: dict[str, str]) -> None:
    run = run_of(node, {0: WAITS, 1: DONE}, **user)
    files, _ = node.files(run)
    assert {name: files[name] for name in files if name.startswith("record/nccl")} == {
        "record/nccl/rank_0": WAITS,
        "record/nccl/rank_1": DONE,
    }
    found = looks_of(node, run)
    assert found[0]["groups"]["0"]["entries"][-1][:4] == [8, "all_reduce", 6, False]
    assert found[1]["groups"]["0"]["entries"][-1][:4] == [7, "all_reduce", 6, True]
    assert found[0]["dumped"]
    assert "no record of its collectives" not in found[0]["missing"]


def test_what_an_earlier_run_left_is_not_taken(node: Node) -> None:
    for rank in range(2):
        path = node.scratch / f"before_{rank}"
        path.write_bytes(WAITS)
        os.utime(path, (1, 1))
    files, _ = node.files(run_of(node, {}, **{OLD: "before_"}))  # the script finds no data to write
    assert not [name for name in files if name.startswith("record/nccl")]


def test_a_dump_that_cannot_be_read_or_is_too_large_is_named(node: Node) -> None:
    run = run_of(node, {0: WAITS[:-30], 1: b"x" * (DUMP_BYTES + 1)})
    files, _ = node.files(run)
    assert {name for name in files if name.startswith("record/nccl")} == {"record/nccl/rank_0"}
    assert b"rank_1: larger than 4 MiB" in files["record/supervisor.log"]
    missing = {rank: " ".join(one["missing"]) for rank, one in looks_of(node, run).items()}
    assert "torch's dump doctor/nccl/rank_0: it is cut or damaged" in missing[0]
    assert "torch's dump doctor/nccl/rank_1: larger than 4 MiB" in missing[1]


def test_the_users_stems() -> None:
    assert dumps.users_stems({}, "/work") == []
    assert dumps.users_stems({NEW: "", OLD: "/tmp/rank_"}, "/work") == ["/tmp/rank_"]
    assert dumps.users_stems({NEW: "out/rank_", OLD: "/tmp/rank_"}, "/work") == ["/work/out/rank_", "/tmp/rank_"]


def test_the_newest_file_of_a_rank_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for number, name in enumerate(("new_3", "old_3", "old_4")):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (100 + number, 100 + number))
    stems = [f"{tmp_path}/new_", f"{tmp_path}/old_"]
    assert dumps.copy_dumps(stems, [3, 4, 5], 100.5, str(kept)) == []
    assert {one.name: one.read_text() for one in kept.iterdir()} == {"rank_3": "old_3", "rank_4": "old_4"}


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "large", "foreign"])
def test_what_is_no_dump_of_this_user_is_left_out(tmp_path: Path, kind: str) -> None:
    kept, path = tmp_path / "kept", tmp_path / "rank_0"
    kept.mkdir()
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"x" * (DUMP_BYTES + 1 if kind == "large" else 1))
    if kind == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 65534, 65534)
    # The call returns for the pipe too, although the pipe has no writer.
    (line,) = dumps.copy_dumps([f"{tmp_path}/rank_"], [0], 0.0, str(kept))
    assert line.startswith(f"{path}: ")
    assert list(kept.iterdir()) == []


def test_a_run_without_the_doctor_has_none(tmp_path: Path) -> None:
    assert dumps.list_dumps(str(tmp_path / "none")) == dumps.is_too_large(str(tmp_path / "none")) == []
    assert dumps.read_dump(str(tmp_path / "none"), 0) is None


def test_dumps_that_take_too_long_are_named(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(WAITS)
    assert dumps.read_dump(str(tmp_path), 0, time.monotonic() + 60.0)
    with pytest.raises(ValueError, match="took too long"):
        dumps.read_dump(str(tmp_path), 0, time.monotonic() - 1.0)
