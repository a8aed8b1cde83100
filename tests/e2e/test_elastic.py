"""torch's own elastic agent below ddpctl: the events that it survives, the events that end it, and the messages."""

from __future__ import annotations

import pytest

from tests.e2e.programs import COLLECTIVES
from tests.e2e.site import Site, assert_nothing_runs, launcher, one_line, until
from tests.lab import Host, Lab

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.mark.full(
    covered_by="tests/worker/run/test_torch.py::test_an_elastic_run_restarts_and_its_ranks_keep_their_names"
)
def test_c10d_does_without_a_node_but_not_without_its_store(torch_site: Site, lab: Lab) -> None:
    """Rank 0 is on the node with the first address in sorted order, wherever the store is. If that node is lost, rank 0
    moves: the collectives end after 20 s, and torch's agent starts again. No host knows the name of another host."""
    site = torch_site
    for host in lab:
        host.hosts_file("127.0.0.1 localhost\n")
    elastic = {"min_nodes": 2, "max_nodes": 3, "max_restarts": 3}
    job = site.job("c10d", COLLECTIVES, "20", master="node1", rendezvous="c10d", elastic=elastic, env=ONE_THREAD)
    up = site.start("up", "--job", job)
    up.wait_for(r"node0:0 .* restart 0 world 3 step 3\b")
    run = str(site.status(job)["run"])

    lab[0].power_off()
    up.wait_for("node0.*trying again", 90)
    up.wait_for(r"node1:0 .* restart [01] world 2 step 3\b", 150)  # torch waits 30 s for a third node
    status = site.status(job)
    assert (status["state"], status["cause"]) == ("running", None)
    assert {node["host"]: node["state"] for node in status["nodes"]} == {
        "node0": "unreachable",
        "node1": "running",
        "node2": "running",
    }
    assert "node0 takes part no more: unreachable" in site("status", job).ok().stdout

    kill_launcher(lab[1], run)
    done = up.wait(60)
    assert done.rc == 1
    cause = site.status(job)["cause"]
    assert (cause["host"], cause["reason"]) == ("node1", "signaled")
    assert "node1: signaled: the launcher was killed by SIGKILL" in one_line(done)
    assert_nothing_runs(lab)


def kill_launcher(host: Host, run: str) -> None:
    process = until(lambda: launcher(host, run))
    host.run(["kill", "-KILL", str(process.pid)])
