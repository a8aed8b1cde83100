"""The training programs, imported as their own scripts import each other, and the interpreters that run them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "worker" / "jobs"
DEBIAN = "/usr/bin/python3"
PATIENCE = 200.0  # seconds until a launch is given up: a guard, not a measure

sys.path.insert(0, str(JOBS))


@cache
def torch_of(python: str) -> str:
    """The version of the torch that this interpreter imports, with numpy beside it, or ""."""
    code = "import sys, numpy, torch; print(torch.__version__, *sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def missing(reason: str) -> None:
    """Skips, or fails where everything has to be there."""
    if os.environ.get("DDPCTL_REQUIRE_LAB") == "1":
        pytest.fail(f"DDPCTL_REQUIRE_LAB=1, but {reason}")
    pytest.skip(reason)


@dataclass(frozen=True)
class Ended:
    """How a launch ended."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Interpreter:
    """A Python with a torch, and what it takes to start a script under it on loopback."""

    path: str
    torch: str

    def launch(self, nproc: int, script: str, *args: str) -> Ended:
        """Runs a script of the box in ``nproc`` processes by torch's own launcher."""
        command = [self.path, "-m", "torch.distributed.launch", "--use_env", f"--nproc_per_node={nproc}"]
        command += ["--master_addr=127.0.0.1", f"--master_port={free_port()}", "--monitor_interval=0.2", *self.quirks()]
        with started([*command, "--", str(JOBS / script), *args]) as process:
            return ended(process)

    def quirks(self) -> list[str]:
        """What a launcher before 2.0 needs under Python 3.11: it cannot read its own defaults of these two there."""
        torch, *python = self.torch.split()
        old = torch.startswith("1.") and [int(part) for part in python] >= [3, 11]
        return ["--redirects=9:1", "--tee=9:1"] if old else []  # rank 9, which there is not


FORK = """
import importlib, json, os, signal, sys, traceback
places, source = json.loads(sys.argv[1]), sys.argv.pop()
sys.path.insert(0, places[0]["JOBS"])
for name in places[0]["PRELOAD"].split():
    importlib.import_module(name)
children = []
for place in places:
    children.append(os.fork())
    if not children[-1]:
        signal.alarm(int(place["PATIENCE"]))  # no rank outlives a parent that was given up
        os.environ.update(place)
        status = 1
        try:
            exec(compile(source, "rank", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
sys.exit(max(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def forked(source: str, *places: dict[str, str], preload: str = "torch") -> Ended:
    """Runs Python text in one process a rank, on loopback: ``places`` are what each has in its environment besides.

    The modules in ``preload`` are imported once for all of them, so this costs much less than a launch. Status 1: some
    rank failed.
    """
    common = {"WORLD_SIZE": str(len(places)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common.update(JOBS=str(JOBS), PATIENCE=str(int(PATIENCE)), PRELOAD=preload)
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **place} for rank, place in enumerate(places)]
    with started([sys.executable, "-c", FORK, json.dumps(ranks), source]) as process:
        return ended(process)


def environment(**extra: str) -> dict[str, str]:
    """Of a launch: nothing of another launch in it, loopback, a thread a process."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **extra}


def started(command: list[str], **extra: str) -> subprocess.Popen[str]:
    """A process whose output is kept."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment(**extra))


def ended(process: subprocess.Popen[str]) -> Ended:
    """Waits for the end; a process that does not come to one is ended and fails the test."""
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()
        stdout, stderr = process.communicate(timeout=60)
        pytest.fail(f"no end in {PATIENCE} s:\n{stdout}\n{stderr}")
    return Ended(process.returncode, stdout, stderr)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def interpreter_at(path: str) -> Interpreter:
    """The Python at this path, if it has a torch."""
    if not torch_of(path):
        missing(f"{path} has no torch with numpy (for Debian's: apt-get install python3-torch python3-torchvision)")
    return Interpreter(path, torch_of(path))


@pytest.fixture(params=[sys.executable, DEBIAN], ids=["this-python", "debian-python"])
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    """Each of two Pythons: the one that runs this, with a new torch, and Debian's, with torch 1.13."""
    return interpreter_at(request.param)


@pytest.fixture
def debian() -> Interpreter:
    """Debian's Python, whose torch and torchvision fit each other."""
    return interpreter_at(DEBIAN)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This very process as the only rank, with one thread."""
    torch = pytest.importorskip("torch")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "DDPCTL_OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)
