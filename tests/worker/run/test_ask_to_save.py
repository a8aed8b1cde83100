"""Asking ranks for a checkpoint: the ranks that handle the signal get it, and no other process ever does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import proc
from tests.worker.checkpoints import JOB
from tests.worker.node import Node, eventually
from tests.worker.programs import SLEEP, here

# A typical training: the rank handles the signal. Its data loader, which was forked before, and a program that it has
# started do not: the signal would kill both.
TRAINING = """
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
if os.fork() == 0:
    time.sleep(300)
    os._exit(0)
signal.signal(signal.SIGUSR1, lambda *_: print("saved", flush=True))
print("here", flush=True)
while True:
    time.sleep(300)
"""
# Rank 1 does not handle the signal.
HALF = """
import os, signal, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, lambda *_: print("saved", flush=True))
print("here", flush=True)
while True:
    time.sleep(300)
"""
NOTHING = {"ranks": [], "deaf": [], "absent": 2, "sent": False, "newest": None}


def ask(node: Node, run: str, *, send: bool = True) -> dict[str, Any]:
    return node.call("ask_checkpoint", run=run, signal="SIGUSR1", send=send)


def saved(node: Node, run: str) -> int:
    return sum(one["text"] == "saved" for one in node.lines(run))


def tree(node: Node, run: str) -> set[int]:
    return proc.descendants([node.pid(run, "launcher")], proc.snapshot())


def test_ranks_get_it_and_nobody_else(node: Node) -> None:
    run = node.start(TRAINING)
    here(node, run)
    before = tree(node, run)
    assert len(before) == 6  # two ranks, each with a loader and a program
    assert ask(node, run, send=False) == {**NOTHING, "ranks": [0, 1], "absent": 0}
    assert saved(node, run) == 0
    assert ask(node, run)["sent"] is True
    eventually(lambda: saved(node, run) == 2, "both ranks handle it")
    alive = {pid for pid in tree(node, run) if getattr(proc.read_stat(pid), "alive", False)}
    assert alive == before
    assert proc.read_stat(node.pid(run, "launcher"))


def test_one_that_does_not_handle_it_keeps_it_from_all(node: Node) -> None:
    run = node.start(HALF)
    here(node, run)
    node.wait_state(run, "running")
    before = tree(node, run)
    answer = ask(node, run)
    assert (answer["ranks"], answer["sent"]) == ([0, 1], False)
    assert [one["rank"] for one in answer["deaf"]] == [1]
    assert {one["pid"] for one in answer["deaf"]} <= before
    assert node.status(run)["state"] == "running"
    assert saved(node, run) == 0
    assert tree(node, run) == before


def test_ranks_that_are_not_there_are_counted(node: Node) -> None:
    run = node.start("raise SystemExit(0)")
    node.wait_state(run)
    assert ask(node, run) == NOTHING


def test_a_signal_that_is_none_is_refused(node: Node) -> None:
    run = node.start(SLEEP)
    last = node.open("ask_checkpoint", run=run, signal="SIGNAL", send=True).last()
    assert last["error"]["kind"] == "bad_request"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "catches"),
    [
        ("signal.signal(10, lambda *_: None)", True),
        ("signal.signal(10, signal.SIG_IGN)", False),
        ("signal.signal(12, lambda *_: None)", False),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [10])", False),
    ],
)
def test_the_kernel_says_who_handles_a_signal(setting: str, catches: bool, tmp_path: Path) -> None:
    code = f"import signal, sys; {setting}; print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        assert proc.catches(process.pid, 10) is catches
        process.communicate()
    assert not proc.catches(process.pid, 10)


def test_the_keeper_looks_more_often_for_what_the_ranks_will_save(node: Node) -> None:
    run = node.start(TRAINING)
    here(node, run)
    asked = node.base / "checkpoints" / JOB / node.host / ".ddpctl" / "asked"
    asked.parents[1].mkdir(parents=True, mode=0o700)
    ask(node, run, send=False)
    assert not asked.exists(), "nobody was asked"
    assert ask(node, run)["sent"] is True
    assert asked.exists()
