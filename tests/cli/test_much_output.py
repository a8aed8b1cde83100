"""A tail of much output: in order, and in bounded memory even while no process reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpctl_worker.record.lines import STDOUT, encode
from tests.lab.command import PROGRAM
from tests.suite.speed import stretch

pytestmark = pytest.mark.slow

LINES = 100_000  # of each of four ranks
MOST_MB = 200
BEGIN = 1_790_000_000.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two hosts that has ended, with other logs than it wrote: four ranks take turns, and their output is the
    same for all ranks.
    """
    folder = tmp_path_factory.mktemp("much")
    (folder / "train.py").write_text("print('here')")
    common = {"connection": "local", "python": sys.executable, "fabric_address": "127.0.0.1", "slots": 2}
    hosts = [common | {"name": f"node{index}", "base_dir": str(folder / f"base{index}")} for index in range(2)]
    job = {"script": "train.py", "code": None, "workdir": str(folder)}
    (folder / "inventory.yaml").write_text(json.dumps({"cluster": "desk", "hosts": hosts, "jobs": {"much": job}}))
    done = tail(folder, "up", "--job", "much", "--skip-preflight")
    assert done.returncode == 0, done.stderr
    for index in range(2):
        (log,) = folder.glob(f"base{index}/runs/*/node{index}/logs/*.jsonl")
        with log.open("wb") as file:
            for number in range(LINES):
                for rank in (2 * index, 2 * index + 1):
                    moment = BEGIN + number * 1e-3 + rank * 1e-4
                    file.write(encode(moment, rank, STDOUT, b"step %d loss 0.123456 lr 0.001" % number, b"\n"))
    return folder


def tail(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DDPCTL_SLOTS_DIR": str(folder / "slots")}
    return subprocess.run([PROGRAM, *args], env=env, cwd=folder, capture_output=True, text=True, timeout=stretch(250))


# By a small process: what the kernel counts for a child begins with the memory of the process that started it.
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def in_bounds(folder: Path, *args: str) -> list[str]:
    """The lines that `ddpctl tail much` prints into a pipe that no process reads at first."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DDPCTL_SLOTS_DIR": str(folder / "slots")}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", MEASURED, str(PROGRAM), "tail", "much", *args]
    with subprocess.Popen(command, env=env, cwd=folder, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        time.sleep(3)
        rows = process.stdout.read().decode().splitlines()
        most = int(process.stderr.read().split()[-1])
    assert process.returncode == 0
    assert most < MOST_MB * 1024, f"{most >> 10} MB"
    return rows


def test_every_line_in_the_order_of_time(place: Path) -> None:
    rows = in_bounds(place, "-n", "all", "--no-fold")
    assert rows == [
        f"node{rank // 2}:{rank} | step {number} loss 0.123456 lr 0.001"
        for number in range(LINES)
        for rank in range(4)
    ]  # fmt: skip


def test_what_all_ranks_say_is_one_line_throughout(place: Path) -> None:
    rows = in_bounds(place, "-n", "all", "-f")
    assert rows == [f"node[0-1]:0-3 | step {number} loss 0.123456 lr 0.001" for number in range(LINES)]


def test_the_last_lines_of_all_hosts_together(place: Path) -> None:
    last = tail(place, "tail", "much", "-n", "6", "--no-fold").stdout.splitlines()
    assert [row.split()[0] for row in last] == ["node1:2", "node1:3", "node0:0", "node0:1", "node1:2", "node1:3"]
    assert [row.split()[3] for row in last] == [str(LINES - 2)] * 2 + [str(LINES - 1)] * 4
    found = tail(place, "tail", "much", "--grep", f"step ({LINES // 2}|7) ").stdout.splitlines()
    assert [row.split()[3] for row in found] == ["7", str(LINES // 2)]
