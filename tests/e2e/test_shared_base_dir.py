"""One base_dir for all hosts, on a mount that they share, as a home on a file server is."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, wait_for_ranks
from tests.lab.command import Ddpctl

BASE = "/shared/ddpctl"


def test_from_the_start_to_the_removal(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, python213: str) -> None:
    """Output and records of two hosts side by side, kill, the loss of a host, and removal from the host that lives."""
    lab = make_lab(2, shared="/shared")
    site = Site(lab, ddpctl, tmp_path / "site", python213)
    site.keys["defaults"]["base_dir"] = BASE
    job = site.job("job", SLEEP)

    first = site.up(job)["run"]
    assert sorted(lab[0].run(["ls", f"{BASE}/runs/{first}"]).stdout.split()) == ["node0", "node1"]
    wait_for_ranks(lab, first)
    site.wait_for_output(job, "rank 0 sleeps.*rank 1 sleeps|rank 1 sleeps.*rank 0 sleeps")
    kill = site("kill", job, "--json").ok().json()
    print(kill)
    assert [node["survivors"] for node in kill["nodes"]] == [[], []]
    assert_nothing_runs(lab, within=0)

    second = site.up(job)["run"]
    wait_for_ranks(lab, second)
    lab[1].power_off()
    site("attach", second, timeout=200)
    status = site("status", second, "--json", timeout=120)
    print(status.stdout, status.stderr)
    cause = status.json()["cause"]
    print(cause)
    assert (cause["host"], cause["reason"]) == ("node1", "node_lost")
    assert_nothing_runs(lab)
    told = site("status", first, "--json")
    print(told.stdout, told.stderr)
    tail = site("tail", second, "-n", "5")
    print(tail.stdout, tail.stderr)

    lab[1].boot()
    print(site("rm", first, second, "--yes"))
    print(lab[0].run(["find", BASE, "-maxdepth", "3"]).stdout)
    assert lab[1].run(["ls", f"{BASE}/runs"]).stdout == ""
