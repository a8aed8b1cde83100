"""Checkpoints: never half written, damage is found and named, and only rank 0 needs the file."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import Lazy

from .conftest import forked

torch = Lazy("torch")
checkpoint = Lazy("checkpoint")
common = Lazy("common")


def state(number: int) -> dict[str, Any]:
    """Return a state that is different for every number."""
    return {"epoch": number, "model": {"weight": torch.full((1000,), float(number))}}


@pytest.fixture
def alone_place(alone: None) -> Any:
    """The place of the only rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return common.Place(0, 0, 1, torch.device("cpu"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a checkpoint that has been saved twice."""
    path = tmp_path / "new" / "a.ckpt"
    checkpoint.save(str(path), state(1))
    checkpoint.save(str(path), state(2))
    return path


def names(path: Path) -> list[str]:
    """Return the files in the checkpoint's folder."""
    return sorted(each.name for each in path.parent.iterdir())


def test_the_newest_is_taken_and_the_one_before_it_kept(path: Path, alone_place: Any) -> None:
    assert names(path) == ["a.ckpt", "a.ckpt.prev"]
    name, found = checkpoint.resume(str(path), alone_place)
    assert (name, found["epoch"]) == (str(path), 2)
    assert checkpoint.load(f"{path}.prev", alone_place)["epoch"] == 1


def test_what_cannot_be_saved_leaves_the_old_checkpoint(path: Path, alone_place: Any) -> None:
    with pytest.raises(Exception, match="lambda"):
        checkpoint.save(str(path), {"epoch": lambda: 3})
    assert checkpoint.resume(str(path), alone_place)[1]["epoch"] == 2


def test_a_full_disk_is_named_and_leaves_the_old_checkpoint(
    path: Path, alone_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(common.JobError, match=rf"cannot write {path} \(No space left on device\): free the disk or"):
        checkpoint.save(str(path), state(3))
    assert names(path) == ["a.ckpt", "a.ckpt.part", "a.ckpt.prev"]
    assert checkpoint.resume(str(path), alone_place)[1]["epoch"] == 2
    assert names(path) == ["a.ckpt", "a.ckpt.prev"]


@pytest.mark.parametrize("renames", [0, 1])
def test_an_end_at_any_rename_leaves_a_whole_checkpoint(
    path: Path, alone_place: Any, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    class Killed(BaseException):
        """An exception that no code catches."""

    done: list[str] = []
    rename = os.replace

    def killed(source: str, target: str) -> None:
        if len(done) == renames:
            raise Killed
        done.append(target)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            checkpoint.save(str(path), state(3))
    assert checkpoint.resume(str(path), alone_place)[1]["epoch"] == 2
    checkpoint.save(str(path), state(4))
    assert checkpoint.resume(str(path), alone_place)[1]["epoch"] == 4


def flipped(content: bytes) -> bytes:
    """A single bit of a tensor is wrong: torch.load says nothing."""
    where = content.index(torch.full((1000,), 2.0).numpy().tobytes()) + 2000
    return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda content: content[:-100], lambda content: bytes(len(content)), lambda content: b""],
    ids=["flipped-bit", "cut", "zeros", "empty"],
)
def test_a_damaged_one_is_named_and_the_one_before_it_taken(
    path: Path, alone_place: Any, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    path.write_bytes(damage(path.read_bytes()))
    name, found = checkpoint.resume(str(path), alone_place)
    assert (name, found["epoch"]) == (f"{path}.prev", 1)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{path} is damaged (")
    assert line.endswith(f"), now {path}.damaged: looking for the one before it")
    checkpoint.save(str(path), state(3))
    assert names(path) == ["a.ckpt", "a.ckpt.damaged", "a.ckpt.prev"]
    assert checkpoint.load(f"{path}.prev", alone_place)["epoch"] == 1


def test_torch_itself_does_not_see_a_wrong_bit(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes()))
    assert torch.load(path, weights_only=True)["epoch"] == 2


def test_where_all_are_damaged_there_is_nothing_to_resume(path: Path, alone_place: Any) -> None:
    path.write_bytes(b"a")
    Path(f"{path}.prev").write_bytes(b"b")
    assert checkpoint.resume(str(path), alone_place) is None


def test_a_new_training_sets_the_old_one_aside(
    path: Path, alone_place: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"{path}.part").touch()
    checkpoint.start_anew(str(path))
    assert capsys.readouterr().out == f"{path} of an earlier training is now {path}.old\n"
    assert names(path) == ["a.ckpt.old"]
    assert checkpoint.resume(str(path), alone_place) is None
    checkpoint.start_anew(str(path))
    assert names(path) == ["a.ckpt.old"]


def test_a_named_file_is_taken_or_refused(path: Path, alone_place: Any) -> None:
    path.write_bytes(flipped(path.read_bytes()))
    with pytest.raises(common.Refused, match=rf"cannot resume from {path} .*\(wrong checksum of .*data/0\): name"):
        checkpoint.load(str(path), alone_place)
    assert names(path) == ["a.ckpt", "a.ckpt.prev"]
    with pytest.raises(common.Refused, match=rf"cannot resume from {path}.no .*\(No such file or directory\): name"):
        checkpoint.load(f"{path}.no", alone_place)


def test_another_archive_is_refused(path: Path, alone_place: Any) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(common.Refused, match=rf"{path} is not a checkpoint \(.*\): name another file"):
        checkpoint.load(str(path), alone_place)
    torch.save([1], path)
    with pytest.raises(common.Refused, match=rf"{path} is not a checkpoint \(it holds a list\): name another file"):
        checkpoint.load(str(path), alone_place)


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.file,)


def test_a_checkpoint_runs_no_code(path: Path, alone_place: Any, tmp_path: Path) -> None:
    torch.save({"epoch": Calls(tmp_path / "ran")}, path)
    with pytest.raises(common.Refused, match="is not a checkpoint"):
        checkpoint.load(str(path), alone_place)
    assert not (tmp_path / "ran").exists()


RANK = """
import os, checkpoint, torch, torch.distributed as dist
from common import Place, Refused, say
dist.init_process_group("gloo")
rank = dist.get_rank()
place = Place(rank, rank, 2, torch.device("cpu"))
name, state = checkpoint.resume(os.environ["FILE"], place)
say(f"{rank} {os.path.exists(name)} {state['epoch']} {float(state['model']['weight'].sum())}")
try:
    checkpoint.load("nowhere", place)
except Refused:
    say(f"{rank} refused")
dist.destroy_process_group()
"""


def test_rank_0_reads_for_all(path: Path) -> None:
    done = forked(RANK, {"FILE": str(path)}, {"FILE": f"{path} on a host without it"})
    assert done.status == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == ["0 True 2 2000.0", "0 refused", "1 False 2 2000.0", "1 refused"]
