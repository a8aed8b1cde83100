"""The network between two nodes is cut while both still reach the hub: nobody but their ranks' own data shows it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.site import Site, assert_nothing_runs, one_line, ranks, wait_for_ranks
from tests.lab import Lab
from tests.lab.command import Ddpctl

# Every pair of ranks exchanges data all the time.
REDUCE = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
value, step = torch.ones(1 << 16), 0
while True:
    dist.all_reduce(value)
    step += 1
    if dist.get_rank() == 0 and step % 50 == 0:
        print("step", step, flush=True)
    time.sleep(0.02)
"""
# Rank 1 sends without end, rank 2 takes what comes and says nothing: one end alone has data that waits.
STREAM = """\
import os, socket, sys, time
rank, port = int(os.environ["RANK"]), 45000
if rank == 2:
    with socket.create_server(("", port)) as listener:
        peer = listener.accept()[0]
    while peer.recv(1 << 16):
        pass
if rank == 1:
    while True:
        try:
            peer = socket.create_connection((sys.argv[1], port))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    print("connected", flush=True)
    while True:
        peer.sendall(b"x" * 1000)
        time.sleep(0.05)
time.sleep(1000)
"""


def wait_for_steps(site: Site, job: str) -> None:
    """Until the ranks have made progress, from now on."""
    site.wait_for_output(job, "step.*step", "-n", "0")


@pytest.fixture
def site(torch_site: Site) -> Site:
    """In gloo every two ranks have connections of their own."""
    return torch_site


@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "one way"])
def test_a_cut_between_two_members_ends_the_run_and_is_the_cause(site: Site, lab: Lab, one_way: bool) -> None:
    job = site.job("one-way" if one_way else "apart", REDUCE, env={"OMP_NUM_THREADS": "1"})
    up = site.start("up", "--job", job, "--json")
    up.wait_for(r"\| step", 90)
    lab[2].drop(from_=lab[1])
    if not one_way:
        lab[1].drop(from_=lab[2])
    began = time.monotonic()
    done = up.wait(90)
    print(f"ended {time.monotonic() - began:.1f} s after the cut")
    assert done.rc == 1, done.stdout + done.stderr
    assert_nothing_runs(lab)
    status = done.json()
    cause = status["cause"]
    assert {node["state"] for node in status["nodes"]} == {"failed"}
    assert (cause["host"], cause["reason"]) == ("node2", "node_lost"), cause
    assert cause["message"].startswith("node1 and node2 cannot reach each other: data from node"), cause
    assert "both still reach node0" in cause["message"]
    assert "cannot reach each other" in one_line(done)


def test_one_end_has_data_and_the_other_is_asked(site: Site, lab: Lab) -> None:
    """While the nodes still answer each other a connection alone that is lost is the ranks' affair."""
    job = site.job("stream", STREAM, lab[2].fabric_address)
    site.up(job)
    site.wait_for_output(job, "connected")
    lab[2].drop(port=45000)
    time.sleep(20)
    assert site.status(job)["state"] == "running"
    lab[2].drop(from_=lab[1])
    cause = site.wait_for_state(job, "failed", timeout=60)["cause"]
    assert (cause["host"], cause["reason"]) == ("node2", "node_lost"), cause
    assert "data from node1 to node2 was not acknowledged for" in cause["message"]
    assert_nothing_runs(lab)


def test_a_stopped_rank_and_a_lossy_link_end_no_run(site: Site, lab: Lab) -> None:
    job = site.job("slow", REDUCE, env={"OMP_NUM_THREADS": "1"})
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    wait_for_steps(site, job)
    stopped = next(iter(ranks(lab[1], run["run"]).values()))
    lab[1].run(f"kill -STOP {stopped.pid}")
    time.sleep(20)
    lab[1].run(f"kill -CONT {stopped.pid}")
    wait_for_steps(site, job)
    for host, other in ((lab[1], lab[2]), (lab[2], lab[1])):
        host.firewall(f"ip saddr {other.fabric_address} numgen random mod 100 < 20 drop")
    time.sleep(20)
    for host in lab.hosts[1:]:
        host.clear_firewall()
    wait_for_steps(site, job)
    assert site.status(job)["state"] == "running"
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)


def test_a_cut_between_the_hub_and_a_member_on_the_ranks_own_network(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, python213: str
) -> None:
    """The nodes watch each other on another network, which is whole."""
    lab = make_lab(3, fabric=True)
    site = Site(lab, ddpctl, tmp_path / "site", python213)
    site.hosts = [{**one, "fabric_address": one["address"], "interface": "eth1"} for one in site.hosts]
    job = site.job("rails", REDUCE, env={"OMP_NUM_THREADS": "1"})
    up = site.start("up", "--job", job, "--skip-preflight", "--json")
    up.wait_for(r"\| step", 90)
    lab[0].drop(from_=lab[1])
    done = up.wait(90)
    assert done.rc == 1, done.stdout + done.stderr
    cause = done.json()["cause"]
    assert (cause["host"], cause["reason"]) == ("node1", "node_lost"), cause
    assert cause["message"].startswith("node0 and node1 cannot reach each other: data from node"), cause
    assert "they still reach each other on the port where the nodes watch each other" in cause["message"]
    assert_nothing_runs(lab)
