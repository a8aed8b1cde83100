"""Killing a job from a second place: whenever it comes, nothing of the job is left on any host."""

from __future__ import annotations

import re

import pytest

from tests.e2e.programs import SLEEP, STUBBORN
from tests.e2e.site import Site, assert_nothing_runs, launcher, one_line, ranks, running, until, wait_for_ranks
from tests.lab import Host, Lab, Process

# A rank with two children, as a data loader has them.
CHILDREN = """\
import subprocess, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) for _ in range(2)]
dist.barrier()
print("all are there", flush=True)
time.sleep(1000)
"""


def test_with_all_that_the_ranks_have_started(site: Site, lab: Lab) -> None:
    job = site.job("children", CHILDREN)
    run = site.up(job)
    site.wait_for_output(job, "all are there", "--rank", "0")
    everything_ends(site, lab, job, run["run"])


@pytest.mark.full(covered_by="tests/e2e/test_kill.py::test_with_all_that_the_ranks_have_started")
def test_in_mid_training_with_the_data_loaders_children(torch_site: Site, lab: Lab) -> None:
    job = torch_site.training("endless", "--num_epochs", "1000", "--num_workers", "2")
    run = torch_site.up(job)
    torch_site.wait_for_output(job, "epoch 2/", "--rank", "0")
    everything_ends(torch_site, lab, job, run["run"])


def everything_ends(site: Site, lab: Lab, job: str, run: str) -> None:
    """A kill from a second place leaves nothing, says so, and does no harm when it is repeated."""
    port = master_port(lab, run)
    for rank, host in enumerate(lab):
        own = ranks(host, run)[rank]
        children = [process for process in running(host) if process.ppid == own.pid]
        assert len(children) >= 2, children
    assert not lab[0].port_free(port)

    other = site.elsewhere("second")
    kill = other("kill", run, "--json")
    assert kill.rc == 0, kill.stderr
    assert_nothing_runs(lab, within=0)
    assert lab[0].port_free(port)
    document = kill.json()
    assert (document["schema"], document["job"], document["run"]) == (1, job, run)
    assert document["state"] == "killed"
    assert 0 < document["duration_s"] <= kill.seconds
    assert [node["host"] for node in document["nodes"]] == [host.name for host in lab]
    for node in document["nodes"]:
        assert node["reachable"] is True
        assert node["survivors"] == []
        assert node["signalled"] >= 4  # the launcher, the rank, its children

    again = other("kill", run, "--json")
    assert again.rc == 0
    assert [node["signalled"] for node in again.json()["nodes"]] == [0, 0, 0]
    assert again.json()["state"] == "killed"
    status = other.status(job)
    assert status["state"] == "killed"
    assert status["cause"]["reason"] == "killed_by_user"


@pytest.mark.full(covered_by="tests/e2e/test_kill.py::test_while_up_is_still_launching")
def test_right_after_the_start(torch_site: Site, lab: Lab) -> None:
    """The launchers are still importing torch."""
    site = torch_site
    job = site.job("early", SLEEP, nproc_per_node=4)
    run = site.up(job)
    other = site.elsewhere("second")
    assert other("kill", run["run"]).rc == 0
    assert_nothing_runs(lab, within=0)
    assert other.status(run["run"])["state"] == "killed"


ONE_IS_ENOUGH = pytest.mark.full(covered_by="tests/e2e/test_kill.py::test_while_up_is_still_launching")


@pytest.mark.parametrize("found", [1, pytest.param(3, marks=ONE_IS_ENOUGH)])
def test_while_up_is_still_launching(site: Site, lab: Lab, found: int) -> None:
    """As soon as the second place can see the run on this many hosts."""
    job = site.job("launching", SLEEP, nproc_per_node=4)
    up = site.start("up", "--job", job)
    until(lambda: sum(bool(by_cookie(host)) for host in lab) >= found, 60, lambda: up.stderr, 0.01)
    other = site.elsewhere("second")
    kill = other("kill", job, "--any-project")
    assert kill.rc == 0, kill.stderr
    done = up.wait(60)
    assert done.rc == 1, done.stderr
    assert_nothing_runs(lab)
    assert other.status(job)["state"] in ("killed", "failed")


def test_who_does_not_obey_is_forced(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    job = site.job("stubborn", STUBBORN)
    run = site.up(job)
    wait_for_ranks(lab.hosts[:2], run["run"], 1)
    site.wait_for_output(job, "(stays.*){4}")
    kill = site("kill", job, "--grace", "1", "--json", timeout=40).ok()
    assert_nothing_runs(lab, within=0)
    assert all(node["forced"] >= 2 for node in kill.json()["nodes"])


def test_a_name_with_two_live_runs_is_asked_about(site: Site, lab: Lab) -> None:
    job = site.job("twice", SLEEP)
    runs = []
    for host in lab.hosts[:2]:
        runs.append(site.up(job, "--nodes", "1")["run"])
        wait_for_ranks([host], runs[-1])
        site.hosts.append(site.hosts.pop(0))  # the next attempt begins with the next host
    done = site("kill", job)
    assert done.rc == 2
    line = one_line(done)
    assert re.search(rf"2 runs of {job} are live: {runs[0]} on node0, started \S+; {runs[1]} on node1", line), line
    assert f"ddpctl kill {job} --all" in line
    assert ranks(lab[0], runs[0])
    assert ranks(lab[1], runs[1])
    document = site("kill", job, "--all", "--json").ok().json()
    assert [(one["run"], one["state"]) for one in document["runs"]] == [(run, "killed") for run in runs]
    assert_nothing_runs(lab, within=0)
    assert site("kill", job, "--json").ok().json()["run"] == runs[1]  # no run is live: harmless, as ever


def test_no_such_job(site: Site) -> None:
    asked = [site.start(command, "never-was") for command in ("kill", "status", "tail", "attach", "fetch")]
    for done in (one.wait() for one in asked):
        assert done.rc == 7, done.stderr
        assert done.stdout == ""
        assert re.fullmatch(r"no job or run 'never-was' on 3 hosts; .*ddpctl ps --all.*", one_line(done))


def by_cookie(host: Host) -> list[Process]:
    return [process for process in running(host) if "DDPCTL_COOKIE" in process.environ]


def master_port(lab: Lab, run: str) -> int:
    found = until(lambda: launcher(lab[0], run))
    return int(found.argv[found.argv.index("--master_port") + 1])
