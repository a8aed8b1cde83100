"""Reports as values: a small report of a run that succeeded, and the largest and worst report for a page."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import permutations
from typing import Any

from ddpctl.spec.curves import Curve, CurveLine
from ddpctl.spec.gpuuse import GpuStretch, GpuUse
from ddpctl.spec.network import Network
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.record import RecordedLaunch, RecordedRun
from ddpctl.spec.report import RunReport
from ddpctl.spec.status import RunStatus
from tests.values import value_of

BEGAN = datetime(2026, 11, 24, 3, 0, tzinfo=timezone.utc)
HOSTILE = '<script>alert(1)</script> \x1b[31m\u202e & "quoted" \''


def at(minutes: float) -> str:
    return (BEGAN + timedelta(minutes=minutes)).isoformat()


WHOSE = {
    "project": "exp",
    "origin": {"account": "anna", "machine": "desk", "folder": "/home/anna/exp", "inode": 1},
}


def cause(host: str, rank: int, message: str, minutes: float, traceback: str | None = None) -> dict[str, Any]:
    return {
        "host": host,
        "rank": rank,
        "exit_code": 1,
        "signal": None,
        "reason": "exited",
        "message": message,
        "traceback": traceback,
        "time": at(minutes),
    }


def small(state: str = "succeeded") -> RunReport:
    node = NodeStatus("node0", 0, state, ranks=(0, 1), exit_code=0, started=at(0), ended=at(12.2))
    keys = {"script": "train.py", "env": {"API_KEY": "hunter2", "OMP_NUM_THREADS": "4"}}
    settings = {"job": "train", "keys": keys, "hosts": ["node0"], "nodes": 1}
    record = {"hosts": ["node0"], "world_size": 2, "settings": settings, **WHOSE}
    record["code"] = {"hash": "ab" * 32, "size": 5, "git_commit": "3f2c91a0b2c4d5e6", "dirty": True}
    run = RunStatus("train", "20261124T030000Z-aaaaaa", "lab", (node,), value_of(RecordedRun, record))
    line = CurveLine(1, ((10, 2.5), (20, 1.25), (30, 0.5)))
    launch = RecordedLaunch(("python", "-m", "torch.distributed.launch", "train.py"), "2.13.0")
    return RunReport(run, BEGAN + timedelta(minutes=13), {"node0": launch}, (Curve("loss", "step", (line,), 3),))


def gpu(host: str = "node0", index: int = 0, use: float = 90.0, **changed: Any) -> GpuUse:
    """Of a run of 12.2 minutes: it had nothing to do from the second minute to the fourth."""
    uses = (*[use] * 12, *[0.0] * 12, *[None] * 6, *[use] * 43)
    stretch = GpuStretch(1, at(0), 10.0, uses, tuple(None if value is None else 60 << 10 for value in uses))
    made = GpuUse(host, index, "NVIDIA H100 80GB HBM3", True, 80 << 10, 61 << 10, 71.0, 690.0, (stretch,))
    return replace(made, **changed)


def worst(hosts: int = 64, attempts: int = 30) -> RunReport:
    """Many long host names, attempts with long tracebacks, markup in every text, missing hosts, broken links."""
    names = tuple(f"gpu-node-with-a-long-name-{number:03d}.cluster.example.org" for number in range(hosts))
    trace = "".join(f'  File "/home/anna/train/{HOSTILE}.py", line {line}, in step\n' for line in range(2000))
    message = f"RuntimeError: {HOSTILE} " + "CUDA error: an illegal memory access was encountered " * 40
    failed = [
        {
            "attempt": number,
            "hosts": list(names),
            "started": at(20 * number),
            "ended": at(20 * number + (18 if number % 3 else 2)),
            "cause": cause(names[number % hosts], number, message, 20 * number + 18, trace),
            "set_aside": [{"host": names[0], "why": f"GPU 3 fell off the bus {HOSTILE}"}] if number % 5 == 0 else [],
        }
        for number in range(1, attempts + 1)
    ]
    over = {"state": "failed", "cause": failed[-1]["cause"]}
    agreed = {"term": 3, "version": 1, "attempts": failed, "live": False, "set_aside": {}, "over": over}
    nodes = tuple(
        value_of(
            NodeStatus,
            {
                "host": name,
                "node_rank": number,
                "state": "unreachable" if number in (5, 6) else "failed",
                "ranks": list(range(8 * number, 8 * number + 8)),
                "exit_code": 1,
                "attempt": attempts,
                "agreed": agreed,
                "metrics": {
                    str(8 * number + local): {"comm_share": (number * 8 + local) % 97 / 97, "samples_per_s": 812.5}
                    for local in range(8)
                },
                "slow": [
                    {"host": names[1], "rank": 9, "lag_ms": 22.0, "last_share": 0.94, "why": ["its clock is low"]}
                ],
                "reported": at(600),
            },
        )
        for number, name in enumerate(names)
    )
    keys = {"args": [HOSTILE, "x" * 3000], "env": {"NAME": HOSTILE}}
    record = {
        "hosts": list(names),
        "world_size": 8 * hosts,
        "restart": {},
        **WHOSE,
        "settings": {"job": "train", "keys": keys, "hosts": list(names), "nodes": hosts},
        "user": HOSTILE,
    }
    run = RunStatus("train", "20261124T030000Z-aaaaaa", "lab", nodes, value_of(RecordedRun, record))
    curves = [
        Curve(name, "step", tuple(line(number, scale) for number in range(1, attempts + 1)), 10**7, 17, 812)
        for name, scale in (("loss", 1e9), ("valid/loss_of_" + "long" * 12, 1.0), ("acc", 1e-9), (HOSTILE, 1e250))
    ]
    curves += [
        Curve("one", "step", (CurveLine(1, ((5, 0.0),)),), 1),
        Curve("flat", "step", (CurveLine(1, ((5, 3.0), (9, 3.0))),), 2),
        Curve("nan", "step", (), 0, 12, 0),
    ]
    rows = [
        (one, other, "dropped" if number % 131 == 0 else "ok", 0.2, 940.0 if number % 17 else 95.0)
        for number, (one, other) in enumerate(permutations(range(hosts), 2))
    ]
    launches = {name: RecordedLaunch(("python", HOSTILE, "y" * 2000), "2.13.0") for name in names}
    missing = {names[5]: f"no route to host {HOSTILE}", names[6]: "the login was refused"}
    gpus = tuple(gpu(name, local, 97.0 - local, name=f"GPU {HOSTILE}") for name in names for local in range(8))
    made = BEGAN + timedelta(hours=11)
    return RunReport(run, made, launches, tuple(curves), gpus, Network(names, tuple(rows)), (), missing)


def line(attempt: int, scale: float) -> CurveLine:
    """500 points of a loss that falls, with noise and a spike."""
    begin = 900 * (attempt - 1)
    points = [
        (begin + 2 * step, scale * (math.exp(-(begin + 2 * step) / 9000) + 0.05 * math.sin(step * 1.7)))
        for step in range(500)
    ]
    points[250] = (points[250][0], scale * 3)
    return CurveLine(attempt, tuple(points))
