"""The campaign of slow ranks: a single rank needs a tenth of a step more in a single phase, and only this rank may be
named.

With ``--balanced`` no rank does, and no rank may be named. The first half of this file is pure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.site import Site, until
from tests.hangs.campaign import TROUBLE, Labs, side_by_side, site_in
from tests.hangs.play import submit

PHASES = ("data", "forward", "backward")
STEP_S = 0.25  # of a balanced rank, with its collectives
SHARE = 0.1  # of a step
AIM = 50  # steps until it is named
GIVE_UP, BALANCED = 100, 200  # steps
START_S, MOST_S, POLL_S = 120.0, 300.0, 0.2

# A step waits in data, forward and backward, where a real step works: the lab's cores are too few for its ranks.
PROGRAM = """\
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PHASE, SLOW, EXTRA_S, NAME = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
RANK = dist.get_rank()


def phase(name, seconds):
    time.sleep(seconds + (EXTRA_S if name == PHASE and RANK == SLOW else 0.0))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.last = nn.Linear(512, 10)

    def forward(self, batch):
        phase("forward", 0.06)
        return self.last(self.layers(batch))


def backward_begins(gradient):
    phase("backward", 0.1)
    return gradient


network = DistributedDataParallel(Network(), bucket_cap_mb=1)
network.module.last.weight.register_hook(backward_begins)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for step in range(1, 10_000):
    phase("data", 0.06)
    optimizer.zero_grad()
    network(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    if RANK == 0:
        with open(f"/tmp/{NAME}.steps", "w") as file:
            file.write(str(step))
"""


@dataclass(frozen=True)
class Run:
    """One job. Without a slow rank ``extra_s`` is 0."""

    number: int
    phase: str
    rank: int
    hosts: int
    extra_s: float


def plan(seed: int, number: int, *, balanced: bool) -> list[Run]:
    """Every phase equally often, on two hosts of two ranks."""
    dice = random.Random(f"{seed} stragglers")
    extra = 0.0 if balanced else STEP_S * SHARE
    return [Run(index, PHASES[index % len(PHASES)], dice.randrange(4), 2, extra) for index in range(number)]


@dataclass
class Seen:
    """All that was seen of a run."""

    run: Run
    steps: int | None = None  # when a rank was named, or that no rank was named by the end of the run
    slow: list[dict[str, Any]] = field(default_factory=list)  # as `status --json` has it
    trouble: list[str] = field(default_factory=list)


def wrong(seen: Seen) -> list[str]:
    """What was not right about a run; late is not right either."""
    found = list(seen.trouble)
    named = [one["rank"] for one in seen.slow]
    expected = [seen.run.rank] if seen.run.extra_s else []
    if named != expected:
        found.append(f"names {named}, not {expected}")
    elif named and (seen.steps is None or seen.steps > AIM):
        found.append(f"named after {seen.steps} steps, not {AIM}")
    return found


def line(seen: Seen, seconds: float) -> str:
    found, run = wrong(seen), seen.run
    said = ", ".join(f"rank {one['rank']} {one['lag_ms']} ms" for one in seen.slow) or "nobody"
    row = f"{run.number:4} {run.phase:8} rank {run.rank} {'WRONG' if found else 'right'} {seconds:5.0f} s"
    return "\n".join([f"{row}  {said} at step {seen.steps}", *(f"       {text}" for text in found)])


def summary(results: Sequence[Seen]) -> str:
    bad = sum(bool(wrong(seen)) for seen in results)
    steps = [seen.steps for seen in results if seen.slow and seen.steps is not None]
    when = f"; named at step {min(steps)} to {max(steps)}, median {statistics.median(steps):g}" if steps else ""
    return f"{len(results)} runs, {bad} wrong{when}"


# --- on the hosts of a lab --------------------------------------------------------------------------------------------
def campaign(folder: Path, options: argparse.Namespace) -> bool:
    """True where something was wrong. ``folder`` gets the outputs of all commands."""
    results: list[Seen] = []
    with Labs() as labs:

        def play(run: Run, began: float) -> None:
            seen = Seen(run)
            try:
                with site_in(labs[run.hosts], folder / f"slow{run.number}") as site:
                    _watch(site, seen)
            except TROUBLE as error:
                seen.trouble.append(f"campaign: {error!r}")
            results.append(seen)
            print(line(seen, time.monotonic() - began), flush=True)

        runs = plan(options.seed, options.number, balanced=options.balanced)
        side_by_side(runs[options.begin :], play, options.jobs or 1)
    print("\n" + summary(results))
    return any(wrong(seen) for seen in results)


def _watch(site: Site, seen: Seen) -> None:
    """Until the node's record names a rank, then ask `status`: asking that all the time takes the ranks' processor."""
    run, job = seen.run, f"slow{seen.run.number}"
    hub = site.lab[0]
    assert hub.init is not None
    root = Path(f"/proc/{hub.init.pid}/root")
    name = submit(site, job, PROGRAM, run.phase, str(run.rank), str(run.extra_s), job, doctor={"stall": 600})
    record = root / f"root/.local/state/ddpctl/runs/{name}/{hub.name}/diagnosis.json"

    def steps() -> int:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((root / f"tmp/{job}.steps").read_text())
        return 0

    def named() -> bool:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return bool(json.loads(record.read_text())["slow"])
        return False

    try:
        until(lambda: steps() > 0, START_S, "no step was finished", pause=POLL_S)
        limit, end = GIVE_UP if run.extra_s else BALANCED, time.monotonic() + MOST_S
        while not named() and (seen.steps or 0) < limit and time.monotonic() < end:
            time.sleep(POLL_S)
            seen.steps = steps()
        seen.slow = site.status(job)["slow"]
    finally:
        site("kill", job).ok()
