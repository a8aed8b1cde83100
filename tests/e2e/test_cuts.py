"""The network between the nodes is cut for a while: a short cut costs nothing, a long one ends both sides."""

from __future__ import annotations

import time

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, wait_for_ranks
from tests.lab import Host, Lab


def cut(host: Host) -> None:
    """Silently, as in the middle of a network: neither end's own cable is out. The way to the controller stays."""
    others = " ".join(f"{other.fabric_address}," for other in host.lab if other is not host)
    host.firewall(f"ip saddr {{ {others} }} drop")
    host.firewall(f"ip daddr {{ {others} }} drop", chain="output")


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(0, id="hub", marks=pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")),
        pytest.param(1, id="member"),
    ],
)
def test_a_short_cut_costs_nothing(site: Site, lab: Lab, node: int) -> None:
    """The simulator has cuts of up to seven seconds; here a busy machine must not make one of twelve of it."""
    job = site.job("cut3", SLEEP)
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    cut(lab[node])
    time.sleep(3)
    lab[node].clear_firewall()
    time.sleep(12)
    assert site.status(job)["state"] == "running"
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)


def test_a_failure_during_a_cut_is_told_after_it(site: Site, lab: Lab) -> None:
    job = site.job("failing", FAILS)
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    cut(lab[1])
    lab[1].write("/root/fail", "")
    time.sleep(6)
    lab[1].clear_firewall()
    status = site.wait_for_state(job, "failed", timeout=40)
    lab[1].run("rm /root/fail")
    assert (status["cause"]["host"], status["cause"]["exit_code"]) == (lab[1].name, 9), status
    assert_nothing_runs(lab)


def test_a_long_cut_ends_both_sides(site: Site, lab: Lab) -> None:
    job = site.job("cut60", SLEEP)
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    cut(lab[2])
    status = site.wait_for_state(job, "failed", timeout=60)
    assert status["cause"]["reason"] == "node_lost"
    assert_nothing_runs(lab, within=20)


FAILS = """\
import os, time
while not os.path.exists(os.path.expanduser("~/fail")):
    time.sleep(0.1)
raise SystemExit(9)
"""
