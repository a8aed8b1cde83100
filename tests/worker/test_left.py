"""Which of the files that an ended run left in a link's place become the job's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ddpctl_worker.checkpoint.left import adopt_left
from ddpctl_worker.paths import RunPaths
from tests.worker.test_whole import saved_by_torch


class EndedRun:
    """``save`` is what its script did last."""

    def __init__(self, top: Path) -> None:
        self.here, self.there = top / "run" / "a" / "code" / "snapshot.x", top / "job" / "snapshot.x"
        self.here.parent.mkdir(parents=True)
        self.there.parent.mkdir()
        self.paths = RunPaths(str(top / "run" / "a"))
        Path(self.paths.state).write_text(json.dumps({"tied": {str(self.here): str(self.there)}}))
        self.end("killed")

    def end(self, state: str) -> None:
        Path(self.paths.exit).write_text(json.dumps({"state": state}))

    def write(self, here: bytes | None, there: bytes | None, *, newer: bool = True) -> None:
        for path, content, at in ((self.here, here, 2000 if newer else 500), (self.there, there, 1000)):
            if content is not None:
                path.write_bytes(content)
                os.utime(path, (at, at))

    def content(self) -> bytes | None:
        return self.there.read_bytes() if self.there.exists() else None

    def aside(self) -> list[bytes]:
        return [path.read_bytes() for path in self.there.parent.glob(".snapshot.x.aside-*")]


@pytest.fixture
def run(tmp_path: Path) -> EndedRun:
    return EndedRun(tmp_path)


TORCH = saved_by_torch()


@pytest.mark.parametrize("there", [None, b"old"])
@pytest.mark.parametrize(
    ("here", "state", "used"),
    [
        (TORCH, "killed", True),
        (TORCH[:-9], "killed", False),
        (TORCH[:-9], "succeeded", False),
        (b"unknown", "killed", False),
        (b"unknown", "succeeded", True),
        (b"", "succeeded", False),
    ],
)
def test_what_is_newer_and_not_cut_is_used(
    run: EndedRun, there: bytes | None, here: bytes, state: str, used: bool
) -> None:
    run.write(here, there)
    run.end(state)
    adopt_left(run.paths)
    assert run.content() == (here if used else there)
    assert run.here.read_bytes() == here, "it may be one of the job's outputs"
    adopt_left(run.paths, removing=True)
    assert run.content() == (here if used else there)
    assert run.aside() == ([here] if here == b"unknown" and not used else [])


def test_what_is_older_is_not(run: EndedRun) -> None:
    run.write(TORCH, b"newer", newer=False)
    adopt_left(run.paths, removing=True)
    assert run.content() == b"newer"
    assert run.aside() == []


def test_a_link_is_nothing_that_was_left(run: EndedRun) -> None:
    run.write(None, TORCH)
    run.here.symlink_to(run.there)
    adopt_left(run.paths, removing=True)
    assert run.content() == TORCH
    assert not run.there.is_symlink()


def test_it_happens_once(run: EndedRun) -> None:
    run.write(TORCH, None)
    adopt_left(run.paths)
    run.there.unlink()
    adopt_left(run.paths, removing=True)
    assert run.content() is None


def test_what_cannot_be_brought_over_is_tried_again(run: EndedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    run.write(TORCH, None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        patch.setattr(shutil, "copy2", full)
        with pytest.raises(OSError, match="No space"):
            adopt_left(run.paths, removing=True)
    adopt_left(run.paths, removing=True)
    assert run.content() == TORCH
