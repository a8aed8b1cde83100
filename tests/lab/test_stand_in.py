"""The stand-in's launcher beside torch's own, on the same programs: what a rank, a supervisor or a person can see of a
launch is the same. Torch is imported by its launchers, and by the ranks of a single test."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.run import last_output
from ddpctl_worker.wire.contract import VICTIM_WORDS

GUARD_S = 240.0
ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/nowhere"}

# What a rank sees of how it was started, as one line of JSON.
SEEN = """\
import json, os, signal, sys
parent = os.getppid()
sys.stdout.write(json.dumps({
    "argv": [os.fsencode(word).decode("latin1") for word in sys.orig_argv],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "leads its session": os.getpid() == os.getsid(0) == os.getpgid(0),
    "its launcher's name": open(f"/proc/{parent}/comm").read().strip(),
    "in its launcher's session": os.getsid(parent) == os.getsid(0),
    "open": [number for number in range(64) if os.path.exists(f"/proc/self/fd/{number}")],
    "ignored": [number for number in range(1, 32) if signal.getsignal(number) == signal.SIG_IGN],
}) + "\\n")
"""
# The beginning of a program: files that tell the test how far it is.
FILES = """\
import os, signal, subprocess, sys, time
rank = os.environ["RANK"]
def tell(name, text=""):
    with open(name + ".aside", "w") as file:
        file.write(str(text))
    os.rename(name + ".aside", name)
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)
"""


class Launch:
    """A launcher under way, in a folder that has its programs."""

    def __init__(self, python: str, folder: Path, port: int, argv: list[str], env: dict[str, str]) -> None:
        self.python, self.folder, self.port = python, folder, port
        self.error_file = folder / "launcher.json"
        own = {"PET_LOG_DIR": str(folder / "logs"), "TORCHELASTIC_ERROR_FILE": str(self.error_file)}
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [python, "-W", "ignore", "-m", *argv],
                cwd=folder,
                env={**ENVIRONMENT, **own, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def wait_for(self, name: str) -> str:
        """The content of a file that a rank writes, once it is there."""
        path, until = self.folder / name, time.monotonic() + GUARD_S
        while not path.exists():
            assert self.process.poll() is None, self.text("err")
            assert time.monotonic() < until, f"no {name}: {self.text('err')}"
            time.sleep(0.05)
        return path.read_text()

    def end(self) -> int:
        return self.process.wait(GUARD_S)

    def stop(self) -> None:
        """End the launcher and its ranks: a launcher ends them on SIGTERM."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait()

    def text(self, name: str) -> str:
        """Return the text of the file without the parts that differ at every launch: places, processes and times."""
        text = (self.folder / name).read_text(errors="surrogateescape")
        text = text.replace(self.python, "PYTHON").replace(str(self.folder), "FOLDER").replace(str(self.port), "PORT")
        text = re.sub(r"logs/none_\w+", "logs/RUN", text)
        text = re.sub(r"(pid: |PID )\d+", r"\1N", text)
        return re.sub(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", "NOW", text)

    def lines(self) -> list[dict[str, Any]]:
        return sorted((json.loads(line) for line in self.text("out").splitlines()), key=json.dumps)

    def report(self) -> str:
        """What the launcher says of the ranks that failed."""
        found = re.search(r"ChildFailedError: \n(=+\n.*\n=+)$", self.text("err"), re.DOTALL | re.MULTILINE)
        assert found, self.text("err")
        return re.sub(r"([=-])[=-]{9,}", r"\1", found[1])


Begin = Callable[..., tuple[Launch, Launch]]


@pytest.fixture
def begin(tmp_path: Path, stand_in: str, python213: str, request: pytest.FixtureRequest) -> Begin:
    """`begin("--nproc_per_node", "2", "program.py", program=...)`: the same launch with the stand-in and with torch."""
    ports = {"stand-in": free_port(), "torch": free_port()}

    def both(*args: str, program: str, module: str = "launch", node: int = 0, nodes: int = 1, **env: str) -> Any:
        made = []
        for name, python in (("stand-in", stand_in), ("torch", python213)):
            folder = tmp_path / f"{name}-{node}"
            folder.mkdir()
            (folder / "program.py").write_text(program)
            argv = [f"torch.distributed.{module}", "--nnodes", str(nodes), "--node_rank", str(node)]
            argv += ["--master_addr", "127.0.0.1", "--master_port", str(ports[name])]
            made.append(Launch(python, folder, ports[name], [*argv, *args], env))
            request.addfinalizer(made[-1].stop)
        return tuple(made)

    return both


def free_port() -> int:
    """A port below those that the kernel gives to sockets of other programs, before the launcher listens."""
    while True:
        port = random.randrange(10_000, 29_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def test_what_a_rank_sees(begin: Begin) -> None:
    args = ["a b", "$$HOME", "${local_rank}", "--n", "--", "\udcff", "-u", ""]
    own, real = begin("--nproc_per_node", "2", "--use_env", "--", "program.py", *args, program=SEEN)
    assert (own.end(), real.end()) == (0, 0), own.text("err") + real.text("err")
    assert own.lines() == real.lines()
    for local, seen in enumerate(own.lines()):
        said = ["a b", "$HOME", str(local), "--n", "--", "\xff", "-u", ""]
        assert seen["argv"] == ["PYTHON", "-u", "program.py", *said]
        assert (seen["environment"]["RANK"], seen["environment"]["OMP_NUM_THREADS"]) == (str(local), "1")


def test_a_module_with_its_local_rank_as_an_option(begin: Begin, tmp_path: Path) -> None:
    """The interpreter is that of PYTHON_EXEC, which ddpctl sets; options come from the environment too."""
    shim = tmp_path / "shim"
    shim.write_text('#!/bin/sh\nMARK=1 exec /usr/bin/python3 "$@"\n')
    shim.chmod(0o755)
    env = {"PYTHON_EXEC": str(shim), "PET_NPROC_PER_NODE": "2"}
    own, real = begin("--module", "program", "x", program=SEEN, **env)
    assert (own.end(), real.end()) == (0, 0), own.text("err") + real.text("err")
    assert own.lines() == real.lines()
    assert own.lines()[1]["argv"][1:] == ["-u", "-m", "program", "--local-rank=1", "x"]


def test_a_rank_that_fails(begin: Begin) -> None:
    """The other ranks get SIGTERM, each with its own children."""
    program = (
        FILES
        + """
if rank == "1":
    wait_for("up")
    sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
signal.signal(signal.SIGTERM, lambda number, frame: (tell("told", child.wait()), sys.exit(7)))
tell("up")
time.sleep(1000)
"""
    )
    own, real = begin("--nproc_per_node", "2", "--use_env", "program.py", program=program)
    assert (own.end(), real.end()) == (1, 1)
    assert own.report() == real.report()
    assert ((own.folder / "told").read_text(), (real.folder / "told").read_text()) == ("-15", "-15")
    said = (own.folder / "err").read_text()
    assert sorted(last_output.find_failures(said)) == [(0, 0, 7, False), (1, 1, 3, True)]
    assert not own.error_file.exists()
    assert not real.error_file.exists()


def test_sigterm_and_a_rank_that_ignores_it(begin: Begin) -> None:
    program = (
        FILES
        + """
def end(number, frame):
    tell("told" + rank, number)
    if rank == "0":
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
tell("pid" + rank, os.getpid())
while True:
    time.sleep(0.1)
"""
    )
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"}  # rank 0 needs some of it on a busy machine
    launches = begin("--nproc_per_node", "2", "--use_env", "program.py", program=program, **env)
    started = [[int(one.wait_for(f"pid{rank}")) for rank in range(2)] for one in launches]
    for one in launches:
        one.process.terminate()
    for one, pids in zip(launches, started, strict=True):
        assert one.end() == 1
        assert [(one.folder / f"told{rank}").read_text() for rank in range(2)] == ["15", "15"]
        assert not any(Path("/proc", str(pid)).exists() for pid in pids)
        said = one.text("err")
        assert re.search(r"SignalException: Process \d+ got signal: 15$", said, re.MULTILINE), said
        assert len(re.findall(r"Sending process \d+ closing signal SIGTERM", said)) == 2, said
        assert re.search(r"Unable to shutdown process \d+ via \S*(SIGTERM|15), forcefully exiting via", said), said


def test_a_rank_that_is_killed(begin: Begin) -> None:
    program = FILES + 'if rank == "1":\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)\n'
    own, real = begin("--nproc_per_node", "2", "--use_env", "program.py", program=program)
    assert (own.end(), real.end()) == (1, 1)
    assert own.report() == real.report()
    assert sorted(last_output.find_failures((own.folder / "err").read_text())) == [(0, 0, -15, False), (1, 1, -9, True)]


@pytest.mark.parametrize(("script", "env"), [("no.py", {}), ("program.py", {"PYTHON_EXEC": "/no/python"})])
def test_what_is_not_there(begin: Begin, script: str, env: dict[str, str]) -> None:
    own, real = begin("--use_env", "--", script, program="", **env)
    assert (own.end(), real.end()) == (1, 1)
    if env:
        last = "FileNotFoundError: [Errno 2] No such file or directory: '/no/python'"
        assert [one.text("err").splitlines()[-1] for one in (own, real)] == [last, last]
    else:
        assert own.report() == real.report()
        assert "exitcode  : 2 " in own.report()


def test_a_master_port_that_is_taken(begin: Begin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        own, real = begin("--master_port", port, "--use_env", "program.py", program="")
        assert (own.end(), real.end()) == (1, 1)
    for one in (own, real):
        assert re.search(r"DistNetworkError: .*EADDRINUSE.*address already in use", one.text("err")), one.text("err")


def test_two_nodes_with_uneven_ranks(begin: Begin) -> None:
    """Each rank sees the place that it has among all; and the node that is done waits for the other."""
    program = FILES + SEEN + 'tell("up" + rank)\nif rank == "0":\n    wait_for("enough")\n'
    first = begin("--nproc_per_node", "1", "--use_env", "program.py", program=program, nodes=2)
    second = begin("--nproc_per_node", "2", "--use_env", "program.py", program=program, nodes=2, node=1)
    for one, other in zip(first, second, strict=True):
        for rank in (1, 2):
            other.wait_for(f"up{rank}")
        while children(other.process.pid):
            time.sleep(0.05)
        with pytest.raises(subprocess.TimeoutExpired):  # it would end within a tenth of a second
            other.process.wait(2)
        (one.folder / "enough").touch()
    assert [one.end() for one in (*first, *second)] == [0] * 4
    for own, real in (first, second):
        assert own.lines() == real.lines()
    seen = [line["environment"] for one in (first[0], second[0]) for line in one.lines()]
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in seen] == [
        ("0", "0", "3"),
        ("1", "0", "3"),
        ("2", "1", "3"),
    ]


def children(pid: int) -> str:
    """Processes that have not been collected."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def test_ranks_meet_and_one_leaves_too_early(begin: Begin) -> None:
    """ddpctl takes the message of the remaining rank for an error of a peer. The message stands in the error file of
    that rank and, copied by torchrun, in the launcher's.
    """
    program = """\
import os, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, {"rank": dist.get_rank()})
    dist.barrier()
    sys.stdout.write(f'"{told} {dist.get_backend()} {torch.__version__} {torch.cuda.is_available()}"\\n')
    sys.stdout.flush()
    if dist.get_rank() == 1:
        os._exit(0)
    dist.all_gather_object(told, "again")
main()
"""
    own, real = begin("--nproc_per_node", "2", "program.py", program=program, module="run")
    assert (own.end(), real.end()) == (1, 1)
    assert own.lines() == real.lines()
    for one in (own, real):
        content = json.loads(one.error_file.read_text())["message"]
        assert (set(content), content["errorCode"]) == ({"message", "extraInfo", "errorCode"}, 1)
        assert set(content["extraInfo"]) == {"py_callstack", "timestamp"}
        assert re.search(VICTIM_WORDS, content["message"], re.IGNORECASE), content
        assert 'dist.all_gather_object(told, "again")' in content["extraInfo"]["py_callstack"]
        (of_rank,) = one.folder.glob("logs/*/attempt_0/0/error.json")
        assert json.loads(of_rank.read_text())["message"]["message"] == content["message"]
        assert last_output.find_failures((one.folder / "err").read_text()) == [(0, 0, 1, True)]


def test_what_only_torch_has_is_refused_by_name(stand_in: str) -> None:
    program = "import torch\ntry:\n    torch.zeros(1)\nexcept AttributeError as error:\n    print(error)\n"
    said = subprocess.run([stand_in, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.startswith("torch has no zeros here: this is the stand-in for torch of ddpctl's tests"), said
    launch = [stand_in, "-m", "torch.distributed.run", "--max_restarts", "1", "program.py"]
    refused = subprocess.run(launch, check=False, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr[:32]) == (1, "the stand-in for torch's launche")
