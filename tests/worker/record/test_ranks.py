"""Which rank a line is from, while a launcher restarts its ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl_worker.record.ranks import Roster, find_ranks
from tests.worker.node import eventually

LAUNCHER = """
import os, subprocess, sys
for line in sys.stdin:
    env = dict(os.environ, RANK=line.strip(), LOCAL_RANK="0")
    rank = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(1)"], env=env, stdin=subprocess.PIPE)
    sys.stdin.readline()
    rank.kill()
    rank.wait()
    print(flush=True)
"""


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[str]]:
    """It reads a number, starts the rank of that number, and kills it at the next line."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        process.kill()


def killed(launcher: subprocess.Popen[str]) -> None:
    assert launcher.stdout is not None
    say(launcher, "")
    launcher.stdout.readline()


def say(launcher: subprocess.Popen[str], line: str) -> None:
    assert launcher.stdin is not None
    launcher.stdin.write(line + "\n")


def starts(launcher: subprocess.Popen[str], rank: int) -> None:
    say(launcher, str(rank))
    eventually(lambda: [one.rank for one in find_ranks(launcher.pid, {})] == [rank], "the rank is there")


@pytest.mark.slow
def test_a_rank_that_torch_restarts_may_have_another_number(launcher: subprocess.Popen[str]) -> None:
    followed: list[int] = []
    run: Any = {"rendezvous": "c10d"}
    roster = Roster(run, lambda fd, on: followed.append(fd) if on else None)
    assert roster.rank_of(0, launcher.pid) is None
    starts(launcher, 1)
    roster.scan(launcher.pid)
    assert roster.rank_of(0, launcher.pid) == 1
    killed(launcher)
    roster.ended(followed[0])
    assert roster.rank_of(0, launcher.pid) == 1  # its last words
    starts(launcher, 0)
    assert roster.rank_of(0, launcher.pid) == 0  # before the next scan of the processes
    roster.scan(launcher.pid)
    assert roster.rank_of(0, launcher.pid) == 0
    roster.ended(followed[1])


@pytest.mark.slow
def test_a_process_that_turns_out_to_be_a_rank_is_listed_as_one(launcher: subprocess.Popen[str]) -> None:
    """Its pid was in the tree before: it had not begun its script."""
    run: Any = {"rendezvous": "static", "ranks": [1]}
    roster = Roster(run, lambda fd, on: None)
    starts(launcher, 1)
    before = roster.changed([])
    assert before is not None
    assert before["ranks"] == {}
    roster.scan(launcher.pid)
    after = roster.changed([])
    assert after is not None
    assert list(after["ranks"]) == ["1"]
    assert roster.changed([]) is None
