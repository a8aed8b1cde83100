"""A run continues by itself when a host loses power, even the host of rank 0, without help from a controller."""

from __future__ import annotations

import pytest

from tests.e2e.programs import MEETING
from tests.e2e.site import Site, assert_nothing_runs, until, wait_for_gang
from tests.lab import Lab

# Rank 0 saves once. Fails in an attempt if it is asked to.
MEET = (
    MEETING
    + """\
if sys.argv[1:] == ["fail", attempt, host]:
    raise ValueError("once")
if dist.get_rank() == 0 and not saves:
    save("step_7.bin", "weights" * 1000)
while True:
    stay_together()
"""
)


ONE_IS_ENOUGH = pytest.mark.full(
    covered_by="tests/e2e/test_restarts.py::test_a_spare_steps_in_for_a_host_without_power"
)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=ONE_IS_ENOUGH)])
def test_a_spare_steps_in_for_a_host_without_power(site: Site, lab: Lab, victim: int) -> None:
    """The command that started the run is killed before. What the master saved is on the other hosts by then.

    Once with firewalls that drop everything but SSH until preflight has opened them: for the agents, for the next
    master, and for the copies of checkpoints.
    """
    job = site.job(f"carry{victim}", MEET, restarts=2, spares=1)
    if victim == 0:
        for host in lab:
            host.firewall("ct state established,related accept", 'iifname "lo" accept', "tcp dport 1024-65535 drop")
        fixed = site("preflight", "--job", job, "--only", "ssh,mesh", "--fix", "--yes", timeout=180).ok()
        assert "(for restarts)" in fixed.stdout
        assert "unknown" not in fixed.stdout.partition("all checks passed")[2], "every link can be measured now"
    up = site.start("up", "--job", job)
    up.wait_for("attempt 0 of node0 with nothing; node1 with nothing")
    up.kill()
    site.wait_for_copy(lab[1], job, lab[0], "step_7.bin")
    wait_for_gang(lab.hosts[:2], site.status(job)["run"])
    lab[victim].power_off()
    left = [host for host in lab if host is not lab[victim]]
    with_save = "; ".join(f"{host.name} with step_7.bin" for host in left)
    site.wait_for_output(job, f"#2 *[|] attempt 1 of {with_save}", timeout=120)
    until(lambda: site.status(job)["state"] == "running", 30, lambda: str(site.status(job)))
    status = site.status(job)
    assert status["attempt"] == 2
    assert [node["host"] for node in status["nodes"]] == [host.name for host in left]
    first, second = status["attempts"]
    assert [one["host"] for one in first["set_aside"]] == [lab[victim].name]
    assert (first["cause"]["host"], first["cause"]["reason"]) == (lab[victim].name, "node_lost")
    assert second["hosts"] == [host.name for host in left]
    assert site("kill", job).rc in (0, 4)  # one host cannot be reached
    assert_nothing_runs(left)


@pytest.mark.full(covered_by="tests/worker/agent/test_agent.py::test_a_rank_that_fails_is_started_again_everywhere")
def test_a_failed_rank_sets_no_host_aside(site: Site, lab: Lab) -> None:
    job = site.job("failed-once", MEET, "fail", "0", "node1", restarts=1, nodes=2)
    up = site.start("up", "--job", job)
    up.wait_for("attempt 1 of node0", timeout=90)
    first = site.status(job)["attempts"][0]
    assert first["set_aside"] == []
    assert "ValueError: once" in first["cause"]["message"]
    assert site("kill", job).rc == 0
    assert up.wait(30).rc == 1
    assert_nothing_runs(lab)
    until(lambda: site.status(job)["state"] == "killed", 20)
