"""All hosts use the same base_dir on a shared mount, like a home on a file server."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, wait_for_gang, wait_for_ranks
from tests.lab.command import Ddpctl

RUNS = "/shared/ddpctl/runs"


def test_from_the_start_to_the_removal(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> None:
    """Records and output of two hosts lie side by side; kill, the loss of a host, and removal find each its own."""
    lab = make_lab(2, shared="/shared")
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)
    site.keys["defaults"]["base_dir"] = "/shared/ddpctl"
    job = site.job("job", SLEEP)

    killed = site.up(job)["run"]
    assert sorted(lab[0].run(["ls", f"{RUNS}/{killed}"]).stdout.split()) == ["node0", "node1"]
    wait_for_ranks(lab, killed)
    site.wait_for_output(job, "rank 0 sleeps.*rank 1 sleeps|rank 1 sleeps.*rank 0 sleeps")
    kill = site("kill", job, "--json").ok().json()
    assert [(node["host"], node["survivors"]) for node in kill["nodes"]] == [("node0", []), ("node1", [])]
    assert_nothing_runs(lab, within=0)

    up = site.start("up", "--job", job)
    up.wait_for(r"(?s)rank 0 sleeps.*rank 1 sleeps|rank 1 sleeps.*rank 0 sleeps", 120)
    wait_for_gang(lab.hosts, str(site.status(job)["run"]), RUNS)
    lab[1].power_off()
    done = up.wait(200)
    assert done.rc == 1, done.stderr
    assert "node1: node_lost" in one_line(done)
    assert_nothing_runs(lab)

    lab[1].disk.new_boot()
    lab[1].boot()
    status = site.status(job)
    assert {node["host"]: node["state"] for node in status["nodes"]} == {"node0": "failed", "node1": "lost"}
    assert (status["cause"]["reason"], status["cause"]["host"]) == ("node_lost", "node1")
    site("rm", killed, status["run"]).ok()
    assert lab[1].run(["ls", RUNS]).stdout == ""
