"""The runs that were started with a job's folder for checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.checkpoint import starts
from ddpctl_worker.checkpoint.starts import note_start, starts_in

ORIGIN = {"account": "ann", "machine": "laptop", "folder": "/home/ann/exp", "inode": 7}


def run(name: str) -> Any:
    return {"run": name, "origin": ORIGIN}


def test_each_run_is_noted_once_and_the_last_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "MOST_STARTS", 2)
    folder = str(tmp_path / "host")
    assert starts_in(folder) == []
    for name in ("r1", "r2", "r2", "r3"):
        note_start(folder, run(name))
    found = starts_in(folder)
    assert [(one["run"], one["origin"]) for one in found] == [("r2", ORIGIN), ("r3", ORIGIN)]
    assert [path.name for path in tmp_path.iterdir()] == [".host.starts"]
