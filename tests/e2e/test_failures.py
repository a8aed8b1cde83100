"""Jobs that fail: in seconds the whole job is over, and the cause names the host and rank that failed first."""

from __future__ import annotations

import re

import pytest

from tests.e2e.programs import ONE_FAILS, SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, until
from tests.lab import Lab

TWO_ARE_ENOUGH = pytest.mark.full(
    covered_by="tests/e2e/test_failures.py::test_one_rank_fails_and_the_others_wait_for_ever"
)


@pytest.mark.parametrize(
    ("version", "way", "rank", "exit_code", "signal", "message"),
    [
        pytest.param("site", "7", 1, 7, None, "exited with code 7", marks=TWO_ARE_ENOUGH),
        ("torch_site", "raise", 2, 1, None, "ValueError: weights are nan"),
        ("site", "kill", 0, None, "SIGKILL", "killed by SIGKILL"),
    ],
)
def test_one_rank_fails_and_the_others_wait_for_ever(
    version: str,
    request: pytest.FixtureRequest,
    lab: Lab,
    way: str,
    rank: int,
    exit_code: int | None,
    signal: str | None,
    message: str,
) -> None:
    site: Site = request.getfixturevalue(version)
    job = site.job("fails", ONE_FAILS, way, str(rank), "1")
    done = site("up", "--job", job, timeout=60)
    assert done.rc == 1, done.stdout + done.stderr
    assert_nothing_runs(lab)
    line = one_line(done)
    assert "\n" not in line
    assert f"node{rank}" in line
    assert message in line
    assert "ddpctl tail" in line
    status = site.elsewhere("second").status(job)
    assert status["state"] == "failed"
    assert {node["state"] for node in status["nodes"]} == {"failed"}
    cause = status["cause"]
    assert (cause["host"], cause["rank"]) == (f"node{rank}", rank)
    assert (cause["exit_code"], cause["signal"]) == (exit_code, signal)
    assert cause["reason"] == ("signaled" if signal else "exited")
    assert message in cause["message"]
    if way == "raise":
        assert cause["traceback"].startswith("Traceback (most recent call last)")
        assert "in deep" in cause["traceback"]
        assert "[/red] $(id)" in cause["traceback"]
        assert "in deep" in done.stderr
        assert "[/red] $(id)" in done.stderr
    for node in status["nodes"]:  # each host's own end, the same from every machine
        assert node["exit_code"] != 0


def test_at_once_on_every_host(site: Site, lab: Lab) -> None:
    job = site.job("early", "import sys; sys.exit(7)\n")
    done = site("up", "--job", job, "--json", timeout=60)
    assert done.rc == 1, done.stdout + done.stderr
    document = done.json()
    assert document["state"] == "failed"
    assert document["cause"]["exit_code"] == 7
    assert "exited with code 7" in one_line(done)
    assert_nothing_runs(lab)
    detached = site("up", "--job", job, "-d", "--json", timeout=60)
    assert detached.rc == 0  # every node has confirmed its start
    assert site.wait_for_state(job, "failed")["run"] == detached.json()["run"]
    assert site("attach", job).rc == 1


@pytest.mark.full(
    covered_by="tests/worker/run/test_culprit.py"
    "::test_a_rank_that_ended_early_is_the_cause_under_a_launcher_that_is_slow_to_end"
)
def test_a_rank_that_does_fewer_steps_than_the_others_is_the_cause(torch_site: Site, lab: Lab) -> None:
    """It ends with exit code 0, and every other rank reports that its peer is gone."""
    site = torch_site
    job = site.job("fewer", FEWER, env={"OMP_NUM_THREADS": "1"})
    done = site("up", "--job", job, "--json", timeout=120)
    assert done.rc == 1, done.stdout + done.stderr
    cause = done.json()["cause"]
    assert (cause["host"], cause["rank"], cause["exit_code"], cause["reason"]) == ("node2", 2, 0, "exited"), cause
    assert "rank 2 on node2 ended with exit code 0 at " in cause["message"]
    assert "do all ranks run the same number of steps?" in one_line(done)
    assert_nothing_runs(lab)


def test_the_script_is_missing(site: Site, lab: Lab) -> None:
    """Here, where nothing is contacted for it; and on one node, where the code lies already."""
    job = site.job("missing", SLEEP)
    (site.code / "missing.py").rename(site.code / "misssing.py")
    done = site("up", "--job", job, env={"PATH": "/none"})
    assert done.rc == 2
    assert re.search(r"jobs\.missing\.script: .*'missing\.py'.*; did you mean misssing\.py\?", one_line(done))

    for host in lab.hosts[:2]:
        host.write("/srv/there/train.py", SLEEP)
    site.jobs[job].update(code=None, workdir="/srv/there", script="train.py")
    done = site("up", "--job", job)
    assert done.rc == 3, done.stderr
    assert "node2: " in one_line(done)
    assert "/srv/there" in one_line(done)
    assert_nothing_runs(lab)


@pytest.mark.full(covered_by="tests/worker/run/test_start.py::test_what_cannot_be_started_says_why")
def test_without_preflight_a_node_says_what_is_missing_there(site: Site, lab: Lab) -> None:
    """Its folder, then the script in it."""
    job = site.job("absent", SLEEP, workdir="/srv/absent", code=None, script="train.py")
    for host in lab.hosts[:2]:
        host.write("/srv/absent/train.py", SLEEP)
    done = site("up", "--job", job, "--skip-preflight", timeout=60)
    assert done.rc == 1, done.stderr
    assert "node2" in one_line(done)
    assert "/srv/absent" in one_line(done)
    assert_nothing_runs(lab)
    lab[2].write("/srv/absent/other.py", SLEEP)
    done = site("up", "--job", job, "--skip-preflight", timeout=60)
    assert done.rc == 1, done.stderr
    assert "node2" in one_line(done)
    assert "train.py" in one_line(done)
    assert_nothing_runs(lab)


def test_preflight_finds_an_error_and_nothing_is_started(site: Site, lab: Lab) -> None:
    job = site.job("never", SLEEP, master_port=29517)
    lab[0].popen(["python3", "-c", "import socket,time; s=socket.create_server(('',29517)); time.sleep(600)"])
    until(lambda: not lab[0].port_free(29517), 60, "nobody listens")
    done = site("up", "--job", job)
    assert done.rc == 3, done.stderr
    line = one_line(done)
    assert "node0: " in line
    assert "29517" in line
    assert "; " in line
    lab[0].kill_processes()
    assert_nothing_runs(lab)
    assert site("status", job).rc == 7


@pytest.mark.full(covered_by="tests/lab_preflight/test_ports.py::test_master_port_blocked_for_one")
def test_preflight_finds_a_port_that_is_blocked_and_nothing_is_started(site: Site, lab: Lab) -> None:
    job = site.job("blocked", SLEEP, master_port=29517)
    lab[2].drop(port=29517)
    lab[0].drop(port=29517, from_=lab[1])
    done = site("up", "--job", job)
    assert done.rc == 3, done.stderr
    assert "node1" in one_line(done)
    assert site("status", job).rc == 7
    assert_nothing_runs(lab)


FEWER = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(20 if dist.get_rank() == 2 else 40):
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
