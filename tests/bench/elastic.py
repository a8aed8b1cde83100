"""torch's own elastic agent loses a host: `torchrun --max_restarts=3` typed by hand on every host, and `ddpctl up` with
the same rendezvous. Does the training continue, when, and what is left running?"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.report import Row
from tests.bench.usage import DDPCTL
from tests.lab import Host, Lab, interpreters
from tests.lab.etcd import PORT as ETCD_PORT
from tests.lab.etcd import start_etcd

STORE_PORT = 29400
NODES = 3  # of the job; one host more runs etcd
BACK_S = 5.0  # how long a host that is cut off stays so, beyond the collectives' own limit
STEADY_STEPS = 10
START_S = 120.0
WAIT_S = 120.0  # for the first step after the loss, and for the end of those that do not continue
# Says on the host's disk which step it has done, and when: all hosts have the clock of this machine.
TRAIN = """
import datetime, os, sys, time
import torch, torch.distributed as dist
limit = float(sys.argv[1])
dist.init_process_group("gloo", **({"timeout": datetime.timedelta(seconds=limit)} if limit else {}))
step = torch.ones(1)
with open(os.path.expanduser("~/steps"), "a") as file:
    while True:
        dist.all_reduce(step.fill_(1))
        file.write("%.3f %d %s\\n" % (time.time(), step.item(), os.environ["TORCHELASTIC_RESTART_COUNT"]))
        file.flush()
        time.sleep(0.2)
"""


@dataclass(frozen=True)
class Loss:
    """One way to lose a host of a run that trains."""

    backend: str
    lost: str
    what: str
    limit: float = 20.0  # of a collective, in seconds; 0: torch's own, which is 30 minutes for gloo
    back: bool = False  # cut off only, and back a moment later
    later: float = 0.0  # steps count from then on: a loss that is noticed late lets them pass for a while


LOSSES = (
    Loss("c10d", "node2", "a worker, collectives without a limit", limit=0.0),
    Loss("c10d", "node2", "a worker"),
    Loss("c10d", "node2", "a worker, cut off for 25 s", back=True),
    Loss("c10d", "node0", "the host of the store"),
    Loss("etcd-v2", "node2", "a worker"),
    Loss("etcd-v2", "node0", "the host of rank 0"),
    Loss("etcd-v2", "node3", "the host of etcd", later=90.0),
)


def all_of(folder: Path) -> Sequence[Row]:
    rows = []
    for number, loss in enumerate(LOSSES):
        for name, way in WAYS.items():
            place = folder / f"{name}-{number}"
            place.mkdir()
            with Lab(NODES + 1) as lab:
                if loss.backend != "c10d":
                    start_etcd(lab[NODES])
                with way(lab, loss, place) as said:
                    row = _measure(lab, loss, name)
                    rows.append(replace(row, note=row.note + said()))
            print(rows[-1], file=sys.stderr, flush=True)  # the whole takes 25 minutes
    return rows


def _measure(lab: Lab, loss: Loss, way: str) -> Row:
    """From the loss to the first step of those that are left, which are asked through their disks and /proc."""
    nodes = lab.hosts[:NODES]
    _until(lambda: all(len(_steps(host)) >= STEADY_STEPS for host in nodes), START_S, "no training")
    victim = next(host for host in lab if host.name == loss.lost)
    left = [host for host in nodes if host is not victim]
    began = time.time()
    if loss.back:
        victim.cable(False)
        time.sleep(loss.limit + BACK_S)
        victim.cable(True)
    else:
        victim.power_off()
    time.sleep(1.0)  # what was on its way
    old = {host.name: len(_steps(host)) for host in left}

    def fresh() -> list[tuple[float, int, int]]:
        steps = [step for host in left for step in _steps(host)[old[host.name] :]]
        return [step for step in steps if step[0] >= began + loss.later]

    wanted = NODES if loss.back else len(left)
    ended: float | None = None
    while time.time() - began < WAIT_S and not any(world == wanted for _, world, _ in fresh()):
        if not any(_job(host) for host in left):
            ended = time.time() - began
            break
        time.sleep(0.2)
    steps = fresh()
    processes = sum(len(_job(host)) for host in nodes if host.running)
    name = f"{loss.backend}, {way}: loses {loss.what} ({loss.lost})"
    if steps:
        first = next((at for at, world, _ in steps if world == wanted), math.nan)
        worlds = ", ".join(str(world) for world in dict.fromkeys(world for _, world, _ in steps))
        return Row(name, first - began, "s", "", f"continues; world sizes from then on: {worlds}")
    if ended is not None:
        return Row(name, ended, "s", "", f"ends; {processes} processes are left")
    return Row(name, WAIT_S, "s", "", f"no step and no end in this time; {processes} processes are left")


@contextmanager
def by_hand(lab: Lab, loss: Loss, folder: Path) -> Iterator[Callable[[], str]]:
    """What torch's documentation says to type, on every node at once."""
    where = f"node{NODES}:{ETCD_PORT}" if loss.backend != "c10d" else f"node0:{STORE_PORT}"
    words = [str(interpreters.python213()), "-m", "torch.distributed.run", f"--nnodes=2:{NODES}", "--nproc_per_node=1"]
    words += ["--max_restarts=3", "--rdzv_id=hand", f"--rdzv_backend={loss.backend}", f"--rdzv_endpoint={where}"]
    line = f"cd /root && GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 {shlex.join([*words, 'train.py', str(loss.limit)])}"
    processes = []
    for host in lab.hosts[:NODES]:
        host.write("/root/train.py", TRAIN)
        argv = ["ssh", "-F", str(lab.ssh_config), host.name, line]
        with open(folder / host.name, "w") as log:
            processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    try:
        yield lambda: ""
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def by_ddpctl(lab: Lab, loss: Loss, folder: Path) -> Iterator[Callable[[], str]]:
    """The same as a job, started and left to itself. What ``status`` says of it comes out."""
    (folder / "train.py").write_text(TRAIN)
    job = {
        "script": "train.py",
        "args": [str(loss.limit)],
        "nodes": [host.name for host in lab.hosts[:NODES]],
        "rendezvous": loss.backend,
        "elastic": {"min_nodes": 2, "max_nodes": NODES, "max_restarts": 3},
        "env": {"OMP_NUM_THREADS": "1"},
        **({} if loss.backend == "c10d" else {"master": f"node{NODES}"}),
    }
    keys = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts), "jobs": {"train": job}}
    lab.inventory(folder / "inventory.yaml", defaults={"python": str(interpreters.python213())}, **keys)
    env = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}

    def ddpctl(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(DDPCTL), *args, "--json"], cwd=folder, env=env, capture_output=True, text=True)

    def said() -> str:
        status = json.loads(ddpctl("status", "train").stdout)
        cause = f", {status['cause']['host']}: {status['cause']['message']}" if status["cause"] else ""
        return f"; {status['state']}{cause}"

    done = ddpctl("up", "-d")
    if done.returncode:
        raise RuntimeError(f"ddpctl up exited with {done.returncode}: {done.stderr[-2000:]}")
    yield said


WAYS = {"torchrun": by_hand, "ddpctl": by_ddpctl}


def _steps(host: Host) -> list[tuple[float, int, int]]:
    """Time, world size and restart of every step that this host has done."""
    path = host.disk.upper / "root" / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(at), int(world), int(restart)) for at, world, restart in (line.split() for line in lines)]


def _job(host: Host) -> list[int]:
    """What a job has running there, and what ddpctl has for it: all but etcd and the ssh sessions."""
    found = [one for one in host.processes() if one.state not in "ZX" and one.argv and one.argv[0] != "etcd"]
    return [one.pid for one in found if "train.py" in " ".join(one.argv) or "ddpctl" in " ".join(one.argv)]


def _until(done: Callable[[], bool], seconds: float, trouble: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(trouble)
        time.sleep(0.2)
