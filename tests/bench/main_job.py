"""The main job: the cost of `up` over typing the commands by hand, how fast a kill is proven, how late a line comes."""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.report import Row, spread
from tests.bench.usage import DDPCTL, ddpctl
from tests.lab import Lab, interpreters

PAIRS = 9
HOSTS = 4
PORT = 29517
# Prints the moment of the first finished all-reduce on the machine's clock (all hosts share it).
FIRST_ALL_REDUCE = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
print("FIRST %.6f of rank %d" % (time.time(), dist.get_rank()), flush=True)  # no two lines are equal, and folded
dist.destroy_process_group()
"""
TICKER = """
import time
while True:
    print("TICK %.6f" % time.time(), flush=True)
    time.sleep(0.1)
"""


def overhead(folder: Path) -> list[Row]:
    """Time from the command to the first all-reduce on 4 hosts: `ddpctl up` against ssh and the launcher by hand."""
    with Lab(HOSTS) as lab:
        place = _project(lab, folder, FIRST_ALL_REDUCE)
        _by_ddpctl(place)  # the environment is looked at once, as on any cluster in use
        ways: list[Callable[[], float]] = [
            lambda: _by_hand(lab),
            lambda: _by_ddpctl(place),
            lambda: _by_ddpctl(place, forget=True),
        ]
        times: list[list[float]] = [[] for _ in ways]
        for turn in range(PAIRS):
            for number in range(len(ways)):  # each way comes first, second and last equally often
                way = (turn + number) % len(ways)
                times[way].append(ways[way]())
    by_hand, by_up, by_first_up = times
    what = f"`up` over the same launcher by hand, {HOSTS} hosts"
    return [
        _ratio(f"{what}, checked less than a minute ago", by_up, by_hand),
        _ratio(f"{what}, with a whole preflight", by_first_up, by_hand),
    ]


def _ratio(what: str, by_up: Sequence[float], by_hand: Sequence[float]) -> Row:
    ratios = [up / hand for up, hand in zip(by_up, by_hand, strict=True)]
    note = f"{PAIRS} pairs; up {spread(by_up)} s, by hand {spread(by_hand)} s"
    return Row(what, statistics.median(ratios), "x", "1.10", note)


def kill(folder: Path) -> list[Row]:
    """From `ddpctl kill` to its proof, for ranks that obey SIGTERM."""
    times = []
    with Lab(HOSTS) as lab:
        place = _project(lab, folder, TICKER)
        for _ in range(5):
            ddpctl("up", "-d", "--json", home=place, cwd=place / "project")
            _wait_for_output(place)
            used = ddpctl("kill", "train", "--json", home=place, cwd=place / "project")
            assert all(not node["survivors"] for node in json.loads(used.stdout)["nodes"])
            times.append(used.wall_s)
    return [
        Row(
            f"`kill` to proof, {HOSTS} hosts",
            statistics.median(times),
            "s",
            "2",
            f"the whole command; {spread(times)} s",
        )
    ]


def tail(folder: Path) -> list[Row]:
    """From the moment a rank prints to the moment the line comes out of `ddpctl tail -f`."""
    with Lab(HOSTS) as lab:
        place = _project(lab, folder, TICKER)
        ddpctl("up", "-d", "--json", home=place, cwd=place / "project")
        try:
            delays = _delays(place)
        finally:
            ddpctl("kill", "train", home=place, cwd=place / "project")
    return [
        Row(
            "latency of `tail -f`",
            statistics.median(delays),
            "s",
            "0.2",
            f"{HOSTS} ranks, 10 lines a second each; {spread(delays)} s",
        )
    ]


def _delays(place: Path) -> list[float]:
    delays: list[float] = []
    argv = [str(DDPCTL), "tail", "train", "-f", "-n", "0", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=place / "project", env=_env(place), text=True) as process:
        assert process.stdout is not None
        for row in process.stdout:
            now, text = time.time(), json.loads(row)["text"]
            if text.startswith("TICK "):
                delays.append(now - float(text.split()[1]))
            if len(delays) >= 400:
                break
        process.terminate()
    return delays[100:]  # the first lines were printed before the stream stood


def _project(lab: Lab, folder: Path, script: str) -> Path:
    """A home with a project in it: the script and an inventory."""
    place = folder / f"home-{time.monotonic_ns()}"
    project = place / "project"
    project.mkdir(parents=True)
    (project / "train.py").write_text(script)
    job = {
        "script": "train.py",
        "master_port": PORT,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    keys = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    python = {"python": str(interpreters.python213())}
    lab.inventory(project / "inventory.yaml", defaults=python, jobs={"train": job}, **keys)
    return place


def _env(place: Path) -> dict[str, str]:
    return {"HOME": str(place), "XDG_STATE_HOME": str(place / "state"), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}


def _by_ddpctl(place: Path, *, forget: bool = False) -> float:
    """``forget``: what the last preflight found counts no more."""
    if forget:
        shutil.rmtree(place / "state" / "ddpctl" / "controller" / "preflights")
    begun = time.time()
    used = ddpctl("up", home=place, cwd=place / "project")
    return _first(used.stdout) - begun


def _by_hand(lab: Lab) -> float:
    """What the blog post says to type, on all hosts at once."""
    for host in lab:
        host.write("/root/hand/train.py", FIRST_ALL_REDUCE)
    begun = time.time()
    processes = [_ssh(lab, host.name, rank) for rank, host in enumerate(lab)]
    texts = [process.communicate(timeout=300)[0] for process in processes]
    for process, text in zip(processes, texts, strict=True):
        if process.returncode:
            raise RuntimeError(f"by hand: {text[-2000:]}")
    return _first("".join(texts)) - begun


def _ssh(lab: Lab, host: str, node_rank: int) -> subprocess.Popen[str]:
    launcher = [str(interpreters.python213()), "-m", "torch.distributed.launch", "--nnodes", str(len(lab))]
    launcher += ["--node_rank", str(node_rank), "--nproc_per_node", "1", "--master_addr", lab[0].address]
    launcher += ["--master_port", str(PORT), "--use_env", "--", "train.py"]
    line = f"cd /root/hand && GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 {shlex.join(launcher)}"
    argv = ["ssh", "-F", str(lab.ssh_config), host, line]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)


def _first(text: str) -> float:
    """When the last of all ranks had its first all-reduce."""
    moments = [float(line.split("FIRST ")[1].split()[0]) for line in text.splitlines() if "FIRST " in line]
    if len(moments) != HOSTS:
        raise RuntimeError(f"{len(moments)} of {HOSTS} ranks came through: {text[-2000:]}")
    return max(moments)


def _wait_for_output(place: Path, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        used = ddpctl("tail", "train", "-n", "5", home=place, cwd=place / "project")
        if used.stdout.count("TICK") >= HOSTS:
            return
        time.sleep(0.5)
    raise RuntimeError("the ranks printed nothing")


def all_of(folder: Path) -> Sequence[Row]:
    return [*overhead(folder), *kill(folder), *tail(folder)]


if __name__ == "__main__":
    sys.exit("run: python -m tests.bench main")
