"""The wall clock of one host is an hour ahead, then an hour behind, while a run lives."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.site import Site, assert_nothing_runs, until
from tests.lab.clock import HostClock, compiler
from tests.lab.command import Ddpctl

HOUR = 3600

# The ranks go in step. Rank 1 fails when its host has the file; rank 0 then loses its peer and fails too.
IN_STEP = """\
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
number = 0
while True:
    dist.barrier()
    print("rank", os.environ["RANK"], "number", number, "at", int(time.time()), flush=True)
    if os.environ["RANK"] == "1" and os.path.exists(os.path.expanduser("~/fail")):
        sys.exit(3)
    number += 1
    time.sleep(0.3)
"""


def test_a_run_lives_on_and_its_failure_is_told_in_order(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> None:
    """The output of both hosts goes on, no host counts as lost, and the first of two failures is the cause."""
    if compiler() is None:
        pytest.skip("there is no C compiler: a host gets a clock of its own by a library")
    lab = make_lab(2)
    clock = HostClock(lab[1])
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)
    up = site.start("up", "--job", site.job("steps", IN_STEP))
    up.wait_for("rank 1 number", 120)

    def wait_for_numbers(offset: int) -> None:
        """Until rank 1 has read the clock as it is now, and both ranks have gone on for some seconds after that."""

        def last(rank: int) -> tuple[int, int]:
            found = re.findall(rf"node{rank}:{rank} \| rank {rank} number (\d+) at (\d+)", up.stdout)
            return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)

        until(lambda: abs(last(1)[1] - time.time() - offset) < HOUR / 2, 60, lambda: up.stdout[-1000:])
        seen = last(1)[0]
        until(lambda: min(last(0)[0], last(1)[0]) > seen + 20, 120, lambda: up.stdout[-1000:])

    for offset in (HOUR, -HOUR):
        clock.set(offset)
        wait_for_numbers(offset)
    status = site.status("steps")
    assert status["state"] == "running", status
    assert [node["state"] for node in status["nodes"]] == ["running", "running"]
    assert all(node["heartbeat_age_s"] < 60 for node in status["nodes"]), status

    clock.set(HOUR)
    lab[1].write("/root/fail", "")
    done = up.wait(90)
    assert done.rc == 1, done.stderr
    status = site.status("steps")
    print(done.stderr)
    print(status)
    cause = status["cause"]
    assert (cause["host"], cause["rank"], cause["exit_code"]) == ("node1", 1, 3)
    assert_nothing_runs(lab)
