"""Folders below base_dir: a folder that another account could change is refused, with the command that corrects it.

Files that are written once, on a file system without hard links.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import fs
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import UNSAFE_PATH
from tests.worker.programs import KILLED_AT_A_CALL


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


DISK_CALLS = ("rename", "mkdir", "open", "listdir", "lstat", "unlink", "rmdir")

KILLED_WRITER = f"""{KILLED_AT_A_CALL}
from ddpctl_worker.machine import fs
os.link = refuse
for name in {DISK_CALLS!r}:
    setattr(os, name, counted(getattr(os, name)))
sys.exit(not fs.write_once(sys.argv[1], {{"writer": "killed"}}))
"""


def destroy_claim(path: str) -> None:
    """Leave what a power cut may leave of a claim: the folder with its mark, without the file."""
    os.mkdir(path + ".claim")
    Path(path + ".claim", "taken").touch()


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("destroyed", [False, True])
def test_a_writer_that_is_killed_at_any_point_leaves_a_file_to_the_next_writer(tmp_path: Path, destroyed: bool) -> None:
    for step in itertools.count(1):
        path = str(tmp_path / f"{step}.json")
        if destroyed:
            destroy_claim(path)
        died = subprocess.run([sys.executable, "-S", "-c", KILLED_WRITER, path, str(step)]).returncode
        if died == 0:
            break
        assert died == -signal.SIGKILL
        own = fs.write_once(path, {"writer": "next"})
        assert fs.read_json(path) == {"writer": "next" if own else "killed"}
        assert not fs.write_once(path, {"writer": "third"})
        assert fs.read_json(path) == {"writer": "next" if own else "killed"}
    assert step > 10


class SlowWriter(threading.Thread):
    """Writes ``path`` once, and waits before its call number ``step`` of the disk."""

    def __init__(self, path: str, step: int) -> None:
        super().__init__()
        self.path, self.left = path, step
        self.hangs, self.goes_on = threading.Event(), threading.Event()
        self.answer: bool | None = None

    def run(self) -> None:
        self.answer = fs.write_once(self.path, {"writer": "slow"})
        self.hangs.set()

    def wait_at_call(self) -> None:
        self.left -= 1
        if not self.left:
            self.hangs.set()
            assert self.goes_on.wait(60)


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("destroyed", [False, True])
def test_a_writer_that_hangs_at_any_point_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destroyed: bool
) -> None:
    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **options: Any) -> Any:
            thread = threading.current_thread()
            if isinstance(thread, SlowWriter):
                thread.wait_at_call()
            return call(*args, **options)

        return wait

    for name in DISK_CALLS:
        monkeypatch.setattr(os, name, slow(getattr(os, name)))
    for step in itertools.count(1):
        path = str(tmp_path / f"{step}.json")
        if destroyed:
            destroy_claim(path)
        writer = SlowWriter(path, step)
        writer.start()
        assert writer.hangs.wait(60)
        if writer.answer is not None:
            break
        own = fs.write_once(path, {"writer": "quick"})
        first = fs.read_json(path)
        writer.goes_on.set()
        writer.join()
        assert first == {"writer": "quick" if own else "slow"}
        assert writer.answer is not own
        assert fs.read_json(path) == first
    assert step > 10


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("destroyed", [False, True])
def test_many_writers_at_once_without_hard_links(tmp_path: Path, destroyed: bool) -> None:
    path, won = str(tmp_path / "exit.json"), []
    if destroyed:
        destroy_claim(path)
    writers = [
        threading.Thread(target=lambda n=n: won.append(n) if fs.write_once(path, {"n": n}) else None) for n in range(16)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [fs.read_json(path)] == [{"n": n} for n in won]
    assert sorted(os.listdir(tmp_path)) == ["exit.json", "exit.json.claim"]


@pytest.mark.usefixtures("no_links")
def test_the_file_in_a_claim_is_durable_before_the_claim_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename, sync, synced, taken = str(tmp_path / "exit.json"), os.rename, fs.sync_folder, [], []

    def sync_and_note(folder: str) -> None:
        sync(folder)
        synced.append((folder, os.path.exists(os.path.join(folder, "file"))))

    def look_and_rename(old: str, new: str) -> None:
        if new == path + ".claim":
            taken.append((old, True) in synced)
        rename(old, new)

    monkeypatch.setattr(fs, "sync_folder", sync_and_note)
    monkeypatch.setattr(os, "rename", look_and_rename)
    assert fs.write_once(path, {"n": 1})
    assert taken == [True]


@pytest.mark.usefixtures("no_links")
def test_a_disk_that_cannot_tell_whether_a_file_exists_lets_nothing_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lstat = str(tmp_path / "exit.json"), os.lstat
    assert fs.write_once(path, {"n": 1})

    def fail(name: Any, **options: Any) -> os.stat_result:
        if name == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return lstat(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            fs.write_once(path, {"n": 2})
    assert fs.read_json(path) == {"n": 1}
