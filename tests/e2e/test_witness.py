"""Two hosts and a witness: a third host without torch whose vote lets one of the two continue alone."""

from __future__ import annotations

import pytest

from tests.e2e.site import Site, assert_nothing_runs, named, of_run, ranks, running, until
from tests.e2e.test_cuts import cut
from tests.e2e.test_restarts import MEET
from tests.lab import Host, Lab

KEYS = {"restarts": 3, "nodes": 2, "witness": "node2", "elastic": {"min_nodes": 1, "max_nodes": 2}}


@pytest.fixture
def duo(site: Site) -> Site:
    """The witness has the system's Python, which has no torch."""
    site.hosts[2]["python"] = "/usr/bin/python3"
    return site


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_agents")
def test_one_of_two_hosts_continues_alone(duo: Site, lab: Lab) -> None:
    job = duo.job("duo", MEET, **KEYS)
    run = duo.up(job)["run"]
    duo.wait_for_output(job, "attempt 0 of node0 with nothing; node1 with nothing")
    status = duo.status(job)
    assert [node["host"] for node in status["nodes"]] == ["node0", "node1"]
    assert "witness: node2" in duo("status", job).ok().stdout
    assert named(lab[2], "ddpctl-agent")
    assert of_run(lab[2], run) == []
    lab[0].power_off()
    duo.wait_for_output(job, "#2 *[|] attempt 1 of node1 with", timeout=90)
    status = duo.status(job)
    assert (status["state"], [node["host"] for node in status["nodes"]]) == ("running", ["node1"])
    killed = duo("kill", job, "--json")
    assert killed.rc == 4, "node0 cannot be reached"
    assert [(one["host"], one["survivors"]) for one in killed.json()["nodes"] if one["reachable"]] == [
        ("node1", []),
        ("node2", []),
    ]
    assert_nothing_runs(lab)


@pytest.mark.full(
    covered_by="tests/stages/test_restart.py::test_a_run_of_which_only_the_witness_is_left_is_to_be_ended_first"
)
def test_a_run_that_has_ended_is_continued_with_its_witness(duo: Site, lab: Lab) -> None:
    """Then without it, when it does not answer."""
    job = duo.job("continued", MEET, **KEYS)
    duo.up(job)
    duo.wait_for_output(job, "attempt 0 of node0 with nothing; node1 with nothing")
    duo("kill", job).ok()
    duo("restart", "-d", job, timeout=120).ok()
    duo.wait_for_output(job, "attempt 1 of node0 with.*node1 with")
    assert "witness: node2" in duo("status", job).ok().stdout
    assert named(lab[2], "ddpctl-agent")
    duo("kill", job).ok()
    lab[2].power_off()
    done = duo("restart", "-d", job, timeout=120).ok()
    assert "the witness node2 does not answer" in done.stderr
    duo.wait_for_output(job, "attempt 2 of node0 with.*node1 with")
    assert "witness" not in duo("status", job).ok().stdout
    duo("kill", job).ok()
    assert running(lab[0]) == running(lab[1]) == []


@pytest.mark.full(covered_by="tests/simulator/test_stories.py::test_a_host_that_is_cut_off_says_so_and_waits")
def test_a_host_that_is_cut_off_never_runs_beside_the_other(duo: Site, lab: Lab) -> None:
    job = duo.job("apart", MEET, **KEYS)
    run = duo.up(job)["run"]
    duo.wait_for_output(job, "attempt 0 of node0 with nothing; node1 with nothing")
    cut(lab[0])

    def continued() -> bool:
        first, second = attempts_of(lab[0], run), attempts_of(lab[1], run)
        assert not (first and "1" in second), "two attempts at once"
        return "1" in second

    until(continued, 90, pause=0.2)
    lab[0].clear_firewall()
    duo.wait_for_output(job, "#2 *[|] attempt 1 of node1 with")
    assert duo("kill", job).rc == 0
    assert_nothing_runs(lab)


def attempts_of(host: Host, run: str) -> set[str]:
    return {rank.environ["DDPCTL_ATTEMPT"] for rank in ranks(host, run).values()}


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_agents")
def test_a_witness_without_power_harms_nothing(duo: Site, lab: Lab) -> None:
    job = duo.job("unseen", MEET, **KEYS)
    run = duo.up(job)["run"]
    duo.wait_for_output(job, "attempt 0 of node0 with nothing; node1 with nothing")
    lab[2].power_off()
    (rank,) = ranks(lab[0], run).values()
    lab.ssh("node0", f"kill -9 {rank.pid}")
    duo.wait_for_output(job, "#2 *[|] attempt 1 of node0 with.*node1 with", timeout=120)
    assert "witness: node2 (unreachable)" in duo("status", job).ok().stdout
    assert "attempt 1 of node0" in duo("tail", job, "-n", "all").ok().stdout
    assert duo("kill", job).rc == 4
    assert running(lab[0]) == running(lab[1]) == []
