"""Several accounts on the same hosts: each process takes a slot, and no slot has two holders."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, named, one_line, ranks, until, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.command import Ddpctl

FOLDER = "/var/tmp/ddpctl-slots"


@pytest.fixture
def people(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Mapping[str, Site]:
    """Three accounts with an inventory of the same two hosts, of two slots each."""
    lab = make_lab(2)
    sites = {}
    for user in ("alice", "bob", "carol"):
        for host in lab:
            host.add_user(user)
        site = sites[user] = Site(lab, ddpctl, tmp_path / user, stand_in)
        site.keys["defaults"].update(user=user, slots=2)
    return sites


def holders(host: Host) -> dict[str, set[str]]:
    """Return slot -> the processes that have its locked file open, from /proc."""
    found: dict[str, set[str]] = {}
    for process in host.processes():
        names = host.run(f"ls -l /proc/{process.pid}/fd", check=False).stdout
        for slot in re.findall(rf"{FOLDER}/slot-(\S+)", names):
            with contextlib.suppress(FileNotFoundError):  # the process has ended meanwhile
                found.setdefault(slot, set()).add((host.proc / str(process.pid) / "comm").read_text().strip())
    return found


def test_slots_are_shared_and_their_holder_is_named(people: Mapping[str, Site]) -> None:
    alice, bob = people["alice"], people["bob"]
    lab = alice.lab
    run = alice.up(alice.job("resnet", SLEEP, nproc_per_node=2))["run"]
    wait_for_ranks(lab, run, 2)
    watchers = {"ddpctl-guardian"[:15], "ddpctl-super"}
    assert [holders(host) for host in lab] == [{"0": watchers, "1": watchers}] * 2

    refused = bob("up", "--job", bob.job("train", SLEEP, nproc_per_node=1), "-d")
    assert refused.rc == 8, refused.stderr
    for host in lab:
        line = rf"  {host.name}: slots 0-1: alice, run resnet \(since \d+ s, from root@\S+:.*alice\)"
        assert re.search(line, refused.stderr), refused.stderr
    assert "are in use; nothing was started" in one_line(refused)
    checked = bob("preflight", "--job", "train", "--only", "host.slots", "--json").ok().json()["findings"]
    named_before = [one for one in checked if one["check"] == "host.slots"]
    assert [(one["severity"], one["host"]) for one in named_before] == [("warning", host.name) for host in lab]
    assert re.search(r"in use; slots 0-1: alice, run resnet \(since \d+ s, from root@", named_before[0]["message"])

    (row,) = bob("ps", "--json").ok().json()["jobs"]
    assert (row["job"], row["run"], row["user"], row["state"]) == ("resnet", run, "alice", "running")
    assert row["slots"] == {host.name: [0, 1] for host in lab}
    assert bob("ps", "--mine", "--json").ok().json()["jobs"] == []

    root = Site(lab, bob.ddpctl, bob.folder.parent / "root", bob.python)
    warned = root("exec", "--sudo", "--", "true").ok().stderr
    assert re.search(rf"{lab[0].name}.*a run of another account is here: alice, run resnet \(since", warned), warned

    supervisor, guardian = named(lab[0], "ddpctl-super"), named(lab[0], "ddpctl-guardian")
    assert supervisor
    assert guardian
    lab[0].run(["kill", "-KILL", str(guardian.pid), str(supervisor.pid)])
    until(lambda: not holders(lab[0]), 20, lambda: str(holders(lab[0])))
    alice("kill", "resnet").ok()
    assert [holders(host) for host in lab] == [{}, {}]  # although a supervisor may still wait for the lost node
    both = {"alice": alice.up(alice.job("half", SLEEP, nproc_per_node=1))["run"], "bob": bob.up("train")["run"]}
    for name in both.values():
        wait_for_ranks(lab, name)
    slots = {job["user"]: job["slots"] for job in bob("ps", "--json").ok().json()["jobs"] if job["state"] == "running"}
    assert sorted(slots.values(), key=str) == [{host.name: [number] for host in lab} for number in (0, 1)]
    alice("kill", "half").ok()
    bob("kill", "train").ok()


NVIDIA_SMI = """#!/bin/sh
case "$*" in
-L) for n in 0 1 2 3; do echo "GPU $n: NVIDIA A100 (UUID: GPU-0000000$n-1111-2222-3333-444444444444)"; done ;;
--query-compute-apps=*) cat /var/tmp/apps 2>/dev/null; true ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def gpu_host(make_lab: MakeLab) -> Iterator[Host]:
    """A host with a stand-in for nvidia-smi that lists four GPUs."""
    host = make_lab(1)[0]
    host.write("/usr/local/bin/nvidia-smi", NVIDIA_SMI, 0o755)
    yield host
    host.run(["rm", "-f", "/usr/local/bin/nvidia-smi", "/var/tmp/apps", "/etc/ddpctl.conf"])


def test_two_jobs_on_one_host_get_gpus_of_their_own(
    gpu_host: Host, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> None:
    lab, host = gpu_host.lab, gpu_host
    host.write("/var/tmp/apps", f"GPU-00000001-1111-2222-3333-444444444444, {host.sshd_pid()}, python, 4000\n")
    site = Site(lab, ddpctl, tmp_path / "one", stand_in)
    site.keys["defaults"]["slots"] = "auto"
    job = site.job("gpus", SLEEP, nproc_per_node=1)
    other = site.job("others", SLEEP, nproc_per_node=2)
    runs = [site.up(name, "--skip-preflight")["run"] for name in (job, other)]
    seen = []
    for run in runs:
        wait_for_ranks(lab, run)
        environ = next(iter(ranks(host, run).values())).environ
        seen.append((environ["CUDA_VISIBLE_DEVICES"], environ["CUDA_DEVICE_ORDER"]))
    assert seen == [("0", "PCI_BUS_ID"), ("2,3", "PCI_BUS_ID")]
    full = site("up", "--job", site.job("third", SLEEP, nproc_per_node=1), "-d", "--skip-preflight")
    assert full.rc == 8, full.stderr
    host.write("/etc/ddpctl.conf", "account_slots = 3\n")
    limited = site("up", "--job", "third", "-d", "--wait", "--nproc", "4", "--skip-preflight")
    assert limited.rc == 8, limited.stderr
    assert "an account may hold 3 GPUs here" in limited.stderr
    assert re.search(rf"GPU 1: root, .*sshd.* \(pid {host.sshd_pid()}, not started by ddpctl\)", full.stderr), (
        full.stderr
    )


def place(site: Site, run: str) -> tuple[str, int | None]:
    (row,) = [job for job in site("ps", "--json").ok().json()["jobs"] if job["run"] == run]
    return row["state"], row["place"]


def test_jobs_wait_in_line_and_start_without_a_controller(people: Mapping[str, Site]) -> None:
    """Alice has all slots of both hosts. Two jobs of bob and one of alice wait; the second in line is killed there."""
    alice, bob = people["alice"], people["bob"]
    lab = alice.lab
    first = alice.up(alice.job("first", SLEEP, nproc_per_node=2))["run"]
    wait_for_ranks(lab, first, 2)
    waiting = [
        site.up(site.job(name, SLEEP, nproc_per_node=2, **more), "--wait")
        for site, name, more in ((bob, "second", {}), (alice, "third", {}), (bob, "fourth", {"restarts": 1}))
    ]
    second, fourth = waiting[0]["run"], waiting[2]["run"]
    assert [run["state"] for run in waiting] == ["queued"] * 3
    until(lambda: place(bob, fourth) == ("queued", 3), 10)
    assert place(alice, second) == ("queued", 1)
    screen = alice("top").ok().stdout
    assert "2 live runs, 2 of other accounts" in screen
    assert re.search(r"(?m)^second +queued 1 +2 .*account bob *$", screen), screen
    screen = bob("top").ok().stdout
    assert re.search(rf"(?m)^first +running +2 .* {first} +account alice, slots 0-1 *$", screen), screen
    assert all(re.search(rf"(?m)^{host.name} .* alice: run first *$", screen) for host in lab), screen
    note = rf"{lab[0].name}: place 3 in line for 2 slots; in use: 2 by alice"
    until(lambda: re.search(note, bob("status", "fourth").ok().stdout), 10, lambda: bob("status", "fourth").stdout)
    follow = bob.start("attach", "fourth")
    follow.wait_for(r"queued; node\d: place 3 in line", 20)
    follow.kill()

    assert alice("kill", "third", "--json").ok().json()["state"] == "killed"
    until(lambda: place(bob, fourth) == ("queued", 2), 10)
    alice("kill", "first").ok()
    wait_for_ranks(lab, second, 2, timeout=20)
    assert [set(holders(host)) for host in lab] == [{"0", "1"}] * 2
    assert place(bob, fourth) == ("queued", 1)
    bob("kill", "second").ok()
    wait_for_ranks(lab, fourth, 2, timeout=30)
    assert bob.status("fourth")["state"] == "running"
    bob("kill", "fourth").ok()
    assert [job["state"] for job in bob("ps", "--mine", "--json").ok().json()["jobs"]] == ["killed", "killed"]
    until(lambda: not any(holders(host) for host in lab), 20)


LIVE = ("queued", "pending", "starting", "running", "stopping")
SHORT = "import sys, time\ntime.sleep(float(sys.argv[1]))\n"


def runs_by_slot(host: Host) -> dict[str, set[str]]:
    """Return slot -> the runs whose guardian or supervisor has the locked file open, from /proc."""
    found: dict[str, set[str]] = {}
    for process in host.processes():
        words = " ".join(process.argv)
        run = re.search(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", words)
        names = host.run(f"ls -l /proc/{process.pid}/fd", check=False).stdout if run else ""
        for slot in re.findall(rf"{FOLDER}/slot-(\S+)", names):
            assert run
            found.setdefault(slot, set()).add(run[0])
    return found


@pytest.mark.full(covered_by="tests/e2e/test_slots.py::test_jobs_wait_in_line_and_start_without_a_controller")
@pytest.mark.parametrize("seed", [1])
def test_many_jobs_of_several_accounts(people: Mapping[str, Site], seed: int) -> None:
    """Thirty jobs on one or both hosts, in any order: each ends well, and no slot ever has two runs."""
    roll = random.Random(seed)
    lab = people["alice"].lab
    jobs: dict[str, Site] = {}
    for number in range(30):
        site = roll.choice(list(people.values()))
        hosts = roll.choice((["node0"], ["node1"], ["node0", "node1"], ["node1", "node0"]))
        name = site.job(f"j{number}", SHORT, str(roll.uniform(0.1, 2)), nodes=hosts, nproc_per_node=roll.randint(1, 2))
        jobs[site.up(name, "--wait", "--skip-preflight")["run"]] = site
        assert_one_run_each(lab)
    left = set(jobs)
    while left:
        assert_one_run_each(lab)
        for site in people.values():
            rows = site("ps", "--mine", "--all", "--json").ok().json()["jobs"]
            ended = {row["run"]: row["state"] for row in rows if row["run"] in left and row["state"] not in LIVE}
            assert set(ended.values()) <= {"succeeded"}, ended
            left -= set(ended)


def assert_one_run_each(lab: Lab) -> None:
    for host in lab:
        for slot, runs in runs_by_slot(host).items():
            assert len(runs) == 1, f"{host.name}: slot {slot} is held by {runs}"
