"""Which limit killed a process, or refused a new process: that of a control group, or the machine's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl_worker.machine import cgroup
from ddpctl_worker.machine.cgroup import LimitHistory

LIMIT = 64 << 20
EATS = """
import json, os, subprocess, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from ddpctl_worker.machine.cgroup import LimitHistory
history = LimitHistory()
eater = subprocess.run([sys.executable, "-c", "x = bytearray(256 << 20)"])
print(json.dumps([eater.returncode, history.find_memory_limit(), len(history.rises())]))
"""


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_group_above_has_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_groups", lambda controller: [(str(tmp_path), "/user/run", False)])
    write(tmp_path / "user" / "run", memory__max="max", memory__events="oom 0\noom_kill 0")
    write(tmp_path / "user", memory__max=LIMIT, memory__events="oom 3\noom_kill 3")
    history = LimitHistory()
    write(tmp_path / "user" / "run", memory__events="oom 0\noom_kill 1")  # for lack of memory on the machine
    assert len(history.rises()) == 1
    assert history.find_memory_limit() is None
    write(tmp_path / "user", memory__events="oom 4\noom_kill 5")
    assert history.find_memory_limit() == (LIMIT, "/user")


def test_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_groups", lambda controller: [(str(tmp_path), "/run", True)])
    write(tmp_path, memory__limit_in_bytes=9223372036854771712, memory__failcnt=0)
    write(tmp_path / "run", memory__limit_in_bytes=LIMIT, memory__failcnt=7)
    history = LimitHistory()
    assert history.find_memory_limit() is None
    write(tmp_path, memory__failcnt=5)
    assert history.find_memory_limit() is None
    write(tmp_path / "run", memory__failcnt=8)
    assert history.find_memory_limit() == (LIMIT, "/run")


def test_the_limit_with_the_least_room_has_refused_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may count the refusal in the group of the process, which has no limit."""
    monkeypatch.setattr(cgroup, "_groups", lambda controller: [(str(tmp_path), "/user.slice/user-7.slice/run", False)])
    write(tmp_path / "user.slice", pids__max=5000, pids__current=60, pids__events="max 0")
    write(tmp_path / "user.slice/user-7.slice", pids__max=60, pids__current=20, pids__events="max 0")
    write(tmp_path / "user.slice/user-7.slice/run", pids__max="max", pids__current=12, pids__events="max 4")
    history = LimitHistory()
    assert history.find_task_limit() is None
    write(tmp_path / "user.slice/user-7.slice/run", pids__events="max 5")
    assert history.find_task_limit() == (60, "/user.slice/user-7.slice")


@pytest.fixture
def group() -> Iterator[str]:
    """A group with a limit of 64 MB."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = f"{root}/ddpctl-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            os.mkdir(folder)
            try:
                Path(folder, limit).write_text(str(LIMIT))
                yield folder
                return
            finally:
                os.rmdir(folder)
    pytest.skip("this account may not make a control group with a memory limit")


@pytest.mark.slow
def test_a_process_that_its_group_kills(group: str) -> None:
    done = subprocess.run([sys.executable, "-c", EATS, group], stdout=subprocess.PIPE, check=True, timeout=60)
    assert json.loads(done.stdout) == [-9, [LIMIT, f"/{Path(group).name}"], 1]
