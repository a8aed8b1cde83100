"""Paths of the working folder that are kept from run to run, as scripts really use them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpctl_worker.channel import WorkerError
from ddpctl_worker.checkpoint.links import adopt, tie
from tests.worker.test_whole import saved_by_torch


class Runs:
    """Runs of one job: each has a working folder of its own, all have one folder for checkpoints."""

    def __init__(self, top: Path) -> None:
        self.top, self.folder = top, top / "checkpoints"
        self.folder.mkdir()
        self.count = 0

    def begin(self, *paths: str, code: dict[str, str] | None = None) -> Path:
        self.count += 1
        cwd = self.top / f"run{self.count}"
        for name, text in (code or {"train.py": ""}).items():
            (cwd / name).parent.mkdir(parents=True, exist_ok=True)
            (cwd / name).write_text(text)
        self.tied = tie(str(cwd), str(self.folder), paths)
        return cwd

    def look(self) -> list[bool]:
        """What the keeper does."""
        return [adopt(here, there) for here, there in self.tied.items()]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def in_place(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def aside(path: Path, text: str) -> None:
    other = path.with_name("aside.tmp")
    other.write_text(text)
    os.replace(other, path)


def removed_first(path: Path, text: str) -> None:
    if path.exists():
        path.unlink()
    path.write_text(text)


def with_prev(path: Path, text: str) -> None:
    """As worker/jobs/checkpoint.py: the one before keeps another name."""
    path.with_name("aside.tmp").write_text(text)
    if path.exists():
        os.replace(path, path.with_name(path.name + ".prev"))
    os.replace(path.with_name("aside.tmp"), path)


WRITERS = [in_place, aside, removed_first, with_prev]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("path", ["snapshot.pt", "saved_models/snapshot.pt"])
def test_a_file_is_found_by_the_next_run(runs: Runs, path: str, write: Callable[[Path, str], None]) -> None:
    cwd = runs.begin(path, code={"train.py": "", "saved_models/.gitkeep": ""})
    assert not (cwd / path).exists(), "a script asks that before it loads"
    for text in ("one", "two", "three"):
        write(cwd / path, text)
        runs.look()
        assert (cwd / path).read_text() == (runs.folder / path).read_text() == text
        assert runs.look() == [False], "once is enough"
    assert (runs.begin(path, code={"saved_models/.gitkeep": ""}) / path).read_text() == "three"


@pytest.mark.parametrize("write", WRITERS)
def test_a_folder_is_found_by_the_next_run(runs: Runs, write: Callable[[Path, str], None]) -> None:
    cwd = runs.begin("saved_models")
    os.makedirs(cwd / "saved_models", exist_ok=True)
    for text in ("one", "two"):
        write(cwd / "saved_models" / "x.pt", text)
    assert (runs.folder / "saved_models" / "x.pt").read_text() == "two"
    assert (runs.begin("saved_models") / "saved_models" / "x.pt").read_text() == "two"


def test_the_file_before_stays_until_the_next_one_is_whole(runs: Runs) -> None:
    cwd = runs.begin("snapshot.pt")
    aside(cwd / "snapshot.pt", "one")
    runs.look()
    (cwd / "snapshot.pt.tmp").write_text("tw")
    runs.look()
    assert (runs.folder / "snapshot.pt").read_text() == "one"


def test_an_empty_file_takes_no_place(runs: Runs) -> None:
    cwd = runs.begin("snapshot.pt")
    aside(cwd / "snapshot.pt", "one")
    runs.look()
    removed_first(cwd / "snapshot.pt", "")
    assert runs.look() == [False]
    assert (runs.folder / "snapshot.pt").read_text() == "one"


@pytest.mark.parametrize(("path", "folder"), [("out", True), ("out.v2/", True), ("a/b", True), ("out.v2", False)])
def test_a_name_with_an_ending_is_a_file(runs: Runs, path: str, folder: bool) -> None:
    assert (runs.begin(path) / path.rstrip("/")).is_dir() is folder


def test_what_is_there_already_says_whether_it_is_a_file(runs: Runs) -> None:
    (runs.folder / "out.v2").mkdir()
    (runs.folder / "best").write_text("weights")
    cwd = runs.begin("out.v2", "best")
    assert (cwd / "out.v2").is_dir()
    assert (cwd / "best").read_text() == "weights"


def test_what_the_code_brings_is_there_in_the_first_run(runs: Runs) -> None:
    cwd = runs.begin("saved", code={"saved/pretrained.pt": "old", "saved/deep/x": "x"})
    assert (cwd / "saved" / "pretrained.pt").read_text() == "old"
    assert (runs.folder / "saved" / "deep" / "x").read_text() == "x"


def test_the_jobs_own_is_newer_than_what_the_code_brings(runs: Runs) -> None:
    code = {"saved/a.pt": "code", "saved/deep/b.pt": "code", "snapshot.pt": "code"}
    cwd = runs.begin("saved", "snapshot.pt", code=code)
    in_place(cwd / "saved" / "a.pt", "job")
    in_place(cwd / "snapshot.pt", "job")
    cwd = runs.begin("saved", "snapshot.pt", code={**code, "saved/new.pt": "code", "saved/deep/c.pt": "code"})
    assert (cwd / "saved" / "a.pt").read_text() == (cwd / "snapshot.pt").read_text() == "job"
    assert (cwd / "saved" / "new.pt").read_text() == (cwd / "saved" / "deep" / "c.pt").read_text() == "code"


def test_a_repeated_start_finds_its_links(runs: Runs) -> None:
    cwd = runs.begin("saved", "snapshot.pt")
    assert tie(str(cwd), str(runs.folder), ["saved", "snapshot.pt"]) == runs.tied


def replaced(path: Path, content: bytes, *, at: float = 0) -> None:
    """What a script leaves that was killed before the keeper looked."""
    if path.is_symlink():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))


def aside_in(folder: Path) -> list[bytes]:
    return [one.read_bytes() for one in folder.glob(".*.aside-*")]


@pytest.mark.parametrize("path", ["snapshot.pt", "saved/snapshot.pt"])
def test_what_a_killed_script_wrote_last_is_what_the_next_attempt_finds(runs: Runs, path: str) -> None:
    tied = path.partition("/")[0]
    cwd = runs.begin(tied)
    there = runs.folder / path
    replaced(there, b"old", at=1000)
    if tied != path:
        (cwd / tied).unlink()
    replaced(cwd / path, saved_by_torch(), at=2000)
    tie(str(cwd), str(runs.folder), [tied], again=True)
    assert (cwd / tied).is_symlink()
    assert there.read_bytes() == saved_by_torch()
    assert aside_in(there.parent) == [b"old"]


@pytest.mark.parametrize(("content", "at"), [(saved_by_torch(), 500), (saved_by_torch()[:-9], 2000), (b"half", 2000)])
def test_what_is_older_or_may_be_cut_is_set_aside(runs: Runs, content: bytes, at: float) -> None:
    cwd = runs.begin("snapshot.pt")
    replaced(runs.folder / "snapshot.pt", b"old", at=1000)
    replaced(cwd / "snapshot.pt", content, at=at)
    tie(str(cwd), str(runs.folder), ["snapshot.pt"], again=True)
    assert (runs.folder / "snapshot.pt").read_bytes() == b"old"
    assert aside_in(runs.folder) == [content]


def test_what_the_keeper_has_seen_is_not_set_aside(runs: Runs) -> None:
    cwd = runs.begin("snapshot.pt")
    aside(cwd / "snapshot.pt", "one")
    runs.look()
    tie(str(cwd), str(runs.folder), ["snapshot.pt"], again=True)
    assert (cwd / "snapshot.pt").is_symlink()
    assert (cwd / "snapshot.pt").read_text() == "one"
    assert aside_in(runs.folder) == []


def test_without_hard_links_a_file_is_copied_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    cwd = runs.begin("snapshot.pt")
    for at, text in enumerate(("one", "three")):
        replaced(cwd / "snapshot.pt", text.encode(), at=1000 + at)
        assert runs.look() == [True]
        assert runs.look() == [False]
        assert (runs.folder / "snapshot.pt").read_text() == text
    assert [one.name for one in runs.folder.iterdir()] == ["snapshot.pt"]


@pytest.mark.parametrize(
    ("path", "here", "there"),
    [
        ("saved", "a link", None),
        ("saved/models", "a link above", None),
        ("saved", "a folder", "a file"),
        ("saved", "a file", "a folder"),
        ("saved/models", None, "a link above"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    runs: Runs, tmp_path: Path, path: str, here: str | None, there: str | None
) -> None:
    (tmp_path / "elsewhere").mkdir()
    cwd = tmp_path / "code"
    for top, what in ((cwd, here), (runs.folder, there)):
        top.mkdir(exist_ok=True)
        if what == "a file":
            (top / path).write_text("x")
        elif what == "a folder":
            (top / path).mkdir()
        elif what is not None:
            (top / "saved").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkerError):
        tie(str(cwd), str(runs.folder), [path])
    assert list((tmp_path / "elsewhere").iterdir()) == []
