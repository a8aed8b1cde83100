"""A host that was taken over answers the commands: it lies, hangs, stalls, trickles, floods or speaks for another host.

Every command ends in bounded time and memory, names that host, and serves the other hosts. Nothing is written outside
of the command's own folders. Another run, on the other hosts, goes on.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddpctl.stages.limits import TAIL_LINES_S
from ddpctl.transport.limits import STALL_S
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, pids_of, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.command import Done, Running
from tests.lab.hostile import OUTSIDE
from tests.suite.speed import stretch

PROGRAM = Path(__file__).parents[1] / "lab" / "hostile.py"
BOUND_S = 150.0  # the longest sum of deadlines: two questions for the state of a run, and one for its checkpoints
LONG_BOUND_S = BOUND_S + max(STALL_S, TAIL_LINES_S)  # where a host brings no progress
SLACK_S = 20.0  # beyond the deadlines, for all commands at once on a busy machine
MEMORY_KIB = 250 << 10
MATRIX = pytest.mark.full(covered_by="tests/e2e/test_garbled.py::test_every_command_serves_the_others")
TROUBLE = re.compile(
    r"node1\b.*(garbled|connection is (dead|lost)|did not end within|makes no progress|does not answer within)",
    re.DOTALL,
)
NOTE = re.compile(r"waiting for node1: nothing but signs of life from `\w+` for \d+ s")
PLAIN_TEXT = {"exec", "tail", "attach"}  # commands that print output of programs


def take_over(host: Host, how: str, *verbs: str) -> None:
    """From now on the host answers these verbs in a hostile way; without any, all verbs and plain commands."""
    host.write("/root/hostile.json", json.dumps({"how": how, "verbs": verbs or None}))
    host.write("/root/hostile.py", PROGRAM.read_text())
    host.sshd_config("ForceCommand /usr/bin/python3 -I /root/hostile.py")


@dataclass
class Watched:
    """A command and the most memory that it was seen with."""

    command: Running
    peak_kib: int = 0

    def is_over(self) -> bool:
        status = Path("/proc", str(self.command.pid), "status")
        try:
            lines = status.read_text().splitlines()
        except OSError:
            lines = []  # it has ended
        self.peak_kib = max(self.peak_kib, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
        return self.command.process.poll() is not None


def wait_for_all(started: dict[str, Running], bound: float = BOUND_S) -> dict[str, Done]:
    """Wait for all commands, which end within ``bound`` seconds and some slack, and stay below ``MEMORY_KIB``."""
    left = {name: Watched(command) for name, command in started.items()}
    found: dict[str, Done] = {}
    while left:
        for name, watched in list(left.items()):
            if watched.is_over() or time.monotonic() - watched.command.began > bound + stretch(SLACK_S):
                found[name] = watched.command.wait(1.0)
                assert watched.peak_kib < MEMORY_KIB, f"{name}: {watched.peak_kib >> 10} MiB"
                del left[name]
        time.sleep(0.1)
    return found


def commands(lab: Lab, job: str, old: str) -> dict[str, list[str]]:
    hosts = ["--host", lab[0].address, "--host", lab[1].address]
    return {
        "status": ["status", job],
        "ps": ["ps"],
        "tail": ["tail", job],
        "top": ["top"],
        "doctor": ["doctor", job],
        "report": ["report", job, "--json"],
        "checkpoints": ["checkpoints", job],
        "checkpoint": ["checkpoint", job],
        "fetch": ["fetch", job, "fetched"],
        "fetch --checkpoints": ["fetch", job, "--checkpoints", "copies"],
        "exec": ["exec", "--timeout", "10", "--", "hostname"],
        "push": ["push", "--job", "new"],
        "preflight": ["preflight", "--job", "new"],
        "up": ["up", "--job", "new", "-d"],
        "restart": ["restart", old, "-d"],
        "gc": ["gc", "--dry-run"],
        "init": ["init", *hosts, "--job", "x", "--script", "code/new.py", "--yes", "-i", "made.yaml"],
    }


# The row "stall" does not wait for these deadlines of 10 minutes: the table in docs/threat-model.md names them.
LONG = {"tail", "fetch", "preflight", "up", "init", "gc"}
# These commands notice that node1 answers in the name of node0.
ABOUT_ANOTHER = {"status", "ps", "top", "preflight", "up", "restart"}


def assert_harmless(name: str, done: Done) -> None:
    text = done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in text
    if name not in PLAIN_TEXT:
        assert "\x1b" not in text
        assert "\x07" not in text


def assert_written_inside(site: Site) -> None:
    """Only what the commands were asked to write is there."""
    made = {path.name for path in site.folder.iterdir()}
    assert made <= {"code", "inventory.yaml", "made.yaml", "fetched", "copies"}
    for folder in (site.folder, site.folder / "fetched", site.folder / "fetched" / "node1", site.home):
        assert not (folder / OUTSIDE).exists()
    assert not list(site.folder.parent.rglob("*hostile"))
    fetched = site.folder / "fetched"
    assert not fetched.exists() or {path.name for path in fetched.iterdir()} <= {"node0", "node1", "node2"}


@MATRIX
@pytest.mark.parametrize("how", ["trickle", "stall", "lie", "hang", "flood", "wrong host"])
def test_every_command_against_a_hostile_host(site: Site, lab: Lab, how: str) -> None:
    site.keys["defaults"]["slots"] = 8
    other = site.elsewhere("other").only(0, 2)
    word = how.replace(" ", "-")
    old = site.job(f"old-{word}", "print(1)\n", nproc_per_node=1)
    job = site.job(f"job-{word}", SLEEP, nproc_per_node=1)
    site.job("new", SLEEP, nproc_per_node=1)
    third = other.job(f"third-{word}", SLEEP, nproc_per_node=1)
    third_run = other.up(third)["run"]
    ended = site.up(old)["run"]
    site.wait_for_state(old, "succeeded")
    run = site.up(job)["run"]
    site.wait_for_output(job, "(sleeps.*){3}")
    wait_for_ranks(lab, run)
    wait_for_ranks([lab[0], lab[2]], third_run)
    before = [pids_of(lab[index], third_run) for index in (0, 2)]
    take_over(lab[1], how)

    attach = site.start("attach", job)
    asked = {name: args for name, args in commands(lab, job, ended).items() if how != "stall" or name not in LONG}
    bound = LONG_BOUND_S if how == "trickle" else BOUND_S
    found = wait_for_all({name: site.start(*args) for name, args in asked.items()}, bound)
    for name, done in found.items():
        assert_harmless(name, done)
        said = (done.stdout + done.stderr).replace(lab[1].address, "node1")  # init knows addresses alone
        if how in ("hang", "flood", "stall"):
            assert TROUBLE.search(said), f"{name}: {done}"
        elif how == "trickle":  # a short answer is whole after a minute
            assert NOTE.search(said) or TROUBLE.search(said), f"{name}: {done}"
        elif how == "wrong host" and name in ABOUT_ANOTHER:
            assert "about another host" in done.stdout + done.stderr, f"{name}: {done}"
        for line in done.stderr.splitlines():
            assert not line.startswith("error: node0"), f"{name}: {line}"
    assert "rank 0 sleeps" in found["tail"].stdout if "tail" in found else how == "stall"
    for name in ("tail", "fetch") if how == "trickle" else ():
        assert NOTE.search(found[name].stderr)
    assert "node0: node0" in found["exec"].stdout
    if how == "lie":
        assert "node1: the worker's answer is garbled: fetch: file.path" in found["fetch"].stderr
        assert "\\x1b]52;" in found["exec"].stdout

    kill = wait_for_all({"kill": site.start("kill", job, "--grace", "2")})["kill"]
    late = how in ("hang", "stall", "trickle")  # nothing is known about the run there
    assert kill.rc == (0 if how == "lie" else 4 if late else 1), kill
    assert how == "lie" or "node1" in kill.stderr
    assert not [process for index in (0, 2) for process in pids_of(lab[index], run)]
    if how != "stall":
        removed = wait_for_all({"rm": site.start("rm", run)})["rm"]
        assert_harmless("rm", removed)
    if how not in ("trickle", "stall"):  # the host claims to be at work, so the command goes on
        assert wait_for_all({"attach": attach})["attach"].rc == 1
    assert_written_inside(site)
    assert [pids_of(lab[index], third_run) for index in (0, 2)] == before
    assert other.status(third)["state"] == "running"


@MATRIX
@pytest.mark.parametrize("how", ["lie", "hang", "flood", "wrong host"])
def test_a_host_that_turns_hostile_at_the_start_leaves_nothing_on_the_others(site: Site, lab: Lab, how: str) -> None:
    job = site.job(f"start-{how.replace(' ', '-')}", SLEEP)
    take_over(lab[1], how, "start", "stop")
    done = site("up", "--job", job, "-d", timeout=BOUND_S)
    assert_harmless("up", done)
    if how == "lie":
        assert done.rc in (0, 1), done
        site("kill", job, "--grace", "1", timeout=BOUND_S)
    else:
        assert done.rc in (1, 4), done
        assert TROUBLE.search(done.stderr), done
    assert_nothing_runs([lab[0], lab[2]])
