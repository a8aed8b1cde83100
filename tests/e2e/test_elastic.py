"""torch's own elastic agent below ddpctl: what it survives, what ends it, and what is said then. tests/bench/elastic.py
does the same to plain torchrun, with hosts that lose power."""

from __future__ import annotations

import pytest

from tests.e2e.programs import COLLECTIVES
from tests.e2e.site import Site, assert_nothing_runs, launcher, one_line, until
from tests.lab import Host, Lab
from tests.lab.etcd import missing_etcd, start_etcd

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def etcd(lab: Lab) -> Host:
    """The first host, with etcd on it until it is healed."""
    if reason := missing_etcd():
        pytest.skip(reason)
    start_etcd(lab[0])
    return lab[0]


@pytest.mark.full(covered_by="tests/worker/test_torch.py::test_an_elastic_run_restarts_and_its_ranks_keep_their_names")
def test_c10d_does_without_a_node_but_not_without_its_store(torch_site: Site, lab: Lab) -> None:
    """Rank 0 is on the node whose address sorts first, wherever the store is, and moves when that node is lost. The
    collectives have no limit that anybody could wait for, and no host knows the name of another."""
    site = torch_site
    for host in lab:
        host.hosts_file("127.0.0.1 localhost\n")
    elastic = {"min_nodes": 2, "max_nodes": 3, "max_restarts": 3}
    job = site.job("c10d", COLLECTIVES, "1800", master="node1", rendezvous="c10d", elastic=elastic, env=ONE_THREAD)
    up = site.start("up", "--job", job)
    up.wait_for(r"node0:0 .* restart 0 world 3 step 3\b")
    run = str(site.status(job)["run"])

    lab[0].power_off()
    up.wait_for(r"node1:0 .* restart [01] world 2 step 3\b", 90)  # 30 s of it are torch's wait for a third node
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


@pytest.mark.full(covered_by="tests/spec/test_planning.py::test_etcd_is_where_the_job_says_on_its_own_port")
def test_etcd_may_run_beside_the_nodes_of_a_job(torch_site: Site, lab: Lab, etcd: Host) -> None:
    site = torch_site
    keys = {"nodes": ["node1", "node2"], "master": etcd.name, "rendezvous": "etcd-v2", "env": ONE_THREAD}
    job = site.job("meet", COLLECTIVES, "20", **keys)
    up = site.start("up", "--job", job)
    up.wait_for(r"world 2 step 3\b")
    for host in lab.hosts[1:]:
        host.write("/root/enough", "")
    done = up.wait(60)
    for host in lab.hosts[1:]:
        host.run("rm /root/enough")
    assert done.rc == 0, done.stderr
    assert_nothing_runs(lab.hosts[1:])


@pytest.mark.full(covered_by="tests/worker/test_rendezvous.py::test_the_place_is_named")
def test_without_etcd_the_job_ends_and_says_so(torch_site: Site, lab: Lab) -> None:
    site = torch_site.only(0, 1)
    job = site.job("none", COLLECTIVES, "20", rendezvous="etcd-v2", env=ONE_THREAD)
    done = site("up", "--job", job)
    assert done.rc == 1
    assert "etcd" in one_line(done)
    assert f"{lab[0].address}:2379" in one_line(done)
    assert_nothing_runs(lab)


def kill_launcher(host: Host, run: str) -> None:
    process = until(lambda: launcher(host, run))
    host.run(["kill", "-KILL", str(process.pid)])
