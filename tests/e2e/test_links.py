"""The network between two nodes is cut while both still reach the hub: only the data of their ranks shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl_worker.gang.limits import UNACKED_S
from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, ranks, until, wait_for_gang, wait_for_ranks
from tests.lab import Host, Lab
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
# Rank 1 sends without end, rank 2 only receives: data waits at one end of the connection only.
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


@pytest.mark.full(covered_by="tests/e2e/test_links.py::test_data_that_a_cut_node_does_not_take_names_it")
@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "one way"])
def test_a_cut_between_two_members_ends_the_run_and_is_the_cause(torch_site: Site, lab: Lab, one_way: bool) -> None:
    site = torch_site
    job = site.job("one-way" if one_way else "apart", REDUCE, env={"OMP_NUM_THREADS": "1"})
    up = site.start("up", "--job", job, "--json")
    up.wait_for(r"\| step", 90)
    lab[2].drop(from_=lab[1])
    if not one_way:
        lab[1].drop(from_=lab[2])
    done = up.wait(120)
    assert done.rc == 1, done.stdout + done.stderr
    assert_nothing_runs(lab)
    status = done.json()
    cause = status["cause"]
    assert {node["state"] for node in status["nodes"]} == {"failed"}
    assert (cause["host"], cause["peer"], cause["reason"]) == ("node2", "node1", "link_lost"), cause
    assert cause["message"].startswith("node1 and node2 cannot reach each other: data from node"), cause
    assert "both still reach node0" in cause["message"]
    assert "cannot reach each other" in one_line(done)


def streaming(site: Site, lab: Lab, name: str) -> str:
    """A job in which node1 sends to node2 all the time, and has begun to."""
    job = site.job(name, STREAM, lab[2].fabric_address)
    run = site.up(job)["run"]
    site.wait_for_output(job, "connected")
    wait_for_gang(lab.hosts, run)
    return job


def test_data_that_a_cut_node_does_not_take_names_it(site: Site, lab: Lab) -> None:
    job = streaming(site, lab, "stream")
    lab[2].drop(from_=lab[1])
    cause = site.wait_for_state(job, "failed")["cause"]
    assert (cause["host"], cause["peer"], cause["reason"]) == ("node2", "node1", "link_lost"), cause
    assert "data from node1 to node2 was not acknowledged for" in cause["message"]
    assert_nothing_runs(lab)


@pytest.mark.full(covered_by="tests/worker/gang/test_links.py::test_what_is_no_cut")
def test_a_connection_alone_that_is_lost_is_the_ranks_affair(site: Site, lab: Lab) -> None:
    """While the nodes still answer each other."""
    job = streaming(site, lab, "port")
    lab[2].drop(port=45000)
    until(lambda: sent_again(lab[1], 45000) >= 7, 120, "the kernel does not try again")  # twice as long as a cut takes
    assert site.status(job)["state"] == "running"
    site("kill", job).ok()


@pytest.mark.full(covered_by="tests/worker/rules/test_verdict.py::test_a_connection_without_an_answer_is_named")
def test_a_firewall_that_has_forgotten_the_connections_is_named(torch_site: Site, lab: Lab) -> None:
    """Packets of old connections are dropped, and new connections are answered."""
    site = torch_site
    job = site.job("forgotten", REDUCE, env={"OMP_NUM_THREADS": "1"}, doctor={"stall": 20})
    up = site.start("up", "--job", job)
    up.wait_for(r"\| step", 90)
    for host, other in ((lab[1], lab[2]), (lab[2], lab[1])):
        host.firewall(f"ip saddr {other.fabric_address} tcp flags & (syn | rst) == 0 drop")
    up.wait_for("without an answer: a firewall or NAT between the nodes has forgotten this connection", 120)
    site("kill", job).ok()


def sent_again(host: Host, port: int) -> int:
    """How often the kernel has sent again what a connection to this port has not been acknowledged."""
    assert host.init
    lines = Path("/proc", str(host.init.pid), "net/tcp").read_text().splitlines()[1:]
    rows = (line.split() for line in lines)
    return max((int(row[6], 16) for row in rows if row[2].endswith(f":{port:04X}")), default=0)


@pytest.mark.full(covered_by="tests/worker/gang/test_links.py::test_what_is_no_cut")
def test_a_stopped_rank_and_a_lossy_link_end_no_run(torch_site: Site, lab: Lab) -> None:
    site = torch_site
    job = site.job("slow", REDUCE, env={"OMP_NUM_THREADS": "1"})
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    wait_for_steps(site, job)
    stopped = next(iter(ranks(lab[1], run["run"]).values()))
    lab[1].run(f"kill -STOP {stopped.pid}")
    until(lambda: quiet_for(site, job) > 2 * UNACKED_S, 120, "the others write on", pause=1.0)
    lab[1].run(f"kill -CONT {stopped.pid}")
    wait_for_steps(site, job)
    before = lost_segments(lab[1])
    for host, other in ((lab[1], lab[2]), (lab[2], lab[1])):
        host.firewall(f"ip saddr {other.fabric_address} numgen random mod 100 < 20 drop")
    until(lambda: lost_segments(lab[1]) > before + 10, 120, "no segment is lost", pause=0.5)
    for host in lab.hosts[1:]:
        host.clear_firewall()
    wait_for_steps(site, job)
    assert site.status(job)["state"] == "running"
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)


def quiet_for(site: Site, job: str) -> float:
    """For how many seconds no rank has written a line."""
    looks = site("doctor", job, "--json").ok().json()["ranks"]
    return float(min(one["last_output_age_s"] for one in looks if one["last_output_age_s"] is not None))


def lost_segments(host: Host) -> int:
    """How many segments the kernel of this host has sent again since its start."""
    assert host.init
    lines = Path("/proc", str(host.init.pid), "net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


@pytest.mark.full(covered_by="tests/worker/gang/test_links.py::test_a_link_to_the_hub_over_another_network_counts_too")
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
    assert (cause["host"], cause["peer"], cause["reason"]) == ("node1", "node0", "link_lost"), cause
    assert cause["message"].startswith("node0 and node1 cannot reach each other: data from node"), cause
    assert "they still reach each other on the port where the nodes watch each other" in cause["message"]
    assert_nothing_runs(lab)


# Rank 1 connects to rank 2 once the file `go` exists, as gloo does before the ranks have met; no data is ever sent.
OPENS = """\
import os, socket, sys, time
print("rank", os.environ["RANK"], "waits", flush=True)
while not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.1)
while os.environ["RANK"] == "1":
    socket.create_connection((sys.argv[1], 45001))
time.sleep(1000)
"""


def test_a_cut_before_the_ranks_have_met_names_both_hosts(site: Site, lab: Lab) -> None:
    """The run must name the cause now: after the next attempt, or gloo's timeout of half an hour, no trace is left."""
    job = site.job("unmet", OPENS, lab[2].fabric_address, timeouts={"start": 60})
    run = site.up(job)["run"]
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    lab[2].drop(from_=lab[1])
    lab[1].drop(from_=lab[2])
    lab[1].write("/root/go", "")
    cause = site.wait_for_state(job, "failed")["cause"]
    lab[1].run("rm /root/go")
    assert (cause["host"], cause["peer"], cause["reason"]) == ("node2", "node1", "link_lost"), cause
    assert cause["message"].startswith(
        "node1 and node2 cannot reach each other: connections of ranks from node1 to node2 were not answered for "
    )
    assert_nothing_runs(lab)


def test_a_member_that_never_reached_the_hub_names_the_link(site: Site, lab: Lab) -> None:
    job = site.job("unjoined", SLEEP, timeouts={"start": 8})
    lab[0].drop(from_=lab[1])
    lab[1].drop(from_=lab[0])
    site("up", "--job", job, "-d", "--skip-preflight")
    status = site.wait_for_state(job, "failed")
    cause = status["cause"]
    assert (cause["host"], cause["peer"], cause["reason"]) == ("node1", "node0", "link_lost"), cause
    assert "no connection of node1 to port" in cause["message"]
    assert_nothing_runs(lab)
