"""Several accounts on the same hosts: each process takes a slot, and no slot has two holders."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, named, one_line, ranks, running, until, wait_for_gang, wait_for_ranks
from tests.lab import Host, Lab, SystemdHost
from tests.lab.clock import HostClock, compiler
from tests.lab.command import Ddpctl
from tests.suite.speed import stretch

FOLDER = "/var/tmp/ddpctl-slots"


@pytest.fixture
def people(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Mapping[str, Site]:
    return sites_of(make_lab(2), ddpctl, tmp_path, stand_in)


def sites_of(lab: Lab, ddpctl: Ddpctl, folder: Path, python: str) -> dict[str, Site]:
    """Three accounts with an inventory of the same hosts, of two slots each."""
    sites = {}
    for user in ("alice", "bob", "carol"):
        for host in lab:
            host.add_user(user)
        site = sites[user] = Site(lab, ddpctl, folder / user, python)
        site.keys["defaults"].update(user=user, slots=2)
    return sites


def open_slots(host: Host) -> dict[int, set[str]]:
    """Return pid -> the slots whose locked files the process has open, from /proc."""
    find = ["find", "/proc", "-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*", "-lname", f"{FOLDER}/slot-*"]
    found: dict[int, set[str]] = {}
    for pid, slot in re.findall(
        r"/proc/(\d+)/\S+ \S+/slot-(\S+)", host.run([*find, "-printf", "%p %l\n"], check=False).stdout
    ):
        found.setdefault(int(pid), set()).add(slot)
    return found


def holders(host: Host) -> dict[str, set[str]]:
    """Return slot -> the names of the processes that hold it."""
    found: dict[str, set[str]] = {}
    for pid, slots in open_slots(host).items():
        with contextlib.suppress(FileNotFoundError):  # the process has ended meanwhile
            name = (host.proc / str(pid) / "comm").read_text().strip()
            for slot in slots:
                found.setdefault(slot, set()).add(name)
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
        line = rf"  {host.name}: slots 0-1: alice, run resnet \(since \d+ (?:s|min), from root@\S+:.*alice\)"
        assert re.search(line, refused.stderr), refused.stderr
    assert "are in use; nothing was started" in one_line(refused)
    checked = bob("preflight", "--job", "train", "--only", "host.slots", "--json").ok().json()["findings"]
    named_before = [one for one in checked if one["check"] == "host.slots"]
    assert [(one["severity"], one["host"]) for one in named_before] == [("warning", host.name) for host in lab]
    line = r"in use; slots 0-1: alice, run resnet \(since \d+ (?:s|min), from root@"
    assert re.search(line, named_before[0]["message"])

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

    def slots_of_both() -> list[dict[str, list[int]]]:
        """Empty until the supervisors, too, have seen the ranks of both runs."""
        jobs = [job for job in bob("ps", "--json").ok().json()["jobs"] if job["state"] == "running"]
        return sorted((job["slots"] for job in jobs), key=str) if len(jobs) == 2 else []

    assert until(slots_of_both, 30, "the runs are not reported as running") == [
        {host.name: [number] for host in lab} for number in (0, 1)
    ]
    alice("kill", "half").ok()
    bob("kill", "train").ok()


TRAINS = """\
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100000):
    dist.barrier()
    print("step", step, "on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    time.sleep(0.1)
"""
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
    job = site.job("gpus", TRAINS, nproc_per_node=1)
    other = site.job("others", TRAINS, nproc_per_node=2)
    runs = [site.up(name, "--skip-preflight")["run"] for name in (job, other)]
    seen = []
    for run in runs:
        wait_for_ranks(lab, run)
        environ = next(iter(ranks(host, run).values())).environ
        seen.append((environ["CUDA_VISIBLE_DEVICES"], environ["CUDA_DEVICE_ORDER"]))
    assert seen == [("0", "PCI_BUS_ID"), ("2,3", "PCI_BUS_ID")]
    for name, gpus in ((job, "0"), (other, "2,3")):
        site.wait_for_output(name, rf"step 20 on {gpus}\n", "--rank", "0")
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
    job = bob.job("fifth", SLEEP, nproc_per_node=2)
    pressed = bob.start("up", "--job", job, "--wait", "--skip-preflight")
    pressed.wait_for(r"queued; node\d: place 4 in line", 40)
    pressed.signal(signal.SIGINT)
    done = pressed.wait(20)
    assert done.rc == 130, done.stderr
    fifth = bob.status("fifth")["run"]
    assert f"detached: fifth still waits in line; follow it: ddpctl attach {fifth}" in one_line(done)
    assert f"take it out of the line: ddpctl kill {fifth}" in one_line(done)
    bob("kill", fifth).ok()

    assert alice("kill", "third", "--json").ok().json()["state"] == "killed"
    until(lambda: place(bob, fourth) == ("queued", 2), 10)
    alice("kill", "first").ok()
    wait_for_ranks(lab, second, 2, timeout=20)
    assert [set(holders(host)) for host in lab] == [{"0", "1"}] * 2
    assert place(bob, fourth) == ("queued", 1)
    bob("kill", "second").ok()
    wait_for_ranks(lab, fourth, 2, timeout=30)
    until(lambda: bob.status("fourth")["state"] == "running", 30)
    bob("kill", "fourth").ok()
    assert [job["state"] for job in bob("ps", "--mine", "--json").ok().json()["jobs"]] == ["killed"] * 3
    until(lambda: not any(holders(host) for host in lab), 20)


# Ends once its host has the file.
UNTIL_TOLD = """\
import os, time
while not os.path.exists("/var/tmp/enough"):
    time.sleep(0.1)
"""


def let_end(lab: Lab) -> None:
    """End the ranks of UNTIL_TOLD, without a connection to a host."""
    for host in lab:
        host.run("touch /var/tmp/enough")


def runs_with_slots(host: Host) -> dict[str, set[str]]:
    """Return slot -> the runs that hold it, from /proc."""
    found: dict[str, set[str]] = {}
    words = {process.pid: " ".join(process.argv) for process in host.processes()}
    for pid, slots in open_slots(host).items():
        if run := re.search(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", words.get(pid, "")):
            for slot in slots:
                found.setdefault(slot, set()).add(run[0])
    return found


def seconds_until_next(lab: Lab, before: str, after: str, count: int) -> float:
    """Return the time from the end of a run's hold on all slots to the moment when all ranks of the next run are there.

    All of it is read from /proc of the hosts: no controller is connected.
    """
    times = {"held": time.monotonic()}

    def there() -> bool:
        if any(before in runs for host in lab for runs in runs_with_slots(host).values()):
            times["held"] = time.monotonic()
        return all(len(ranks(host, after)) >= count for host in lab)

    until(there, 60, lambda: str([runs_with_slots(host) for host in lab]))
    return time.monotonic() - times["held"]


@pytest.fixture
def people_on_systemd(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> tuple[dict[str, Site], list[SystemdHost]]:
    """The same on hosts where the end of a login ends its processes."""
    lab = make_lab(2, systemd=True)
    hosts = [host for host in lab if isinstance(host, SystemdHost)]
    for host in hosts:
        host.logind("KillUserProcesses=yes")
    return sites_of(lab, ddpctl, tmp_path, stand_in), hosts


def test_the_line_goes_on_while_nobody_is_logged_in(
    people_on_systemd: tuple[dict[str, Site], list[SystemdHost]],
) -> None:
    people, hosts = people_on_systemd
    alice, bob, carol = people.values()
    lab = alice.lab
    first = alice.up(alice.job("first", UNTIL_TOLD, nproc_per_node=2))["run"]
    refused = bob("up", "--job", bob.job("second", SLEEP, nproc_per_node=2), "-d")
    assert refused.rc == 8, refused.stderr
    for host in lab:
        assert f"  {host.name}: slots 0-1: alice, run first (since " in refused.stderr
    second = bob.up("second", "--wait")["run"]
    third = carol.up(carol.job("third", SLEEP, nproc_per_node=2), "--wait")["run"]
    until(lambda: place(carol, third) == ("queued", 2), 20)
    for host in hosts:
        until(lambda host=host: not host.run(["loginctl", "list-sessions", "--no-legend"]).stdout, 30)  # type: ignore[misc]

    let_end(lab)
    after_end = seconds_until_next(lab, first, second, 2)
    assert not any(ranks(host, third) for host in lab)
    for host in hosts:
        watchers = [named(host, name) for name in ("ddpctl-guardian", "ddpctl-super")]
        host.run(["kill", "-KILL", *(str(watcher.pid) for watcher in watchers if watcher)])
    after_kill = seconds_until_next(lab, second, third, 2)
    print(f"started {after_end:.1f} s after the end of a run, {after_kill:.1f} s after SIGKILL for its watchers")
    assert max(after_end, after_kill) < stretch(10)
    assert [runs_with_slots(host) for host in lab] == [{"0": {third}, "1": {third}}] * 2
    for site, run in ((bob, second), (carol, third)):
        site("kill", run).ok()
    until(lambda: not any(open_slots(host) for host in lab), 20)


@pytest.mark.full(
    covered_by="tests/worker/slots/test_folder.py::test_a_claim_ends_with_its_lock_and_its_account_removes_the_rest"
)
def test_a_reboot_frees_the_slots_and_ends_the_place_in_line(
    people_on_systemd: tuple[dict[str, Site], list[SystemdHost]],
) -> None:
    people, hosts = people_on_systemd
    alice, bob, carol = people.values()
    first = alice.up(alice.job("first", SLEEP, nproc_per_node=2))["run"]
    second = bob.up(bob.job("second", SLEEP, nproc_per_node=2), "--wait")["run"]
    wait_for_gang(hosts, first, "/home/alice/.local/state/ddpctl/runs")
    hosts[0].run(["systemctl", "reboot"])
    hosts[0].boot_again()
    for site, run in ((alice, first), (bob, second)):
        ended = site.wait_for_state(run, "failed")
        assert ended["cause"]["host"] == "node0", ended
    assert not open_slots(hosts[0])
    until(lambda: not open_slots(hosts[1]), 30, lambda: str(holders(hosts[1])))
    third = carol.up(carol.job("third", SLEEP, nproc_per_node=2))["run"]
    wait_for_ranks(hosts, third, 2)
    assert [job["run"] for job in carol("ps", "--json").ok().json()["jobs"]] == [third]
    carol("kill", third).ok()
    for site, run in ((alice, first), (bob, second)):
        site("kill", run).ok()


@pytest.mark.full(
    covered_by="tests/worker/slots/test_line.py::test_a_host_without_a_usable_folder_starts_the_run_without_a_claim"
)
def test_a_host_whose_folder_cannot_be_used_starts_the_run_and_says_so(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> None:
    lab = make_lab(3)
    full, closed, missing = lab
    full.small_tmpfs(FOLDER, "64k", "mode=1777")
    full.run(f"cat /dev/zero > {FOLDER}/filler", check=False)
    closed.run(["mkdir", "-m", "1755", FOLDER])
    alice, bob, _ = sites_of(lab, ddpctl, tmp_path, stand_in).values()
    done = alice("up", "--job", alice.job("first", SLEEP, nproc_per_node=2), "-d").ok()
    said = " ".join(done.stderr.split())
    assert f"{full.name}: no slot could be claimed ({FOLDER}: No space left on device): other accounts do not" in said
    assert f"{closed.name}: no slot could be claimed ({FOLDER} is not writable for this account; sudo chmod" in said
    assert f"{missing.name}: no slot" not in said
    assert missing.run(["stat", "-c", "%a %U", FOLDER]).stdout.split() == ["1777", "alice"]
    assert [set(holders(host)) for host in lab] == [set(), set(), {"0", "1"}]
    refused = bob("up", "--job", bob.job("second", SLEEP, nproc_per_node=2), "-d")
    assert refused.rc == 8
    assert f"{missing.name} is in use; nothing was started" in one_line(refused)
    listed = bob("ps").ok()
    assert f"{closed.name}: the runs of other accounts are not known: {FOLDER} is not writable" in listed.stderr

    second = bob.up("second", "--wait")["run"]
    alice("kill", "first").ok()
    wait_for_ranks(lab, second, 2)
    bob("kill", second).ok()
    missing.run(f"mv {FOLDER} /var/tmp/elsewhere && ln -s /var/tmp/elsewhere {FOLDER}")
    checked = bob("preflight", "--job", "second", "--only", "host.slots", "--json")
    assert checked.rc == 3, checked.stderr
    errors = [one for one in checked.json()["findings"] if one["severity"] == "error"]
    assert [(one["check"], one["host"], one["message"], one["fix"]) for one in errors] == [
        ("host.slots", missing.name, f"{FOLDER} is a symbolic link", f"sudo rm {FOLDER}")
    ]
    unsafe = bob("up", "--job", "second", "-d")
    assert unsafe.rc == 1, unsafe.stderr
    assert f"is not safe on {missing.name}; nothing was started" in one_line(unsafe)
    assert f"{FOLDER} is a symbolic link" in unsafe.stderr
    missing.run(errors[0]["fix"].removeprefix("sudo "))
    repaired = bob.up("second")["run"]
    wait_for_ranks(lab, repaired, 2)
    bob("kill", repaired).ok()


@pytest.mark.full(covered_by="tests/worker/slots/test_line.py::test_a_clock_that_jumps_changes_no_place")
def test_a_clock_that_jumps_changes_neither_the_line_nor_an_age(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> None:
    """The clock is an hour ahead when bob gets his place, and an hour behind when carol gets hers."""
    if compiler() is None:
        pytest.skip("there is no C compiler: a host gets a clock of its own by a library")
    lab = make_lab(1)
    clock = HostClock(lab[0])
    alice, bob, carol = sites_of(lab, ddpctl, tmp_path, stand_in).values()
    alice.up(alice.job("first", SLEEP, nproc_per_node=2))
    clock.set(3600)
    second = bob.up(bob.job("second", SLEEP, nproc_per_node=2), "--wait")["run"]
    clock.set(-3600)
    third = carol.up(carol.job("third", SLEEP, nproc_per_node=2), "--wait")["run"]
    refused = alice("up", "--job", alice.job("late", SLEEP, nproc_per_node=1), "-d")
    said = re.findall(r"node0: (.*): (\w+), run (\w+) \(since (\d+) (?:s|min),", refused.stderr)
    assert [words[:3] for words in said] == [
        ("slots 0-1", "alice", "first"),
        ("waiting for 2 slots", "bob", "second"),
        ("waiting for 2 slots", "carol", "third"),
    ], refused.stderr
    alice("kill", "first").ok()
    wait_for_ranks(lab, second, 2)
    assert place(carol, third) == ("queued", 1)
    bob("kill", second).ok()
    wait_for_ranks(lab, third, 2)
    carol("kill", third).ok()


SHORT = "import sys, time\ntime.sleep(float(sys.argv[1]))\n"
JOBS = 30


@pytest.mark.full(covered_by="tests/e2e/test_slots.py::test_jobs_wait_in_line_and_start_without_a_controller")
@pytest.mark.parametrize("seed", [1])
def test_many_jobs_of_several_accounts(people: Mapping[str, Site], seed: int) -> None:
    """Thirty jobs on one or both hosts wait in line at once, in any order: each ends well, no slot ever has two runs,
    and no host has more ranks than slots."""
    roll = random.Random(seed)
    lab = people["alice"].lab
    people["alice"].up(people["alice"].job("gate", UNTIL_TOLD, nproc_per_node=2))
    jobs: dict[str, Site] = {}
    for number in range(JOBS):
        site = roll.choice(list(people.values()))
        hosts = roll.choice((["node0"], ["node1"], ["node0", "node1"], ["node1", "node0"]))
        name = site.job(f"j{number}", SHORT, str(roll.uniform(0.5, 4)), nodes=hosts, nproc_per_node=roll.randint(1, 2))
        jobs[site.up(name, "--wait", "--skip-preflight")["run"]] = site
    queued = {job["run"] for job in people["bob"]("ps", "--json").ok().json()["jobs"] if job["state"] == "queued"}
    assert queued == set(jobs)

    opened, looks = time.time(), 0
    let_end(lab)
    while any(running(host) for host in lab):  # a run, or a waiter of a run in line
        looks += 1
        for host in lab:
            assert_slots_are_kept(host)
        assert time.time() - opened < stretch(200), people["bob"]("ps").stdout
    took = time.time() - opened
    ended = {run: site.status(run) for run, site in jobs.items()}
    assert {status["state"] for status in ended.values()} == {"succeeded"}, ended
    moments = (datetime.fromisoformat(status["started"].replace("Z", "+00:00")) for status in ended.values())
    starts = sorted(moment.timestamp() - opened for moment in moments)
    print(f"{JOBS} jobs in {took:.0f} s, started after {starts[0]:.0f} to {starts[-1]:.0f} s; {looks} looks")


def assert_slots_are_kept(host: Host) -> None:
    """A look reads one process after the other, and meanwhile a run may end and the next may begin: only what the next
    look shows too is a fault."""
    held, found = runs_with_slots(host), ranks_there(host)
    if any(len(runs) > 1 for runs in held.values()):
        again = runs_with_slots(host)
        held = {slot: runs & again.get(slot, set()) for slot, runs in held.items()}
    if len(found) > 2:
        found &= ranks_there(host)
    assert all(len(runs) <= 1 for runs in held.values()), f"{host.name}: {held}"
    assert len(found) <= 2, f"{host.name}: {found}"


def ranks_there(host: Host) -> set[tuple[str, int]]:
    """Return the run and the pid of each rank."""
    found = [process for process in running(host) if "RANK" in process.environ]
    return {(process.environ["DDPCTL_RUN"], process.pid) for process in found}
