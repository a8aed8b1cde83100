"""Files of a script that no declared output covers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from ddpctl_worker.verbs import untracked as looks
from ddpctl_worker.verbs.untracked import covers, untracked
from ddpctl_worker.wire.channel import Channel


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("saved", "saved/a/model.pt", True),
        ("saved", "saved2/model.pt", False),
        ("*.pth", "best.pth", True),
        ("*.pth", "saved/best.pth", False),
        ("runs/*/log.txt", "runs/1/log.txt", True),
        ("**/*.pth", "a/b/best.pth", True),
        ("**/*.pth", "best.pth", True),
        ("a/**", "b/x", False),
    ],
)
def test_an_output_covers_a_file_and_all_below_a_folder(pattern: str, name: str, covered: bool) -> None:
    assert covers(pattern.split("/"), name.split("/")) is covered


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "UNTRACKED_S", 60.0)


class Run:
    """A run with its code in place. Its script has begun."""

    def __init__(self, base: Path, name: str = "r1", **record: Any) -> None:
        self.base, self.name, self.top = base, name, base / "runs" / name / "n0"
        self.code = self.top / "code"
        (self.code / "data").mkdir(parents=True)
        (self.code / "train.py").write_text("code")
        (self.code / "data" / "set.txt").write_text("code")
        (self.top / "run.json").write_text(json.dumps({"run": name, "host": "n0", **record}))
        (self.top / "state.json").write_text(json.dumps({"cwd": str(self.code)}))
        self.pause()
        (self.top / "claim.json").write_text("{}")
        self.pause()

    def pause(self) -> None:
        """Until the file system's clock has moved on."""
        probe = self.base / "probe"
        probe.touch()
        first = probe.stat().st_mtime_ns
        while probe.stat().st_mtime_ns == first:
            time.sleep(0.001)
            probe.touch()

    def write(self, *names: str) -> None:
        for name in names:
            (self.code / name).parent.mkdir(parents=True, exist_ok=True)
            (self.code / name).write_text(name)

    def look(self, missing: str | None = None) -> dict[str, Any]:
        request = {"run": self.name, "host": "n0", "base_dir": str(self.base), "missing": missing}
        return untracked(request, cast(Channel, None))


def test_what_the_script_wrote_and_no_output_covers_is_counted_and_the_largest_named(tmp_path: Path) -> None:
    run = Run(tmp_path, outputs=["saved", "*.log"], checkpoint={"paths": ["ckpt"]})
    run.write("saved/a.pth", "train.log", "ckpt/1.pt", "__pycache__/m.pyc", ".cache/x", "a" * 9, "data/new", "train.py")
    run.write("b" * 30)
    os.symlink("/etc/passwd", run.code / "link")
    found = run.look()
    assert (found["folder"], found["files"], found["whole"]) == (str(run.code), 4, True)
    assert found["bytes"] == 9 + 30 + len("data/new") + len("train.py")
    assert found["largest"] == [["b" * 30, 30], ["a" * 9, 9], ["train.py", 8]]


def test_a_script_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert Run(tmp_path).look()["files"] == 0


def test_a_look_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "MOST_ENTRIES", 5)
    run = Run(tmp_path)
    run.write(*(f"f{number}" for number in range(9)))
    found = run.look()
    assert not found["whole"]
    assert 0 < found["files"] <= 5


def test_a_run_that_never_began_has_no_folder(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.top / "claim.json").unlink()
    assert run.look()["folder"] is None


def test_the_newest_earlier_run_of_the_job_that_wrote_a_missing_path_is_named(tmp_path: Path) -> None:
    for name, job in (("r1", "train"), ("r2", "train"), ("r3", "train"), ("r4", "eval"), ("r6", "train")):
        run = Run(tmp_path, name, job=job)
        if name != "r3":
            run.write("saved/best.pt")
    (Run(tmp_path, "r0", job="train").top / "run.json").write_text("{")
    run = Run(tmp_path, "r5", job="train")
    assert run.look("saved/best.pt")["writer"] == "r2"
    assert run.look("data/set.txt")["writer"] is None  # it came with the code
    assert run.look("nowhere")["writer"] is None
    assert run.look("../../../r1/n0/run.json")["writer"] is None
    assert run.look("a\0b")["writer"] is None
    assert run.look()["writer"] is None
