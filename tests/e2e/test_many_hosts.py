"""A run on more hosts than a person watches by eye."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, until, wait_for_ranks
from tests.lab.command import Ddpctl

HOSTS = 16


def test_sixteen_hosts(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> None:
    lab = make_lab(HOSTS)
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)
    job = site.job("many", SLEEP)
    run = site.up(job, "--only", "ssh")["run"]
    wait_for_ranks(lab, run)

    until(
        lambda: {node["state"] for node in site.status(job)["nodes"]} == {"running"}, 30, lambda: str(site.status(job))
    )
    status = site.status(job)
    assert (status["state"], status["world_size"]) == ("running", HOSTS)
    assert [(node["host"], node["node_rank"], node["ranks"], node["state"]) for node in status["nodes"]] == [
        (host.name, rank, [rank], "running") for rank, host in enumerate(lab)
    ]
    tail = site.start("tail", job, "-f", "-n", "all", "--no-fold")
    until(lambda: tail.stdout.count(" sleeps\n") >= HOSTS, 90, lambda: tail.stdout)
    tail.kill()
    lines = [line.split() for line in tail.stdout.splitlines() if line.endswith(" sleeps")]
    want = [f"node{rank}:{rank} | rank {rank} sleeps".split() for rank in range(HOSTS)]
    assert sorted(lines) == sorted(want)

    kill = site("kill", job, "--json").ok().json()
    assert_nothing_runs(lab, within=0)
    assert [(node["host"], node["reachable"], node["survivors"]) for node in kill["nodes"]] == [
        (host.name, True, []) for host in lab
    ]
    assert all(node["signalled"] >= 2 for node in kill["nodes"])  # the launcher and the rank
