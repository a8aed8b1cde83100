"""The agreement between the hosts, on real hosts in situations that had once broken it in the simulator."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeLab
from tests.e2e.programs import MEETING
from tests.e2e.site import Site, assert_nothing_runs, named, of_run, until, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.command import Ddpctl

IN_THE_SIMULATOR = "tests/simulator/test_stories.py::"

# Rank 0 saves a checkpoint once. The first attempt fails on a host with the file ~/fail.
SAVES_ONCE = (
    MEETING
    + """\
if dist.get_rank() == 0 and not saves:
    with open(os.path.join(folder, ".aside"), "wb") as file:
        file.write(os.urandom(20_000_000))
    os.replace(os.path.join(folder, ".aside"), os.path.join(folder, "step_7.bin"))
while True:
    stay_together()
    if attempt == "0" and os.path.exists(os.path.expanduser("~/fail")):
        sys.exit(9)
"""
)

# Ends with 0 on a host with the file ~/finish; no rank waits for another rank.
FINISHES = """\
import os, time
print("attempt", os.environ["DDPCTL_ATTEMPT"], "runs on", os.environ["DDPCTL_HOST"], flush=True)
while not os.path.exists(os.path.expanduser("~/finish")):
    time.sleep(0.1)
"""

# Prints what each file of each save holds. Then attempt 0 saves step 100 on all ranks, and of step 200 the last rank's
# file alone. Attempt 1 saves step 200, 300 and 400, and fails.
SAVES_PARTS = """\
import json, os, sys, time
attempt, rank, world = os.environ["DDPCTL_ATTEMPT"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
found = {}
for place, _, files in sorted(os.walk(folder)):
    step = os.path.basename(place)
    for name in sorted(files):
        if step.startswith("step_") and name.startswith("rank_"):
            with open(os.path.join(place, name)) as file:
                found.setdefault(step, {})[name] = file.read()
print("attempt", attempt, "found", json.dumps(found), "end", flush=True)
def save(step):
    place = os.path.join(folder, "step_%d" % step)
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, ".aside"), "w") as file:
        file.write("attempt %s" % attempt)
    os.replace(os.path.join(place, ".aside"), os.path.join(place, "rank_%d.txt" % rank))
def wait_for(name):
    while not os.path.exists(os.path.expanduser(name)):
        time.sleep(0.1)
if attempt == "0":
    save(100)
    wait_for("~/all-have-100")
    if rank == world - 1:
        save(200)
if attempt == "1":
    save(200)
    save(300)
    save(400)
    wait_for("~/all-have-400")
    sys.exit(9)
while True:
    time.sleep(0.2)
"""


def split(one: Sequence[Host], other: Sequence[Host]) -> None:
    """Cut every link between two groups of hosts, silently. The way to the controller stays."""
    for group, others in ((one, other), (other, one)):
        addresses = " ".join(f"{host.fabric_address}," for host in others)
        for host in group:
            host.firewall(f"ip saddr {{ {addresses} }} drop")


def exit_record(host: Host, run: str) -> dict[str, Any] | None:
    path = f"/root/.local/state/ddpctl/runs/{run}/{host.name}/exit.json"
    if not host.exists(path):
        return None
    record: dict[str, Any] = json.loads(host.read(path))
    return record


@pytest.mark.full(covered_by=IN_THE_SIMULATOR + "test_an_attempt_begins_though_the_agent_of_its_first_host_is_gone")
def test_an_attempt_begins_though_the_agent_of_its_first_host_is_killed(site: Site, lab: Lab) -> None:
    """The first host has lost its disk and fetches the checkpoint again, and the other host waits for it.

    A host without its agent is lost for the run. So a spare steps in, with the checkpoint that had been agreed on.
    """
    job = site.job("first-gone", SAVES_ONCE, restarts=3, nodes=2, spares=1)
    up = site.start("up", "--job", job)
    site.wait_for_copy(lab[1], job, lab[0], "step_7.bin")
    lab[0].run(["rm", "-rf", site.checkpoints(job)])
    lab[0].slow("10mbit")
    lab[1].write("/root/fail", "")
    coming = f"find {site.checkpoints(job)} -size +1M"
    until(lambda: lab[0].run(coming, check=False).stdout, 120, lambda: f"{up.stdout}{up.stderr}")
    kill_agent(lab[0])
    up.wait_for("attempt [12] of node1 with step_7.bin; node2 with step_7.bin", 120)
    until(lambda: site.status(job)["state"] == "running", 60, "the next attempt does not run")
    status = site.status(job)
    assert [node["host"] for node in status["nodes"]] == ["node1", "node2"]
    site("kill", job).ok()
    up.wait()
    assert_nothing_runs(lab)


def kill_agent(host: Host) -> None:
    agent = named(host, "ddpctl-agent")
    assert agent is not None
    host.run(["kill", "-KILL", str(agent.pid)])


@pytest.mark.full(covered_by=IN_THE_SIMULATOR + "test_an_end_that_is_not_agreed_on_is_not_final")
def test_an_end_without_a_majority_is_not_final(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> None:
    """The ranks of two hosts end, and these hosts cannot reach the other three. The other three go on."""
    lab = make_lab(5)
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)
    job = site.job("no-majority", FINISHES, restarts=2, spares=3, nodes=2)
    run = site.up(job)["run"]
    alone, majority = lab.hosts[:2], lab.hosts[2:]
    wait_for_ranks(alone, run)
    split(alone, majority)
    for host in alone:
        host.write("/root/finish", "")
    until(lambda: not any(of_run(host, run) for host in alone), 30, "the ranks do not end")
    site.wait_for_output(job, "attempt 1 runs on node3", timeout=120)
    cut_off = "it does not reach a majority of the run's 5 hosts"
    until(lambda: cut_off in site("status", job).stdout, 90, "the cut is not mentioned", pause=1.0)
    assert not any(exit_record(host, run) for host in lab)
    status = site.status(job)
    assert (status["state"], status["attempt"]) == ("running", 2)
    assert status["attempts"][0]["cause"]["reason"] == "node_lost"
    for host in lab:
        host.clear_firewall()
    for host in majority:
        host.write("/root/finish", "")
    status = site.wait_for_state(job, "succeeded")
    assert status["attempt"] == 2
    until(lambda: all(exit_record(host, run) for host in lab), 60, "a host has recorded no end")
    assert {(exit_record(host, run) or {})["state"] for host in lab} == {"succeeded"}
    assert_nothing_runs(lab)


@pytest.mark.full(covered_by="tests/worker/rules/test_choice.py::test_files_of_two_attempts_are_never_united")
def test_no_save_is_of_two_attempts(site: Site, lab: Lab) -> None:
    """Attempt 0 leaves a third of step 200. Attempt 1, on two hosts, saves three steps, and fails.

    The first save with fewer ranks counts once a second exists, and step 200 lacks a rank that an earlier attempt had.
    """
    elastic = {"min_nodes": 2, "max_nodes": 3, "max_restarts": 3}
    job = site.job("mixed", SAVES_PARTS, restarts=3, elastic=elastic, checkpoint={"replicas": 2})
    site.up(job)
    for writer in lab:
        for host in lab:
            site.wait_for_copy(host, job, writer, "step_100")
    for host in lab:
        host.write("/root/all-have-100", "")
    site.wait_for_copy(lab[0], job, lab[2], "step_200")
    lab[2].power_off()
    site.wait_for_output(job, "attempt 1 found .* end.*attempt 1 found .* end", timeout=120)
    for host, other in ((lab[0], lab[1]), (lab[1], lab[0])):
        site.wait_for_copy(other, job, host, "step_400")
    for host in lab.hosts[:2]:
        host.write("/root/all-have-400", "")
    site.wait_for_output(job, "attempt 2 found .* end.*attempt 2 found .* end", timeout=120)
    site("kill", job)
    printed = site("tail", job, "-n", "all", "--no-fold").stdout  # node2 has no power, so its exit code is not 0
    found = [(attempt, json.loads(saves)) for attempt, saves in re.findall(r"attempt (\d) found (.*) end", printed)]
    united = {f"rank_{rank}.txt": "attempt 0" for rank in range(3)}
    assert [saves for attempt, saves in found if attempt == "1"] == [{"step_100": united}] * 2
    last = [saves for attempt, saves in found if attempt == "2"]
    assert [saves["step_400"] for saves in last] == [{"rank_0.txt": "attempt 1", "rank_1.txt": "attempt 1"}] * 2
    assert not any("rank_2.txt" in saves.get("step_200", {}) for saves in last)
    assert_nothing_runs(lab.hosts[:2])
