"""A host that was without power is used by a live run again, once it is back: `up` and `attach` see to that."""

from __future__ import annotations

import re

import pytest

from tests.e2e.programs import MEETING
from tests.e2e.site import Site, assert_nothing_runs, named, one_line, until
from tests.lab import Lab

# Rank 0 saves one more in every attempt. Fails on rank 0 when there is a file `fail` in the home of its host.
MEET = (
    MEETING
    + """\
if dist.get_rank() == 0:
    save(f"step_{attempt}.bin", "weights" * 1000 + attempt)
while True:
    if dist.get_rank() == 0 and os.path.exists(os.path.expanduser("~/fail")):
        os.unlink(os.path.expanduser("~/fail"))
        raise ValueError("once")
    stay_together()
"""
)
ELASTIC = {"min_nodes": 2, "max_nodes": 3, "max_restarts": 3}
BACK = "node{}.*takes part in the run again"


@pytest.mark.full(covered_by="tests/worker/test_rejoin.py::test_a_host_that_is_back_is_used_by_the_next_attempt")
@pytest.mark.parametrize("victim", [2, 0], ids=["member", "leader"])
def test_up_brings_a_host_back(site: Site, lab: Lab, victim: int) -> None:
    job = site.job(f"back{victim}", MEET, elastic=ELASTIC, restarts=3)
    names = [host.name for host in lab]
    left = [host for host in lab if host is not lab[victim]]
    up = site.start("up", "--job", job)
    up.wait_for("attempt 0 of node0 with nothing; node1 with nothing; node2 with nothing", 90)
    site.wait_for_copy(lab[1], job, lab[0], "step_0.bin")
    lab[victim].power_off()
    up.wait_for("attempt 1 of " + "; ".join(f"{host.name} with step_0.bin" for host in left), 90)
    site.wait_for_copy(left[1], job, left[0], "step_1.bin")
    lab[victim].disk.new_boot()
    lab[victim].boot()
    up.wait_for(BACK.format(victim), 90)
    assert site.status(job)["attempt"] == 2  # what runs is not disturbed
    left[0].run(["touch", "/root/fail"])  # one step: rank 0 takes it away at once
    up.wait_for("attempt 2 of " + "; ".join(f"{name} with step_1.bin" for name in names), 90)
    assert [one["hosts"] for one in site.status(job)["attempts"]] == [names, [host.name for host in left], names]
    assert site("kill", job).rc == 0
    assert up.wait(60).rc == 1
    assert_nothing_runs(lab)


@pytest.mark.full(covered_by="tests/worker/test_rejoin.py::test_without_its_record_it_stays_out")
def test_attach_and_restart_bring_hosts_back_where_they_have_their_record(site: Site, lab: Lab) -> None:
    """Started with `up -d`: nobody was there when the hosts were lost, one with its disk."""
    job = site.job("attached", MEET, elastic={**ELASTIC, "min_nodes": 1}, restarts=3)
    run = site.up(job)["run"]
    site.wait_for_output(job, "attempt 0 of node0")
    lab[2].power_off()
    site.wait_for_output(job, "attempt 1 of node0")
    lab[2].disk.new_boot()
    lab[2].boot()
    attach = site.start("attach", job)
    attach.wait_for(BACK.format(2), 90)
    until(lambda: named(lab[2], "ddpctl-agent"))
    attach.kill()
    until(lambda: {one["host"] for one in site.status(job)["nodes"]} == {"node0", "node1"}, 20)
    agent = named(lab[2], "ddpctl-agent")
    assert agent is not None
    lab[2].run(["kill", "-9", str(agent.pid)])
    assert re.search(BACK.format(2), site("restart", "-d", job).ok().stderr)
    until(lambda: named(lab[2], "ddpctl-agent"))
    assert f"{job} is running" in one_line(site("restart", "-d", job))  # nobody to bring back
    lab[2].power_off()
    lab[2].disk.new_boot()
    lab[2].boot()
    lab[2].run(f"rm -r ~/.local/state/ddpctl/runs/{run}")
    attach = site.start("attach", job)
    attach.wait_for("node2.*without its record of the run, so it cannot take part again", 90)
    assert site.status(job)["state"] == "running"
    assert site("kill", job).rc == 0
    assert attach.wait(60).rc == 1
    assert_nothing_runs(lab)
