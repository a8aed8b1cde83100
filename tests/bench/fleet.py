"""The cost of many hosts to the controller: `ddpctl status` on 64 hosts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.bench.report import Row, spread
from tests.bench.usage import ddpctl
from tests.lab import Lab

HOSTS = 64
SLEEPER = "import time\ntime.sleep(600)\n"


def all_of(folder: Path) -> Sequence[Row]:
    """CPU and memory of the whole command divided by the hosts, and the cost of another host (64 against 8)."""
    with Lab(HOSTS) as lab:
        many = inventory(lab, folder / "many", HOSTS)
        few = inventory(lab, folder / "few", 8)
        for place in (few, many):
            ddpctl("ps", home=place, cwd=place)  # the worker is sent once
        of_many = [ddpctl("ps", "--all", "--json", home=many, cwd=many) for _ in range(5)]
        of_few = [ddpctl("ps", "--all", "--json", home=few, cwd=few) for _ in range(5)]
    cpu = [used.cpu_s * 1000 / HOSTS for used in of_many]
    memory = statistics.median(used.peak_mb for used in of_many)
    more_cpu = (statistics.median(u.cpu_s for u in of_many) - statistics.median(u.cpu_s for u in of_few)) * 1000
    more_memory = memory - statistics.median(used.peak_mb for used in of_few)
    wall = [used.wall_s for used in of_many]
    extra = HOSTS - 8
    return [
        Row(
            f"controller CPU per host, {HOSTS} hosts",
            statistics.median(cpu),
            "ms",
            "12",
            f"whole command; {spread(cpu)} ms",
        ),
        Row("controller CPU for one more host", more_cpu / extra, "ms", "12", "64 hosts against 8"),
        Row(
            "controller memory for one more host",
            more_memory / extra,
            "MB",
            "1",
            f"64 hosts against 8; peak {memory:.0f} MB",
        ),
        Row(
            "wall time of the command",
            statistics.median(wall),
            "s",
            "",
            f"64 workers on this machine's 2 cores; {spread(wall)} s",
        ),
    ]


def inventory(lab: Lab, place: Path, count: int) -> Path:
    """A folder with an inventory of the lab's first ``count`` hosts."""
    place.mkdir()
    names = [host.name for host in lab][:count]
    text = f"cluster: bench\nssh_config: {lab.ssh_config}\nknown_hosts: {lab.known_hosts}\n"
    text += "defaults: {python: /usr/bin/python3}\nhosts: [" + ", ".join(names) + "]\n"
    (place / "inventory.yaml").write_text(text)
    return place
