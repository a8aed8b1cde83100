"""The training programs, imported as their own scripts import each other, and the interpreters that run them."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

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
    ranks: tuple[int, ...] = ()  # the status of each forked rank


@dataclass(frozen=True)
class Interpreter:
    """A Python with a torch; `launch` starts a script under it on loopback."""

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


ZYGOTE = """
import importlib, json, os, signal, sys, traceback
for line in sys.stdin:
    request = json.loads(line)
    sys.path[:0] = [request["jobs"]] if request["jobs"] not in sys.path else []
    for name in request["preload"]:
        importlib.import_module(name)
    children = []
    for place in request["places"]:
        children.append(os.fork())
        if not children[-1]:
            signal.alarm(request["patience"])  # no rank outlives a parent that was given up
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(os.path.join(request["folder"], name), os.O_WRONLY | os.O_APPEND), number)
            os.environ.update(place)
            status = 1
            try:
                exec(compile(request["source"], "rank", "exec"), {"__name__": "__main__"})
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


class Zygote:
    """A process that has imported torch and forks for each rank: a fork costs a hundredth of an import."""

    def __init__(self, errors: IO[str]) -> None:
        pipe = subprocess.PIPE
        self.errors = errors
        self.process = subprocess.Popen(
            [sys.executable, "-c", ZYGOTE], stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment()
        )

    def run(self, source: str, places: Sequence[dict[str, str]], preload: str) -> Ended:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
            stdout.touch()
            stderr.touch()
            request = {"jobs": str(JOBS), "patience": int(PATIENCE), "folder": folder, "source": source}
            request |= {"places": places, "preload": preload.split()}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE + 60)  # the ranks' own alarm is first
            answer = self.process.stdout.readline() if ready else ""
            if not answer:
                self.close()
                self.errors.seek(0)
                pytest.fail(f"no end in {PATIENCE} s, or no zygote:\n{stderr.read_text()}\n{self.errors.read()}")
            statuses = tuple(json.loads(answer))
            return Ended(int(any(statuses)), stdout.read_text(), stderr.read_text(), statuses)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


_zygotes: list[Zygote] = []  # the last in the list may be alive


@pytest.fixture(scope="session", autouse=True)
def end_of_zygotes() -> Iterator[None]:
    yield
    for zygote in _zygotes:
        zygote.close()
        zygote.errors.close()


def forked(source: str, *places: dict[str, str], preload: str = "torch") -> Ended:
    """Run Python text in a process per rank, on loopback; ``places`` are the additional environment variables of each
    rank.

    The modules in ``preload`` are imported once for all tests of this process, so this costs much less than a launch.
    Status 1: some rank failed.
    """
    if not _zygotes or _zygotes[-1].process.poll() is not None:
        _zygotes.append(Zygote(tempfile.TemporaryFile("w+")))  # noqa: SIM115  # end_of_zygotes closes it
    common = {"WORLD_SIZE": str(len(places)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **place} for rank, place in enumerate(places)]
    return _zygotes[-1].run(source, ranks, preload)


def environment(**extra: str) -> dict[str, str]:
    """Of a launch: nothing of another launch in it, loopback, a thread a process."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **extra}


def started(command: list[str], **extra: str) -> subprocess.Popen[str]:
    """A process with its output kept."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment(**extra))


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait until the process ends; a process that does not end in time is terminated and fails the test."""
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()
        stdout, stderr = process.communicate(timeout=60)
        pytest.fail(f"no end in {PATIENCE} s:\n{stdout}\n{stderr}")
    return Ended(process.returncode, stdout, stderr)


def free_port() -> int:
    """Return a TCP port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def interpreter_at(path: str) -> Interpreter:
    """The Python at this path, if it has a torch."""
    if not torch_of(path):
        missing(f"{path} has no torch with numpy (for Debian's: apt-get install python3-torch python3-torchvision)")
    return Interpreter(path, torch_of(path))


def both_interpreters(function: str) -> pytest.MarkDecorator:
    """`@both_interpreters("tests/jobs/test_x.py::test_y")` runs a test under each of two Pythons.

    The first is the Python of this test run, with a new torch; the second is Debian's, with torch 1.13. The second is
    for `make test-all`: a fault of the job itself shows under the first.
    """
    old = pytest.param(DEBIAN, marks=pytest.mark.full(covered_by=function))
    return pytest.mark.parametrize(
        "interpreter", [sys.executable, old], ids=["this-python", "debian-python"], indirect=True
    )


@pytest.fixture
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    """See both_interpreters."""
    return interpreter_at(request.param)


@pytest.fixture
def debian() -> Interpreter:
    """Debian's Python: its torch and torchvision fit each other."""
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
