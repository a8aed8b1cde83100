"""The cost of ddpctl to a node while a job runs: supervisor and guardian, with two ranks that write."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.report import Row, spread
from tests.e2e.site import Site, named, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.command import Ddpctl

WATCHERS = ("ddpctl-guardian", "ddpctl-super")
SETTLE_S, MEASURE_S = 10.0, 60.0
TALKS = """\
import time
while True:
    print("a line of a training: step 1200 loss 0.3141 samples/s 5120", flush=True)
    time.sleep(1.0)
"""


def all_of(folder: Path) -> Sequence[Row]:
    """Share of one core over a minute, and memory (proportional set size), of the node that has most."""
    with Lab(3) as lab:
        site = Site(lab, Ddpctl(folder), folder / "site", "/usr/bin/python3")
        job = site.job("steady", TALKS, nproc_per_node=2)
        run = site.up(job, "--skip-preflight")["run"]
        wait_for_ranks(lab, run, 2)
        time.sleep(SETTLE_S)
        before = [_ticks(host) for host in lab]
        time.sleep(MEASURE_S)
        share = [
            (_ticks(host) - then) / os.sysconf("SC_CLK_TCK") / MEASURE_S * 100
            for host, then in zip(lab, before, strict=True)
        ]
        memory = [_memory_mb(host) for host in lab]
        site("kill", job).ok()
    return [
        Row(
            "CPU of a node's worker, of one core",
            max(share),
            "%",
            "0.5",
            f"3 nodes, the first is the hub; {spread(share)} %",
        ),
        Row("memory of a node's worker", max(memory), "MB", "40", f"proportional set size; {spread(memory)} MB"),
    ]


def _pids(host: Host) -> list[int]:
    found = [named(host, name) for name in WATCHERS]
    assert all(found), f"{host.name}: no guardian or no supervisor"
    return [one.pid for one in found if one is not None]


def _ticks(host: Host) -> int:
    fields = [(host.proc / str(pid) / "stat").read_text().rpartition(")")[2].split() for pid in _pids(host)]
    return sum(int(one[11]) + int(one[12]) for one in fields)


def _memory_mb(host: Host) -> float:
    lines = [line for pid in _pids(host) for line in (host.proc / str(pid) / "smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
