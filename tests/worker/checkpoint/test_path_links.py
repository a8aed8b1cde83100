"""Folders of the working folder that are kept from run to run, as scripts really use them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpctl_worker.checkpoint.links import link_folders
from ddpctl_worker.wire.channel import WorkerError


class Runs:
    """Runs of the same job: each has a working folder of its own, and all share a folder for checkpoints."""

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
        link_folders(str(cwd), str(self.folder), paths)
        return cwd


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
    """As worker/jobs/checkpoint.py: the earlier folder keeps another name."""
    path.with_name("aside.tmp").write_text(text)
    if path.exists():
        os.replace(path, path.with_name(path.name + ".prev"))
    os.replace(path.with_name("aside.tmp"), path)


WRITERS = [in_place, aside, removed_first, with_prev]


@pytest.mark.parametrize("write", WRITERS)
def test_a_folder_is_found_by_the_next_run(runs: Runs, write: Callable[[Path, str], None]) -> None:
    cwd = runs.begin("saved_models")
    os.makedirs(cwd / "saved_models", exist_ok=True)
    for text in ("one", "two"):
        write(cwd / "saved_models" / "x.pt", text)
    assert (runs.folder / "saved_models" / "x.pt").read_text() == "two"
    assert (runs.begin("saved_models") / "saved_models" / "x.pt").read_text() == "two"


@pytest.mark.parametrize("path", ["out", "out.v2/", "a/b"])
def test_a_folder_is_made_where_there_is_none(runs: Runs, path: str) -> None:
    assert (runs.begin(path) / path).is_dir()


def test_what_the_code_brings_is_there_in_the_first_run(runs: Runs) -> None:
    cwd = runs.begin("saved", code={"saved/pretrained.pt": "old", "saved/deep/x": "x"})
    assert (cwd / "saved" / "pretrained.pt").read_text() == "old"
    assert (runs.folder / "saved" / "deep" / "x").read_text() == "x"


def test_the_jobs_own_is_newer_than_what_the_code_brings(runs: Runs) -> None:
    code = {"saved/a.pt": "code", "saved/deep/b.pt": "code"}
    cwd = runs.begin("saved", code=code)
    in_place(cwd / "saved" / "a.pt", "job")
    cwd = runs.begin("saved", code={**code, "saved/new.pt": "code", "saved/deep/c.pt": "code"})
    assert (cwd / "saved" / "a.pt").read_text() == "job"
    assert (cwd / "saved" / "new.pt").read_text() == (cwd / "saved" / "deep" / "c.pt").read_text() == "code"
    assert not list(runs.folder.rglob(".*"))


def test_a_repeated_start_finds_its_links(runs: Runs) -> None:
    cwd = runs.begin("saved")
    in_place(cwd / "saved" / "a.pt", "job")
    link_folders(str(cwd), str(runs.folder), ["saved"])
    assert (cwd / "saved" / "a.pt").read_text() == "job"


def test_a_folder_that_a_script_made_in_the_links_place_is_not_deleted(runs: Runs) -> None:
    cwd = runs.begin("saved")
    in_place(cwd / "saved" / "a.pt", "before")
    (cwd / "saved").unlink()
    (cwd / "saved").mkdir()
    in_place(cwd / "saved" / "a.pt", "after")
    in_place(cwd / "saved" / "b.pt", "after")
    link_folders(str(cwd), str(runs.folder), ["saved"], again=True)
    assert (cwd / "saved").is_symlink()
    assert {one.name: one.read_text() for one in (runs.folder / "saved").glob("[ab]*")} == {
        "a.pt": "before",
        "b.pt": "after",
    }
    assert [one.read_text() for one in (runs.folder / "saved").glob(".a.pt.aside-*")] == ["after"]


@pytest.mark.parametrize(
    ("path", "here", "there"),
    [
        ("saved", "a link", None),
        ("saved/models", "a link above", None),
        ("saved", "a folder", "a file"),
        ("saved", "a file", None),
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
        link_folders(str(cwd), str(runs.folder), [path])
    assert list((tmp_path / "elsewhere").iterdir()) == []
