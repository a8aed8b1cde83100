"""The cost to a rank and its node of the looks of `ddpctl doctor`: the same job with `doctor: off` and without."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.bench.report import Row, number, spread
from tests.bench.usage import DDPCTL
from tests.worker.rank import Start

STARTS, TORCH_STARTS, JOBS = 40, 10, 6  # pairs of each
PHASE_S = 12.0
NODES, RANKS = 2, 4
MEMORY = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"
# Two phases: steps that take 20 ms on an idle core, then steps that are a collective and nothing else.
TRAIN = """
import json, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
model, data = DDP(torch.nn.Sequential(*layers)), torch.randn(128, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
small = torch.ones(256)
def train():
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
def rate(step, seconds):
    more, count, begun = torch.ones(1), 0, time.perf_counter()
    while more.item():
        for _ in range(10):
            step()
        count += 10
        more.fill_(time.perf_counter() - begun < seconds)
        dist.broadcast(more, 0)  # all ranks do the same number of steps
    return count / (time.perf_counter() - begun)
rate(train, 1)
found = {"train": rate(train, SECONDS), "collectives": rate(lambda: dist.all_reduce(small), SECONDS)}
if dist.get_rank() == 0:
    print("RATES", json.dumps(found), flush=True)
dist.barrier()
time.sleep(2)  # gloo's thread lets go of its last tensors; past the end of Python that aborts a rank
dist.destroy_process_group()
"""
TRAIN = TRAIN.replace("SECONDS", str(PHASE_S))
Value = TypeVar("Value")


class Pair(NamedTuple):
    """The same measurement twice, the second right after the first."""

    on: float
    off: float


class Job(NamedTuple):
    """Steps per second of both phases, and percent of one core that a node's doctor and its whole supervisor took."""

    train: float
    collectives: float
    doctor: list[float]
    supervisor: list[float]


def all_of(folder: Path) -> Sequence[Row]:
    return [*starts(folder), *jobs(folder)]


def in_turn(measure: Callable[[bool], Value], count: int) -> list[tuple[Value, Value]]:
    """Pairs of (with the doctor, without), each first equally often, so that other load meets both."""
    found = []
    for turn in range(count):
        order = (True, False) if turn % 2 else (False, True)
        both = {doctor: measure(doctor) for doctor in order}
        found.append((both[True], both[False]))
    return found


def starts(folder: Path) -> list[Row]:
    """Time from the shim's start to the rank's end, and the memory at that point."""
    ways = {doctor: Start(folder / str(doctor), sys.executable, doctor=doctor) for doctor in (True, False)}

    def measure(script: str) -> Callable[[bool], tuple[float, str]]:
        def run(doctor: bool) -> tuple[float, str]:
            ended = ways[doctor].run("-c", script)
            if ended.code:
                raise RuntimeError(ended.err)
            return ended.seconds * 1000, ended.out

        return run

    measure("")(True)  # its compiled form lies in the run's folder from here on
    empty = in_turn(measure(""), STARTS)
    torch = in_turn(measure("import torch.distributed\n" + MEMORY), TORCH_STARTS)
    memory = [Pair(int(on[1]) / 1024, int(off[1]) / 1024) for on, off in torch]
    return [
        more("start of a rank without torch", [Pair(on[0], off[0]) for on, off in empty], "ms"),
        more("start of a rank that imports torch", [Pair(on[0], off[0]) for on, off in torch], "ms"),
        more("memory of a rank that has imported torch", memory, "MB"),
    ]


def more(what: str, pairs: Sequence[Pair], unit: str) -> Row:
    """Return the median of the differences of the pairs."""
    extra = statistics.median(one.on - one.off for one in pairs)
    note = f"{len(pairs)} pairs; with {spread([one.on for one in pairs])}, without {spread([one.off for one in pairs])}"
    return Row(f"{what}, more than without", extra, unit, "", f"{note} {unit}")


def jobs(folder: Path) -> list[Row]:
    """Four ranks on two local nodes: throughput, and what the supervisors take for it."""
    place = project(folder / "home")
    found = in_turn(lambda doctor: play(place, doctor), JOBS)
    what = {"train": "steps of about 20 ms", "collectives": "steps that are one collective"}
    rows = []
    for name, words in what.items():
        pairs = [Pair(getattr(on, name), getattr(off, name)) for on, off in found]
        ratio = [one.on / one.off for one in pairs]
        rates = f"{spread([one.on for one in pairs])} steps/s, without {spread([one.off for one in pairs])}"
        note = f"{len(pairs)} pairs, ratios {number(min(ratio))} to {number(max(ratio))}; with {rates}"
        rows.append(Row(f"throughput of {RANKS} ranks, {words}", statistics.median(ratio), "x", "1", note))
    share = [value for on, _ in found for value in on.doctor]
    rows.append(Row("CPU of the doctor's thread, of one core", max(share), "%", "0.5", f"per node; {spread(share)} %"))
    whole = [(value for one in side for value in one.supervisor) for side in zip(*found, strict=True)]
    on, off = (spread(list(values)) for values in whole)
    extra = statistics.median(statistics.mean(on.supervisor) - statistics.mean(off.supervisor) for on, off in found)
    rows.append(Row("CPU of a supervisor, more than without", extra, "%", "0.5", f"with {on} %, without {off} %"))
    return rows


def project(place: Path) -> Path:
    """A home with an inventory of local nodes, as inventory/local.yaml has them."""
    (place / "project").mkdir(parents=True)
    (place / "project" / "train.py").write_text(TRAIN)
    local = {"connection": "local", "python": sys.executable, "slots": RANKS // NODES, "fabric_address": "127.0.0.1"}
    hosts = [{"name": f"local-{node}", "base_dir": str(place / f"node-{node}"), **local} for node in range(NODES)]
    job = {"script": "train.py", "env": {"OMP_NUM_THREADS": "1"}}
    document = {"cluster": "bench", "hosts": hosts, "jobs": {"train": job}}
    (place / "project" / "inventory.yaml").write_text(json.dumps(document))
    return place


def play(place: Path, doctor: bool) -> Job:
    """One run to its end. Raises RuntimeError: it failed."""
    argv = [str(DDPCTL), "up", "--skip-preflight", "--set", "doctor={stall: 30}" if doctor else "doctor=off"]
    env = {**os.environ, "HOME": str(place), "XDG_STATE_HOME": str(place / "state"), "NO_COLOR": "1"}
    pipe = subprocess.PIPE
    work: dict[int, list[tuple[float, float, float]]] = {}
    with subprocess.Popen(argv, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env, cwd=place / "project") as up:
        while up.poll() is None:
            for pid in supervisors(place):
                work.setdefault(pid, []).append((time.monotonic(), *seconds_of(pid)))
            time.sleep(1.0)
        assert up.stdout is not None
        text = up.stdout.read()
    rates = [json.loads(line.split("RATES ")[1]) for line in text.splitlines() if "RATES " in line]
    if up.returncode or len(rates) != 1 or len(work) != NODES:
        raise RuntimeError(f"a run failed, doctor {'on' if doctor else 'off'}: {text[-2000:]}")
    shares = [
        tuple((last - first) / (many[-1][0] - many[0][0]) * 100 for first, last in zip(many[0], many[-1], strict=True))
        for many in work.values()
    ]
    return Job(rates[0]["train"], rates[0]["collectives"], [one[1] for one in shares], [one[2] for one in shares])


def supervisors(place: Path) -> Iterator[int]:
    """The supervisors of runs below this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, words = (process / "comm").read_text(), (process / "cmdline").read_bytes()
        except OSError:
            continue
        if name == "ddpctl-super\n" and os.fsencode(place) in words:
            yield int(process.name)


def seconds_of(pid: int) -> tuple[float, float]:
    """CPU time so far of its thread named `doctor`, and of all its threads; 0 for an ended process."""
    doctor = 0.0
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        try:
            name, spent = (task / "comm").read_text(), int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue
        doctor += spent if name == "doctor\n" else 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return doctor, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
