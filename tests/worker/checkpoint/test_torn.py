"""Writers that are killed in the middle of a checkpoint, while the other ranks live on for a while: nothing that they
leave is resumed from, and the checkpoint before it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpctl.spec.checkpoints import JobCheckpoints
from ddpctl.spec.origin import JobId
from ddpctl_worker.checkpoint.listing import read_checkpoints
from ddpctl_worker.machine import notes
from ddpctl_worker.rules.choice import newest_of_series
from ddpctl_worker.rules.unite import unite
from tests.worker.checkpoint.test_keeper import Node
from tests.worker.checkpoint.test_metadata import index
from tests.worker.checkpoint.test_whole import safetensors, saved_by_torch

pytestmark = pytest.mark.slow  # each case kills a process while it writes

DIE = "\nfile.flush(); os.fsync(file.fileno()); os.kill(os.getpid(), 9)\n"
DIE_NOW = "\nos.kill(os.getpid(), 9)\n"
STAY = "\nfile.flush(); print('there', flush=True); time.sleep(600)\n"


def part(path: str, what: str = "weights") -> str:
    """Opens the file and writes two thirds of its bytes."""
    return f"file = open(begin({path!r}), 'wb'); file.write({what}[: len({what}) * 2 // 3])"


def all_of(path: str, what: str = "weights") -> str:
    return f"file = open(begin({path!r}), 'wb'); file.write({what}); file.close()"


SHARD = all_of("step_2/__0_0.distcp", "shard") + "\n"
WHOLE = SHARD + all_of("step_2/.metadata", "one") + "\n"
TWO_SHARDS = all_of("step_2/__0_0.distcp", "shard") + "\n" + all_of("step_2/__1_0.distcp", "shard") + "\n"
KILLED = {
    "torch.save": part("step_2.pt", "torch") + DIE,
    "safetensors": part("step_2.safetensors", "tensors") + DIE,
    "unknown format": part("step_2.bin") + DIE,
    "first byte": "file = open(begin('step_2.pt'), 'wb')" + DIE,
    "unknown format, first bytes": part("step_2.ckpt", "weights[:4]") + DIE,
    "file aside": part("step_2.pt.tmp", "torch") + DIE,
    "hidden file aside": part(".step_2.pt.x81", "torch") + DIE,
    "before the rename": all_of("step_2.bin.part") + DIE_NOW,
    "second file of a folder": all_of("step_2/model.safetensors", "tensors") + "\n" + part("step_2/optim.pt") + DIE,
    "torch.save in a folder": all_of("step_2/a.pt", "torch") + "\n" + part("step_2/b.pt", "torch") + DIE,
    "unknown format in a folder": part("step_2/model.bin") + DIE,
    "before the index": TWO_SHARDS + DIE_NOW,
    "index aside": TWO_SHARDS + part("step_2/.metadata.tmp", "both") + DIE,
    "within the index": TWO_SHARDS + part("step_2/.metadata", "both") + DIE,
    "index of a shard that is not there": SHARD + all_of("step_2/.metadata", "both") + DIE_NOW,
    "shard cut": part("step_2/__0_0.distcp", "shard") + "\n" + all_of("step_2/.metadata", "one") + DIE_NOW,
    "shard aside": part("step_2/__0_0.distcp.tmp", "shard") + "\n" + all_of("step_2/.metadata", "one") + DIE_NOW,
    "unknown format beside shards": WHOLE + part("step_2/optim.bin") + DIE,
    "torch.save beside shards": WHOLE + part("step_2/optim.pt", "torch") + DIE,
    "second folder of shards": WHOLE.replace("_2/", "_2/model/") + SHARD.replace("_2/", "_2/optim/") + DIE_NOW,
}  # fmt: skip


def program(folder: Path, script: str) -> list[str]:
    values = {
        "weights": b"x" * 3000,
        "torch": saved_by_torch(),
        "tensors": safetensors(),
        "shard": b"x" * 10,
        "one": index(("__0_0.distcp", 0, 10)),
        "both": index(("__0_0.distcp", 0, 10), ("__1_0.distcp", 0, 10)),
    }
    given = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    begin = f"""
def begin(name):
    path = os.path.join({str(folder)!r}, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
"""
    return [sys.executable, "-c", f"import os, time\n{given}\n{begin}\n{script}"]


def killed(node: Node, script: str) -> None:
    assert subprocess.run(program(node.folder, script), check=False).returncode == -signal.SIGKILL


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """It has a complete checkpoint of the run before."""
    made = Node(tmp_path / "train" / "a", "a", monkeypatch)
    made.write("step_1.bin")
    assert made.looks() == ["step_1.bin"]
    made.begin()
    return made


def resumed(node: Node) -> list[str]:
    """What a start resumes from, which is what the list calls complete."""
    manifests, _ = read_checkpoints(str(node.folder.parent))
    found = [one.entry for one in newest_of_series(manifests)]
    assert [
        one.entry for one in JobCheckpoints(JobId("lab", "exp", "train"), tuple(unite({"a": manifests}))).resumed
    ] == found
    return found


def died(node: Node) -> None:
    """Clearly later than the accepted version."""
    node.keeper.note_death(time.time() + 1, 0.0)


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in KILLED.items()])
def test_what_a_killed_writer_leaves_is_not_resumed(node: Node, script: str) -> None:
    killed(node, script)
    died(node)
    node.looks(4)
    assert resumed(node) == ["step_1.bin"], "while the other ranks wait for the dead one"
    node.end(well=False)
    assert resumed(node) == ["step_1.bin"]


def test_a_writer_that_hangs_has_not_finished(node: Node) -> None:
    process = subprocess.Popen(program(node.folder, part("step_2.bin") + STAY), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        node.looks(4)
        assert resumed(node) == ["step_1.bin"]
    finally:
        process.kill()
        process.communicate()
    died(node)
    node.looks(4)
    assert resumed(node) == ["step_1.bin"]


def test_a_writer_that_closes_its_file_late_has_finished_then(node: Node) -> None:
    file = node.write("step_2.bin").open("ab")
    node.looks()
    assert resumed(node) == ["step_1.bin"]
    file.close()
    assert node.looks() == ["step_2.bin"]


def test_what_was_believed_before_the_word_of_a_death_came_is_not_resumed(node: Node) -> None:
    killed(node, part("step_2.bin") + DIE)
    begun = node.now
    assert node.looks() == ["step_2.bin"]
    node.keeper.note_death(time.time() - (node.now - begun), 0.0)
    assert resumed(node) == ["step_1.bin"]


def test_what_came_to_rest_before_a_death_stays(node: Node) -> None:
    node.write("step_2.bin")
    node.looks()
    died(node)
    node.looks()
    assert resumed(node) == ["step_2.bin"]


def test_ranks_that_their_launcher_started_again_are_believed_again(node: Node) -> None:
    node.write("step_2.bin")
    died(node)
    node.looks()
    again = time.time()
    node.keeper.note_death(None, again)
    node.looks()
    assert resumed(node) == ["step_1.bin"], "it is of the ranks before"
    os.utime(node.write("step_3.bin"), (again + 5, again + 5))
    assert node.looks() == ["step_3.bin"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pause_between_two_looks_at_clocks_makes_no_file_newer(
    node: Node, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def read_slowly() -> float:
        if when == "before":
            time.sleep(0.1)
        found = time.clock_gettime(time.CLOCK_BOOTTIME)
        if when == "after":
            time.sleep(0.1)
        return found

    node.write("step_2.bin")
    died(node)
    node.looks()
    monkeypatch.setattr(notes, "boottime", read_slowly)
    node.keeper.note_death(None, time.time())
    node.looks()
    assert resumed(node) == ["step_1.bin"], "it is of the ranks before"


def test_a_file_with_other_bytes_than_its_hash_is_not_resumed(node: Node) -> None:
    node.write("step_2.bin")
    node.looks()
    (node.folder / "step_2.bin").write_bytes(b"WEIGHTS")
    assert resumed(node) == ["step_1.bin"]


def test_a_file_that_was_added_to_a_folder_by_a_killed_writer_takes_the_folder_from_the_list(node: Node) -> None:
    node.write("step_2/model.safetensors", safetensors())
    node.end(well=True)
    assert "step_2" in {one["entry"] for one in read_checkpoints(str(node.folder.parent))[0]}
    killed(node, part("step_2/optim.pt", "torch") + DIE)
    assert resumed(node) == ["step_1.bin"]
