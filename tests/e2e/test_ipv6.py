"""Hosts without an IPv4 address: the way in, the network checks, the gang and the launchers speak IPv6."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from tests.conftest import MakeLab
from tests.e2e.programs import ONE_FAILS, SLEEP
from tests.e2e.site import Site, assert_nothing_runs, launcher, wait_for_ranks
from tests.lab.command import Ddpctl


def test_a_run_without_ipv4(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> None:
    """Preflight with its network mesh, a failure that the other node hears of, output of both nodes, and kill."""
    lab = make_lab(2, ipv6=True)
    assert " inet " not in lab[0].run(["ip", "-4", "-o", "address", "show", "dev", "eth0"]).stdout
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)

    failing = site.job("failing", ONE_FAILS, "3", "1", "0.1")
    up = site("up", "--job", failing)
    assert up.rc == 1, up.stderr
    assert "node1" in up.stderr
    cause = site.status(failing)["cause"]
    assert (cause["host"], cause["rank"], cause["exit_code"]) == ("node1", 1, 3)
    assert_nothing_runs(lab)

    run = site.up(site.job("sleeping", SLEEP))["run"]
    wait_for_ranks(lab, run)
    found = launcher(lab[1], run)
    assert found is not None
    assert ip_address(found.argv[found.argv.index("--master_addr") + 1]) == ip_address(lab[0].address)
    site.wait_for_output("sleeping", "rank 0 sleeps.*rank 1 sleeps|rank 1 sleeps.*rank 0 sleeps")
    kill = site("kill", "sleeping", "--json").ok().json()
    assert [node["survivors"] for node in kill["nodes"]] == [[], []]
    assert_nothing_runs(lab, within=0)
