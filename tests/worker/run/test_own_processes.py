"""A script that is started without torch's launcher: its process is the rank of its host."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from tests.worker.node import Node, eventually

pytestmark = pytest.mark.slow

# As mp.spawn does: the main process waits for processes that it has started.
FAMILY = """
import os, subprocess, sys
found = sorted(name for name in os.environ if name.startswith("TORCHELASTIC_") or name in ("RANK", "LOCAL_RANK"))
program = "import os, time; print('child', os.getppid()); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", program])
print("main", found, os.path.isdir("saved/models"), flush=True)
child.wait()
"""
FAILS = "import sys\nprint('last words', flush=True)\nraise ValueError('boom')"


def started(node: Node, script: str, **more: Any) -> str:
    record = node.record(launcher="python", nproc=1, ranks=[3], node_rank=3, world_size=1, **more)
    program = node.scratch / "train.py"
    program.write_text(script)
    env = {"PYTHONUNBUFFERED": "1"}
    return node.start(script, record, argv=[sys.executable, str(program)], env=env)


def test_it_is_a_rank_without_the_variables_of_one(node: Node) -> None:
    run = started(node, FAMILY, outputs=["saved/models"])
    pid = eventually(lambda: node.status(run)["state"] == "running" and node.status(run)["pid"], "it runs")
    told = eventually(lambda: b"child" in node.text(run, 3) and node.text(run, 3), "both have written")
    assert sorted(told.decode().splitlines()) == [f"child {pid}", "main [] True"]
    looks = eventually(lambda: node.call("doctor", run=run)["looks"], "somebody looks")
    assert [(one["rank"], one["pid"]) for one in looks] == [(3, pid)]
    found = node.call("stop", run=run, grace=5.0, by="me")
    assert (found["signalled"], found["survivors"]) == (2, [])
    assert node.wait_state(run)["state"] == "killed"


def test_its_failure_is_that_of_the_rank(node: Node) -> None:
    found = node.wait_state(started(node, FAILS), "failed")
    assert (found["cause"]["rank"], found["exit_code"]) == (3, 1)
    assert found["cause"]["message"] == "rank 3 exited with code 1: ValueError: boom"


def test_a_signal_from_outside_is_no_launchers(node: Node) -> None:
    run = started(node, "import time\nprint('here', flush=True)\ntime.sleep(300)")
    eventually(lambda: b"here" in node.text(run, 3), "it runs")
    os.kill(node.pid(run, "launcher"), signal.SIGTERM)
    assert node.wait_state(run, "failed")["cause"]["message"].startswith("rank 3 was killed by SIGTERM")
    assert "launcher" not in node.status(run)["cause"]["message"]


def test_it_succeeds(node: Node) -> None:
    assert node.wait_state(started(node, "pass"))["state"] == "succeeded"
