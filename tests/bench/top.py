"""What ``ddpctl top`` costs: a minute of its screen over 64 hosts with 8 GPUs each, and on a node with a live run.

A stand-in for NVIDIA's library says what the GPUs do, and says something else each time.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ddpctl_worker.facts.nvml import OF_WSL
from tests.bench.report import Row, spread
from tests.e2e.site import Site, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.command import AtTerminal, Ddpctl
from tests.worker import nvml_library

HOSTS, GPUS, AT_WORK = 64, 8, 2
SETTLE_S, MEASURE_S = 25.0, 60.0
WORKER = "ddpctl=json.loads"
TALKS = """\
import json, os, time
step = 0
while True:
    step += 1
    print("a line of a training: step", step, flush=True)
    with open(os.environ["DDPCTL_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "samples_per_s": 5120.5}) + "\\n")
    time.sleep(0.2)
"""


def all_of(folder: Path) -> Sequence[Row]:
    """Shares of one core over a minute, as the kernel counted them."""
    library = nvml_library.build(folder, gpus=GPUS)
    assert library is not None, "there is no C compiler"
    with Lab(HOSTS) as lab:
        for host in lab:
            _install(host, library)
        site = Site(lab, Ddpctl(folder), folder / "site", "/usr/bin/python3")
        job = site.job("steady", TALKS, nproc_per_node=2, nodes=[host.name for host in list(lab)[:AT_WORK]])
        run = site.up(job, "--skip-preflight")["run"]
        wait_for_ranks(list(lab)[:AT_WORK], run, 2)
        screen = site.start("top", terminal=True)
        assert isinstance(screen, AtTerminal)
        screen.wait_for(f"{HOSTS * GPUS} GPUs", 120)
        _watch(screen, SETTLE_S)
        begun, written = time.monotonic(), len(screen.screen)
        before, nodes_before = _ticks([Path("/proc", str(screen.pid))]), [_of_worker(host) for host in lab]
        _watch(screen, MEASURE_S)
        seconds = time.monotonic() - begun
        controller = _percent(_ticks([Path("/proc", str(screen.pid))]) - before, seconds)
        nodes = [_percent(_of_worker(host) - then, seconds) for host, then in zip(lab, nodes_before, strict=True)]
        drawn = (len(screen.screen) - written) / seconds
        memory = _resident(Path("/proc", str(screen.pid)))
        screen.type("q")
        screen.wait(30)
        site("kill", job).ok()
    busy, idle = nodes[:AT_WORK], nodes[AT_WORK:]
    screen_note = f"120 x 40, {HOSTS * GPUS} GPUs, every figure changes; {drawn:.0f} bytes/s to the terminal"
    return [
        Row(f"`top`: CPU of the controller, {HOSTS} hosts, of one core", controller, "%", "30", screen_note),
        Row("`top`: memory of the controller", memory, "MB", "", "resident"),
        Row("`top`: CPU on a node with a live run, of one core", max(busy), "%", "0.5", spread(busy)),
        Row("`top`: CPU on a node without a run, of one core", max(idle), "%", "0.5", spread(idle)),
    ]


def _install(host: Host, library: Path) -> None:
    text = base64.b64encode(library.read_bytes()).decode()
    host.run(f"mkdir -p {Path(OF_WSL).parent} && base64 -d > {OF_WSL}", stdin=text)


def _watch(screen: AtTerminal, seconds: float) -> None:
    """Read its output, as a terminal does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        screen._pause(0.2)


def _of_worker(host: Host) -> int:
    """Of the worker that this screen reads from, and the process that serves its verb."""
    pids = [one.pid for one in host.processes() if WORKER in " ".join(one.argv) and "DDPCTL_RUN" not in one.environ]
    found = [host.proc / str(pid) for pid in pids]
    return _ticks([one for one in found if not (one / "comm").read_text().startswith("ddpctl-")])


def _ticks(processes: Sequence[Path]) -> int:
    fields = [(one / "stat").read_text().rpartition(")")[2].split() for one in processes]
    return sum(int(one[11]) + int(one[12]) for one in fields)


def _percent(ticks: int, seconds: float) -> float:
    return 100.0 * ticks / os.sysconf("SC_CLK_TCK") / seconds


def _resident(process: Path) -> float:
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
