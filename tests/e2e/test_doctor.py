"""A job that hangs on real hosts: `doctor` names the culprit, and the run itself does so before any question."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site, assert_nothing_runs, one_line, ranks, until

# Rank 1 reads from a pipe without a writer; the other ranks wait for it in an all_reduce.
HANGS = """\
import os
print("imports torch", flush=True)
import torch
import torch.distributed as dist

print("meets the others", flush=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
loss = torch.ones(3)
if rank == 1:
    os.mkfifo("/tmp/nobody-writes")
for step in range(10):
    if rank == 1 and step == 5:
        print("rank 1 waits", flush=True)
        open("/tmp/nobody-writes").read()  # HANG
    dist.all_reduce(loss)  # WAIT
"""
# Rank 0 works while the other ranks wait for it, for longer than the stall: until it gets SIGUSR2.
PAUSES = """\
import signal, time
import torch
import torch.distributed as dist

class Saved(Exception):
    pass

def end_pause(number, frame):
    raise Saved

dist.init_process_group("gloo")
loss = torch.ones(3)
for step in range(30):
    if dist.get_rank() == 0 and step == 5:
        signal.signal(signal.SIGUSR2, end_pause)
        try:
            print("rank 0 saves", flush=True)
            time.sleep(40)
        except Saved:
            pass
    dist.all_reduce(loss)
    time.sleep(0.1)
"""
# Rank 1 needs more time for its part of each step, so that every rank's step takes that long.
SLOW = """\
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss = torch.ones(3)
for step in range(10_000):
    time.sleep(0.25 if dist.get_rank() == 1 else 0.05)
    dist.all_reduce(loss)
"""


def line(program: str, mark: str) -> int:
    return 1 + next(number for number, text in enumerate(program.splitlines()) if f"# {mark}" in text)


@pytest.fixture
def hanging(torch_site: Site) -> Site:
    site = torch_site
    site.lab[1].run(["rm", "-f", "/tmp/nobody-writes"])
    site.job("hangs", HANGS, doctor={"stall": 5}, timeouts={"stop": 2})
    return site


def test_a_hang_is_explained_while_it_lasts_and_afterwards(hanging: Site) -> None:
    site = hanging
    site.up("hangs", "--skip-preflight")  # which would import torch once more on every host
    follower = site.start("attach", "hangs")
    follower.wait_for("stuck for [0-9]+ s: 2 of 3 ranks wait in all_reduce #6", 120)
    assert site.status("hangs")["diagnosis"]["suspects"] == [{"host": "node1", "rank": 1}]

    def looked() -> Any:
        """What the doctor says once each rank has answered in time."""
        told = site("doctor", "hangs", "--json").ok().json()
        return told if all(one["stack"] for one in told["ranks"]) else None

    found = until(looked, 60, "a rank does not give its stack")
    assert found["suspects"] == [{"host": "node1", "rank": 1}]
    assert f"hangs.py:{line(HANGS, 'HANG')}" in found["verdict"]
    by_rank = {one["rank"]: one for one in found["ranks"]}
    assert [by_rank[rank]["stack"][0]["line"] for rank in range(3)] == [
        line(HANGS, "HANG") if rank == 1 else line(HANGS, "WAIT") for rank in range(3)
    ]
    assert by_rank[0]["collective"] == {"group": "0", "seq": 6, "op": "all_reduce", "state": "waiting"}
    assert [one["ranks"] for one in found["groups"]] == [[0, 2], [1]]

    for command in (("status", "hangs"), ("ps",)):
        assert "stuck for" in site(*command).ok().stdout
    site("kill", "hangs").ok()
    assert follower.wait(60).rc == 1
    assert_nothing_runs(site.lab)

    after = site("doctor", "hangs", "--json").ok().json()
    stacks = {one["rank"]: one["stack"] for one in after["ranks"]}
    assert sorted(stacks) == [0, 1, 2]
    if stacks[1]:  # a rank that waits may see its peer's end before its own last look
        assert stacks[1][0]["line"] == line(HANGS, "HANG")
    assert "the run is over" in after["verdict"]
    site("fetch", "hangs", "fetched").ok()
    records = list(Path(site.folder, "fetched").rglob("last_look.json"))
    assert len(records) == 3
    looks = {one["rank"]: one for record in records for one in json.loads(record.read_text())["looks"]}
    assert sorted(looks) == [0, 1, 2]
    late = r"the look at it was not over in time|did not write its stack within"  # on a busy machine
    assert looks[1].get("stack") or re.search(late, str(looks[1]["missing"])), looks[1]


@pytest.mark.full(covered_by="tests/worker/run/test_silence.py::test_the_rank_that_the_doctor_suspects_is_named")
def test_silence_that_has_a_cause_ends_the_run_with_the_rank_s_name(hanging: Site) -> None:
    hanging.jobs["hangs"]["timeouts"] = {"silence": 40, "stop": 2}
    done = hanging("up", "--job", "hangs", timeout=120)
    assert done.rc == 1
    cause = hanging.status("hangs")["cause"]
    assert (cause["reason"], cause["host"], cause["rank"]) == ("silence", "node1", 1)
    assert f"hangs.py:{line(HANGS, 'HANG')}" in cause["message"]
    assert "rank 1" in one_line(done)


@pytest.mark.full(
    covered_by="tests/worker/doctor/test_watch.py::test_a_stall_is_told_once_and_cleared_when_the_run_moves"
)
def test_a_pause_is_no_hang(torch_site: Site) -> None:
    site = torch_site
    site.job("pauses", PAUSES, doctor={"stall": 15})  # a sleep that ends within three times the stall is no hang
    run = site.up("pauses")["run"]
    site.wait_for_output("pauses", "rank 0 saves")

    def looked() -> Any:
        """What the doctor says once rank 0 has been quiet for longer than the stall."""
        told = site("doctor", "pauses", "--json").ok().json()
        return told if told["ranks"][0]["last_output_age_s"] > 16 else None

    assert until(looked, 60, "rank 0 is not quiet")["suspects"] == []
    site.lab[0].run(["kill", "-USR2", str(ranks(site.lab[0], run)[0].pid)])
    status = site.wait_for_state("pauses", "succeeded")
    assert status["diagnosis"] is None
    for host in site.lab:
        log = host.run(["cat", f"/root/.local/state/ddpctl/runs/{run}/{host.name}/supervisor.log"]).stdout
        assert "doctor" not in log


def test_without_the_doctor_a_job_runs_as_it_always_did(site: Site) -> None:
    program = "import os, sys\nprint('seen:', [name for name in os.environ if 'LOOK' in name], sys.path[0])\n"
    site.job("plain", program + "import time; time.sleep(1000)", doctor="off")
    site.up("plain")
    site.wait_for_output("plain", r"(seen: \[\].*){3}")

    def looked() -> Any:
        """What the doctor says once it finds all ranks asleep: the output comes right before their sleep."""
        told = site("doctor", "plain", "--json").ok().json()
        return told if [one["state"] for one in told["ranks"]] == ["sleeping"] * 3 else None

    assert until(looked, 60, "a rank does not sleep")["suspects"] == []
    site("kill", "plain").ok()


@pytest.mark.full(covered_by="tests/worker/doctor/test_slow.py::test_the_lag_and_the_share_of_being_last_are_given")
def test_a_slow_rank_is_named(torch_site: Site) -> None:
    site = torch_site
    site.job("slow", SLOW, timeouts={"stop": 2})
    site.up("slow")
    (slow,) = until(lambda: site.status("slow")["slow"], 180, "no rank is slow", pause=1.0)
    assert (slow["host"], slow["rank"]) == ("node1", 1)
    assert 100 < slow["lag_ms"] < 2000  # in each step it works for 200 ms longer than the other ranks
    assert slow["last_share"] > 0.5
    assert site("doctor", "slow", "--json").ok().json()["slow"][0]["rank"] == 1
    assert "slow: rank 1 on node1" in site("status", "slow").ok().stdout
    site("kill", "slow").ok()
