"""One node for the tests of the runtime: real processes of the real worker, started as the transport starts them."""

from __future__ import annotations

import base64
import json
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ddpctl_worker.wire.contract import AGAIN, READY, TERMINAL
from tests.suite.waiting import poll

ROOT = Path(__file__).parents[2]
WORKER = str(ROOT / "worker")
_PATH = "import sys; sys.path.insert(0, sys.argv[1]); "
_MAIN = "from ddpctl_worker.__main__ import main; sys.exit(main())"
_BOOT = _PATH + _MAIN
_BOOT_FOR_STATUS = _PATH + "import ddpctl_worker.record.status; " + _MAIN

# The ranks of one node under the launcher of the lab's stand-in for torch. There is no rendezvous: each node knows its
# first rank, so that a test may run one node of many.
STAND_IN = str(ROOT / "tests" / "lab" / "stand_in")
LAUNCHER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from torch.distributed import ranks
nproc, first = int(sys.argv[2]), int(sys.argv[3])
command = [os.environ.get("PYTHON_EXEC", sys.executable), "-u", *sys.argv[4:]]
places = [{"RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(nproc)]
ranks.run(sys.argv[4], [command] * nproc, places, interval=0.02)
"""


def eventually(found: Callable[[], Any], what: str, seconds: float = 20.0, pause: float = 0.03) -> Any:
    """Return the first true value of ``found``; fail if there is no true value in time."""
    value = poll(found, seconds, pause)
    assert value, f"{what}: not within {seconds:g} s"
    return value


TIMEOUTS = {"start": 60, "stop": 10, "leftover": 10, "after": 60, "silence": None, "silence_enforced": False}
STARTS: dict[str, int] = {}  # run -> its number, as the controller counts the starts of a job


class Stream:
    """A verb under way: frames are collected while it runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.frames: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.arrived: list[float] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        out = self.process.stdout
        assert out is not None
        for line in out:
            if not line.endswith(b"\n"):
                return  # the worker was killed in the middle of a frame
            frame = json.loads(line)
            if "hb" in frame:
                continue
            self.raw.append(out.read(frame["raw"]) if frame.get("raw") else b"")
            self.arrived.append(time.time())
            self.frames.append(frame)

    def result(self, timeout: float = 60.0) -> dict[str, Any]:
        """The result; an error of the worker's fails the test."""
        last = self.last(timeout)
        assert last.get("ok"), last
        found: dict[str, Any] = last["result"]
        return found

    def last(self, timeout: float = 60.0) -> dict[str, Any]:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the verb does not end"
        self.hang_up()
        assert self.frames, "the worker ended without an answer"
        return self.frames[-1]

    def hang_up(self) -> None:
        """What the SSH server does when the connection is gone."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait(60)
        self._thread.join(60)
        if self.process.stdout:
            self.process.stdout.close()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return list(whole(line for frame in self.frames for line in lines_of(frame)))


def lines_of(frame: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines that a frame brings, one by one."""
    columns = frame.get("lines", {})
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def whole(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines, with the parts of each line joined; lines without an end come last.

    A line comes in parts where its rank is held up in the middle: ``print`` writes the line break in a call of its own.
    """
    begun: dict[tuple[int | None, str], dict[str, Any]] = {}
    for line in lines:
        place = line["rank"], line["stream"]
        first = begun.pop(place, None)
        joined = line if first is None else {**line, "time": first["time"], "text": first["text"] + line["text"]}
        if line["end"]:
            yield joined
        else:
            begun[place] = joined
    yield from begun.values()


class Poller:
    """A worker that is asked for the status again and again: each question costs a fork, and no start of Python."""

    def __init__(self, python: str, worker: str) -> None:
        argv = [python, "-I", "-c", _BOOT_FOR_STATUS, worker]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._frames: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            frame = json.loads(line)
            if "hb" not in frame:
                self._frames.put(frame)

    def ask(self, body: dict[str, Any], timeout: float = 60.0) -> dict[str, Any]:
        """The result; an error of the worker's fails the test."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**body, AGAIN: True}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._frames.get(timeout=timeout)
        assert answer.get("ok"), answer
        assert READY in self._frames.get(timeout=timeout)
        found: dict[str, Any] = answer["result"]
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(60)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Node:
    """A base_dir and a host name."""

    def __init__(self, base: Path, scratch: Path, host: str = "node0") -> None:
        self.base, self.scratch, self.host = base, scratch, host
        self.started: list[str] = []
        self.env = dict(os.environ)
        self.python, self.worker = sys.executable, WORKER
        self._poller: Poller | None = None

    def open(self, verb: str, **request: Any) -> Stream:
        body = self._body(verb, request)
        argv = [self.python, "-I", "-c", _BOOT, self.worker]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env)
        assert process.stdin is not None
        process.stdin.write(json.dumps(body).encode() + b"\n")
        process.stdin.flush()
        return Stream(process)

    def call(self, verb: str, **request: Any) -> dict[str, Any]:
        return self.open(verb, **request).result()

    def record(self, run: str | None = None, **changes: Any) -> dict[str, Any]:
        """The immutable record of a run of two ranks on this node alone."""
        run = run or f"run-{secrets.token_hex(6)}"
        made: dict[str, Any] = {
            "schema": 1,
            "run": run,
            "serial": STARTS.setdefault(run, len(STARTS) + 1),
            "attempt": 1,
            "job": "job",
            "cluster": "lab",
            "project": "exp",
            "host": self.host,
            "node_rank": 0,
            "nnodes": 1,
            "hosts": [self.host],
            "nproc": 2,
            "ranks": [0, 1],
            "world_size": 2,
            "rendezvous": "static",
            "created": "2026-01-02T03:04:05Z",
            "code": None,
            "outputs": [],
            "timeouts": TIMEOUTS,
            "gang": None,
        }
        made.update(changes)
        made["timeouts"] = {**TIMEOUTS, **made["timeouts"]}
        return made

    def request(self, script: str, record: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        """A start of ``script`` (python source) under the test's launcher."""
        record = record or self.record()
        launcher = self._file("launcher.py", LAUNCHER)
        program = self._file(f"{record['run']}-{self.host}.py", script)
        argv = [sys.executable, launcher, STAND_IN, str(record["nproc"]), str(record["ranks"][0]), program]
        made = {"run": record, "argv": argv, "cwd": str(self.scratch), "env": {}, "token_env": []}
        made.update(changes)
        return made

    def start(self, script: str, record: dict[str, Any] | None = None, **changes: Any) -> str:
        """Start, and return the run's id."""
        request = self.request(script, record, **changes)
        run: str = request["run"]["run"]
        self.started.append(run)
        self.call("start", **request)
        return run

    def status(self, run: str) -> dict[str, Any]:
        self._poller = self._poller or Poller(self.python, self.worker)
        found = self._poller.ask(self._body("status", {"run": run}))["runs"]
        assert len(found) == 1
        return dict(found[0])

    def wait_state(self, run: str, *states: str, seconds: float = 30.0) -> dict[str, Any]:
        """Return the node's status once its state is in ``states`` (default: in TERMINAL)."""
        wanted = set(states) or set(TERMINAL)
        last: dict[str, Any] = {}

        def look() -> dict[str, Any] | None:
            nonlocal last
            last = self.status(run)
            if not states and last["state"] == "stale":
                return None
            return last if last["state"] in wanted else None

        try:
            found: dict[str, Any] = eventually(look, f"state {wanted}", seconds, pause=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last}") from None
        return found

    def folder(self, run: str) -> Path:
        return self.base / "runs" / run / self.host

    def state(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(run) / "state.json").read_text())
        return found

    def pid(self, run: str, who: str) -> int:
        return int(self.state(run)[who]["pid"])

    def lines(self, run: str, **request: Any) -> list[dict[str, Any]]:
        stream = self.open("tail", run=run, **request)
        stream.result()
        return stream.lines

    def text(self, run: str, rank: int | None, stream: str = "stdout") -> bytes:
        """Everything that a rank wrote, byte for byte."""
        mine = [one for one in self.lines(run) if one["rank"] == rank and one["stream"] == stream]
        return b"".join((one["text"] + one["end"]).encode("utf-8", "surrogateescape") for one in mine)

    def files(self, run: str, **request: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return the files of ``fetch``, name -> content, and the verb's result."""
        stream = self.open("fetch", run=run, **request)
        result = stream.result()
        found: dict[str, bytes] = {}
        name = ""
        for frame, raw in zip(stream.frames, stream.raw, strict=True):
            if "file" in frame:
                name = frame["file"]["path"]
                found[name] = b""
            elif frame.get("chunk"):
                found[name] += raw
        return found, result

    def clean_up(self) -> None:
        if self._poller is not None:
            self._poller.end()
        for run in self.started:
            self.open("stop", run=run, grace=0, by="the end of the test").last()

    def _body(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"verb": verb, "host": self.host, "base_dir": str(self.base), **request}

    def _file(self, name: str, text: str) -> str:
        path = self.scratch / name
        path.write_text(text)
        return str(path)


def processes_of(mark: str) -> dict[int, str]:
    """Return the living processes with ``mark`` in the command line or environment: from /proc, not from the worker."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX" and (mark.encode() in words or mark.encode() in environment):
            found[int(entry.name)] = words.decode(errors="replace")
    return found


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
