"""Folders below base_dir: a folder that another account could change is refused, with the command that corrects it.

Files that are written once, on a file system without hard links.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import fs
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import UNSAFE_PATH
from tests.worker.node import WORKER


def test_a_base_dir_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """boot.py refuses it before any verb runs; a verb that is asked in another way says the same."""
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "base").symlink_to(tmp_path / "disk")
    with pytest.raises(WorkerError, match="symbolic link") as caught:
        fs.own_folder(str(tmp_path / "base"), "store")
    assert caught.value.kind == UNSAFE_PATH


def test_the_fix_for_a_folder_that_others_may_write_quotes_its_path(tmp_path: Path) -> None:
    base = tmp_path / "two words"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(WorkerError, match="writable by others") as caught:
        fs.own_folder(str(base))
    assert (caught.value.kind, caught.value.hint) == (UNSAFE_PATH, f"chmod go-w '{base}'")


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)


# Ends at its call number argv[3] of os.rename, as if it were killed there.
KILLED_WRITER = f"""
import os, sys
sys.path.insert(0, {WORKER!r})
from ddpctl_worker.machine import fs
rename, calls = os.rename, int(sys.argv[2])

def refuse(*_):
    raise PermissionError(1, "no hard links here")

def count(*args):
    global calls
    calls -= 1
    if not calls:
        os.kill(os.getpid(), 9)
    rename(*args)

os.link, os.rename = refuse, count
sys.exit(not fs.write_once(sys.argv[1], {{"writer": "killed"}}))
"""


@pytest.mark.usefixtures("no_links")
def test_a_writer_that_is_killed_at_any_point_leaves_a_file_to_the_next_writer(tmp_path: Path) -> None:
    for step in itertools.count(1):
        path = str(tmp_path / f"{step}.json")
        died = subprocess.run([sys.executable, "-c", KILLED_WRITER, path, str(step)]).returncode
        if died == 0:
            break
        assert died == -signal.SIGKILL
        own = fs.write_once(path, {"writer": "next"})
        assert fs.read_json(path) == {"writer": "next" if own else "killed"}
        assert not fs.write_once(path, {"writer": "third"})
        assert fs.read_json(path) == {"writer": "next" if own else "killed"}
    assert step > 1


class SlowWriter(threading.Thread):
    """Writes ``path`` once, and waits at its call number ``step`` of os.rename."""

    def __init__(self, path: str, step: int) -> None:
        super().__init__()
        self.path, self.left = path, step
        self.hangs, self.goes_on = threading.Event(), threading.Event()
        self.answer: bool | None = None

    def run(self) -> None:
        self.answer = fs.write_once(self.path, {"writer": "slow"})
        self.hangs.set()

    def wait_at_rename(self) -> None:
        self.left -= 1
        if not self.left:
            self.hangs.set()
            assert self.goes_on.wait(20)


@pytest.mark.usefixtures("no_links")
def test_a_writer_that_hangs_at_any_point_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def slow_rename(*args: Any) -> None:
        thread = threading.current_thread()
        if isinstance(thread, SlowWriter):
            thread.wait_at_rename()
        rename(*args)

    monkeypatch.setattr(os, "rename", slow_rename)
    for step in itertools.count(1):
        path = str(tmp_path / f"{step}.json")
        slow = SlowWriter(path, step)
        slow.start()
        assert slow.hangs.wait(20)
        if slow.answer is not None:
            break
        own = fs.write_once(path, {"writer": "quick"})
        first = fs.read_json(path)
        slow.goes_on.set()
        slow.join()
        assert first == {"writer": "quick" if own else "slow"}
        assert slow.answer is not own
        assert fs.read_json(path) == first
    assert step > 1


@pytest.mark.usefixtures("no_links")
def test_many_writers_at_once_without_hard_links(tmp_path: Path) -> None:
    path, won = str(tmp_path / "exit.json"), []
    writers = [
        threading.Thread(target=lambda n=n: won.append(n) if fs.write_once(path, {"n": n}) else None) for n in range(16)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [fs.read_json(path)] == [{"n": n} for n in won]
    assert sorted(os.listdir(tmp_path)) == ["exit.json", "exit.json.claim"]
