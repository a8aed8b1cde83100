"""Accidents of machines and of ddpctl's own processes during a run: the job ends or goes on, and says so."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.e2e.programs import FLOOD, NUMBERS, SLEEP, STUBBORN
from tests.e2e.site import (
    Site,
    assert_nothing_runs,
    named,
    one_line,
    pids_of,
    ranks,
    running,
    until,
    wait_for_gang,
    wait_for_ranks,
    wait_until_reconnecting,
)
from tests.lab import Host, Lab


def answered_by(status: dict[str, Any], host: str) -> dict[str, Any] | None:
    """The status, if this host has answered."""
    states = {node["host"]: node["state"] for node in status["nodes"]}
    return status if states[host] != "unreachable" else None


def test_a_host_loses_power_and_comes_back(site: Site, lab: Lab) -> None:
    job = site.job("power", SLEEP)
    up = site.start("up", "--job", job)
    up.wait_for("rank 1 sleeps")
    wait_for_gang(lab.hosts, run_of(lab[0]))
    lab[1].power_off()
    done = up.wait(90)
    assert done.rc == 1, done.stderr
    line = one_line(done)
    assert "node1" in line
    assert "node_lost" in line
    assert_nothing_runs([lab[0], lab[2]])

    other = site.elsewhere("second")
    status = other.status(job)
    states = {node["host"]: node["state"] for node in status["nodes"]}
    assert states == {"node0": "failed", "node1": "unreachable", "node2": "failed"}
    assert (status["cause"]["reason"], status["cause"]["host"]) == ("node_lost", "node1")
    before = status
    lab[1].disk.new_boot()
    lab[1].boot()
    status = until(lambda: answered_by(other.status(job), "node1"), 60, "node1 does not answer")
    states = {node["host"]: node["state"] for node in status["nodes"]}
    assert states == {"node0": "failed", "node1": "lost", "node2": "failed"}
    assert (status["state"], status["cause"], status["ended"]) == ("failed", before["cause"], before["ended"])
    assert other("kill", job, "--any-project").rc == 0
    assert "rank 1 sleeps" in other("tail", job, "--rank", "1").ok().stdout


def test_supervisor_killed(site: Site, lab: Lab) -> None:
    job = site.job("super", SLEEP)
    up = site.start("up", "--job", job)
    run = run_of(lab[0])
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    kill(lab[1], "ddpctl-super")
    done = up.wait(60)
    assert done.rc == 1
    assert "node1" in one_line(done)
    assert "supervisor" in one_line(done)
    assert_nothing_runs(lab)
    cause = site.status(job)["cause"]
    assert (cause["host"], cause["reason"]) == ("node1", "supervisor_lost")


@pytest.mark.full(covered_by="tests/worker/run/test_watchers.py::test_a_standby_that_dies_at_once_is_replaced")
def test_guardian_killed_then_the_supervisor(site: Site, lab: Lab) -> None:
    """The guardian's death does not disturb the job; the next guardian still cleans up after the supervisor."""
    job = site.job("guardian", SLEEP)
    run = site.up(job)["run"]
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    before = pids_of(lab[2], run)
    kill(lab[2], "ddpctl-guardian")
    until(lambda: named(lab[2], "ddpctl-standby"), 60, "no standby")
    assert site.status(job)["state"] == "running"
    assert pids_of(lab[2], run) == before
    kill(lab[2], "ddpctl-super")
    status = site.wait_for_state(job, "failed", "lost")
    assert (status["cause"]["host"], status["cause"]["reason"]) == ("node2", "supervisor_lost")
    assert_nothing_runs(lab)


def test_both_killed_at_once(site: Site, lab: Lab) -> None:
    """Ranks that obey SIGTERM end with their launcher. Ranks that ignore it stay, the status still shows their node,
    and `kill` ends them.
    """
    site.only(0, 1)
    # The launcher leaves its ranks alone for longer than the test takes.
    job = site.job("both", STUBBORN, timeouts={"stop": 5}, env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"})
    run = site.up(job)["run"]
    site.wait_for_output(job, "(stays.*){4}")
    wait_for_gang(lab.hosts[:2], run)
    pids = [str(named(lab[1], name).pid) for name in ("ddpctl-guardian", "ddpctl-super")]  # type: ignore[union-attr]
    lab[1].run(["kill", "-STOP", pids[1]])  # else it may replace the guardian before its own signal comes
    lab[1].run(["kill", "-KILL", *pids])
    until(lambda: not running(lab[0]), 60, "the other host does not stop")
    left = ranks(lab[1], run)
    assert left
    status = site.status(job)
    assert {node["host"]: node["state"] for node in status["nodes"]}["node1"] == "stale"
    assert site("kill", job, "--grace", "1").rc == 0
    assert_nothing_runs(lab, within=0)
    status = site.status(job)
    assert status["state"] in ("failed", "lost", "killed")
    assert not any(node["state"] in ("stale", "running") for node in status["nodes"])


@pytest.mark.full(
    covered_by="tests/worker/verbs/test_output.py::test_a_full_disk_costs_lines_but_neither_the_job_nor_its_record"
)
def test_a_disk_fills_up(site: Site, lab: Lab) -> None:
    """The rank goes on without its log, the lines that are lost are counted, and the end is on record."""
    site.only(0, 1)
    site.hosts[1]["base_dir"] = "/srv/small"
    lab[1].small_tmpfs("/srv/small", "24m")
    job = site.job("flood", FLOOD, "60000", "0.05")
    run = site.up(job, "--skip-preflight")["run"]
    wait_for_ranks(lab.hosts[:2], run)
    lab[1].run("cat /dev/zero > /srv/small/filler", check=False)
    for host in lab.hosts[:2]:
        host.write("/root/go-on", "")
    until(lambda: lab[1].exists("/root/progress") and lab[1].read("/root/progress") == "done", 60)
    status = site.wait_for_state(job, "succeeded")
    for host in lab.hosts[:2]:
        host.run("rm /root/go-on")
    assert {node["exit_code"] for node in status["nodes"]} == {0}
    text = site("status", job).ok().stdout
    assert "dropped" in text, text
    assert "the end" in site("tail", job, "--host", "node0").ok().stdout
    assert_nothing_runs(lab)
    lab[1].run("rm /srv/small/filler")
    site("kill", job).ok()


@pytest.mark.full(covered_by="tests/e2e/test_controller.py::test_the_connection_breaks_and_the_lines_go_on")
def test_a_cable_is_out_until_the_node_looks_for_its_hub(site: Site, lab: Lab) -> None:
    """No node is declared dead; the follower sees every line in the end."""
    job = site.job("cable", NUMBERS)
    up = site.start("up", "--job", job)
    run = run_of(lab[0])
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    before = [pids_of(host, run) for host in lab]
    up.wait_for("node1:1 .*number 100")
    lab[1].cable(False)
    wait_until_reconnecting(lab[1], run)
    lab[1].cable(True)
    count = up.stdout.count("\nnode1:1")
    until(lambda: up.stdout.count("\nnode1:1") > count + 1000, 90, lambda: up.stderr)
    assert [pids_of(host, run) for host in lab] == before
    for host in lab:
        host.write("/root/enough", "")
    done = up.wait(60)
    for host in lab:
        host.run("rm /root/enough")
    assert done.rc == 0, done.stderr
    numbers = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "rank 1 number" in line]
    assert numbers == list(range(len(numbers)))


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_a_host_hangs_for_ever(site: Site, lab: Lab) -> None:
    """Its kernel answers, its processes stand still: the other hosts stop in time, and the kill says so."""
    job = site.job("frozen", SLEEP)
    run = site.up(job)["run"]
    wait_for_ranks(lab, run)
    wait_for_gang(lab.hosts, run)
    lab[2].freeze()
    until(lambda: not running(lab[0]) and not running(lab[1]), 60, "the others do not stop")
    status = site.status(job)
    assert (status["cause"]["reason"], status["cause"]["host"]) == ("node_lost", "node2")
    lab[2].thaw()
    until(lambda: not running(lab[2]), 60, "who comes back does not stop")
    assert site.wait_for_state(job, "failed")["cause"]["host"] == "node2"


def run_of(host: Host) -> str:
    """The id of the run that is being started there."""

    def found() -> str | None:
        return next((one.environ["DDPCTL_RUN"] for one in running(host) if one.environ.get("DDPCTL_RUN")), None)

    return str(until(found, 60))


def kill(host: Host, name: str) -> None:
    process = named(host, name)
    assert process is not None, name
    host.run(["kill", f"-{signal.SIGKILL.value}", str(process.pid)])
