"""The network between the nodes is cut for a while: a short cut costs nothing, a long cut ends both sides."""

from __future__ import annotations

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import (
    Site,
    assert_nothing_runs,
    gang_connections,
    ranks,
    until,
    wait_for_gang,
    wait_for_ranks,
    wait_until_reconnected,
    wait_until_reconnecting,
)
from tests.lab import Host, Lab


def cut(host: Host) -> None:
    """Silently, as in the middle of a network: neither end's own cable is out. The way to the controller stays."""
    others = " ".join(f"{other.fabric_address}," for other in host.lab if other is not host)
    host.firewall(f"ip saddr {{ {others} }} drop")
    host.firewall(f"ip daddr {{ {others} }} drop", chain="output")


@pytest.mark.full(covered_by="tests/e2e/test_cuts.py::test_a_failure_during_a_cut_is_told_after_it")
@pytest.mark.parametrize("node", [0, 1], ids=["hub", "member"])
def test_a_short_cut_costs_nothing(site: Site, lab: Lab, node: int) -> None:
    """TCP itself tries again too late: the nodes meet on a new connection."""
    job = site.job("short", SLEEP)
    run = site.up(job)["run"]
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    members = [host for host in lab.hosts[1:] if node in (0, lab.hosts.index(host))]
    before = {host.name: gang_connections(host, run) for host in members}
    cut(lab[node])
    for host in members:
        wait_until_reconnecting(host, run)
    lab[node].clear_firewall()
    for host in members:
        wait_until_reconnected(host, run, before[host.name])
    assert site.status(job)["state"] == "running"
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)


def test_a_failure_during_a_cut_is_told_after_it(site: Site, lab: Lab) -> None:
    job = site.job("failing", FAILS)
    run = site.up(job)["run"]
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    cut(lab[1])
    lab[1].run("touch /root/fail")
    until(lambda: not ranks(lab[1], run), 60, "the rank does not fail")
    wait_until_reconnecting(lab[1], run)
    lab[1].clear_firewall()
    status = site.wait_for_state(job, "failed")
    lab[1].run("rm /root/fail")
    assert (status["cause"]["host"], status["cause"]["exit_code"]) == (lab[1].name, 9), status
    assert_nothing_runs(lab)


def test_a_long_cut_ends_both_sides(site: Site, lab: Lab) -> None:
    job = site.job("cut60", SLEEP)
    run = site.up(job)["run"]
    wait_for_gang(lab.hosts, run)
    cut(lab[2])
    status = site.wait_for_state(job, "failed")
    assert status["cause"]["reason"] == "node_lost"
    assert_nothing_runs(lab, within=20)


FAILS = """\
import os, time
while not os.path.exists(os.path.expanduser("~/fail")):
    time.sleep(0.1)
raise SystemExit(9)
"""
