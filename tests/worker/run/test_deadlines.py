"""Deadlines of a run on a node, and their messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.record.ranks import Roster
from tests.worker.deadlines import shorten
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import both_known


@pytest.mark.slow
def test_a_rank_s_death_is_timed_by_a_clock_that_nobody_sets() -> None:
    watched: dict[int, bool] = {}
    run: Any = {"ranks": [0], "rendezvous": "static"}
    roster = Roster(run, watched.__setitem__)
    env = dict(os.environ, RANK="0", LOCAL_RANK="0")
    with subprocess.Popen([sys.executable, "-c", "input(); exit(3)"], stdin=subprocess.PIPE, env=env) as rank:
        while not roster.any:
            roster.scan(os.getpid())
        before = time.monotonic()
        rank.communicate(b"\n")
        for fd in [fd for fd, on in watched.items() if on]:
            roster.ended(fd)
        roster.look()  # where there are no pidfds
    roster.deaths[0] = roster.deaths[0]._replace(status=3 << 8)  # collected already: its parent is this test
    assert before <= (roster.first_failure() or 0.0) <= time.monotonic()


def test_ranks_that_never_start(node: Node) -> None:
    limits = {"start": 2, "stop": 1, "silence": None}
    run = node.start("", node.record(timeouts=limits), argv=["/bin/sh", "-c", "sleep 300; true"])
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"]) == ("failed", "rendezvous_timeout")
    assert "within 2 s" in status["cause"]["message"]
    eventually(lambda: not processes_of(run), "everything is gone")


@pytest.mark.parametrize("reaped", [False, True], ids=["status known", "status lost"])
def test_a_job_that_gives_its_ranks_no_time_to_stop(node: Node, reaped: bool) -> None:
    """timeouts.stop: 0 is no request for the default of 30 s, whether or not the launcher is the first to reap."""
    go = node.scratch / "go"
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "sys.exit(1) if os.environ['RANK'] == '0' else time.sleep(300)\n"
    )
    run = node.start(script, node.record(timeouts={"stop": 0}))
    known = both_known(node, run)
    if reaped:
        supervisor, rank = node.pid(run, "supervisor"), known["0"][0]
        os.kill(supervisor, signal.SIGSTOP)
        go.touch()
        eventually(lambda: not Path(f"/proc/{rank}").exists(), "the launcher has reaped rank 0")
        os.kill(supervisor, signal.SIGCONT)
    go.touch()
    assert node.wait_state(run, seconds=20)["state"] == "failed"


def test_silence_that_is_enforced(node: Node) -> None:
    limits = {"start": 30, "stop": 1, "silence": 2, "silence_enforced": True}
    run = node.start("import time; print('here', flush=True); time.sleep(300)", node.record(timeouts=limits))
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"]) == ("failed", "silence")


def test_silence_that_is_only_told(node: Node) -> None:
    limits = {"start": 30, "stop": 1, "silence": 1, "silence_enforced": False}
    run = node.start("import time; print('here', flush=True); time.sleep(300)", node.record(timeouts=limits))
    eventually(lambda: (node.status(run)["last_output_age_s"] or 0) > 2, "the silence shows", pause=0.25)
    assert node.status(run)["state"] == "running"


@pytest.mark.parametrize("pause", [0.0, 1.0], ids=["ranks start together", "a rank starts later"])
def test_a_rank_that_dies_under_a_launcher_that_does_not_look(node: Node, pause: float) -> None:
    """As torch before 2.1 does: the failure is seen all the same, in seconds, with rank, code and traceback."""
    shorten(node, "run/limits.py", SCAN_RUNNING_S=60.0)
    launcher = f"""
import os, subprocess, sys, time
for local in range(2):
    env = dict(os.environ, RANK=str(local), LOCAL_RANK=str(local))
    subprocess.Popen([os.environ["PYTHON_EXEC"], "-u", sys.argv[-1]], env=env, start_new_session=True)
    time.sleep({pause})
time.sleep(3600)
"""
    go = node.scratch / "go"
    script = (
        "import os, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "if os.environ['RANK'] == '1': raise KeyError('x')\n"
        "time.sleep(300)\n"
    )
    request = node.request(script)
    path = node.scratch / "blind.py"
    path.write_text(launcher)
    request["argv"][1] = str(path)
    run = request["run"]["run"]
    node.started.append(run)
    node.call("start", **request)
    both_known(node, run)
    go.touch()
    status = node.wait_state(run, seconds=120)  # the launcher itself would take an hour
    assert (status["state"], status["cause"]["rank"]) == ("failed", 1)
    assert status["cause"]["message"] == "rank 1 exited with code 1: KeyError: 'x'"
    eventually(lambda: not processes_of(run), "everything is gone")
