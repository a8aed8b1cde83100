"""A full preflight of 16 and 64 hosts, beside pdsh and clush that only run `hostname` on the same hosts."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.fleet import inventory
from tests.bench.report import Row, spread
from tests.bench.usage import DDPCTL, Usage, ddpctl, run
from tests.lab import Lab

FEW, MANY = 16, 64
RUNS = 5
_TABLE = Path("/proc/sys/net/ipv4/neigh/default")
NEIGHBOURS = {_TABLE / "gc_thresh3": 32768, _TABLE / "gc_thresh2": 16384, _TABLE / "gc_thresh1": 8192}
FAN_OUT = 64


def all_of(folder: Path) -> Sequence[Row]:
    """Wall time, the controller's CPU, and the growth from 16 hosts to 64; each tool in turn, all in the same lab."""
    rows: list[Row] = []
    walls: dict[int, float] = {}
    cpus: dict[int, float] = {}
    with room_for_neighbours(), Lab(MANY) as lab:
        for count in (FEW, MANY):
            place = inventory(lab, folder / str(count), count)
            _preflight(place)  # sends the worker, tries `import torch`, and remembers both
            full = [_preflight(place) for _ in range(RUNS)]
            cpu = [used.cpu_s * 1000 / count for used in full]
            cpus[count] = statistics.median(cpu)
            walls[count] = statistics.median(used.wall_s for used in full)
            rows += [
                Row(f"preflight, {count} hosts, wall", walls[count], "s", "", _note(full)),
                Row(
                    f"preflight, {count} hosts, controller CPU per host",
                    cpus[count],
                    "ms",
                    "12",
                    spread(cpu),
                ),
            ]
            rows += _others(lab, count)
    more = (cpus[MANY] * MANY - cpus[FEW] * FEW) / (MANY - FEW)
    rows.append(Row("controller CPU for one more host", more, "ms", "12", f"{MANY} hosts against {FEW}"))
    links = {count: count * (count - 1) for count in walls}
    growth = (walls[MANY] / links[MANY]) / (walls[FEW] / links[FEW])
    rows.append(
        Row(
            "wall time per link, 64 hosts against 16",
            growth,
            "x",
            "1 or less",
            f"{links[MANY]} links against {links[FEW]}",
        )
    )
    return rows


@contextmanager
def room_for_neighbours() -> Iterator[None]:
    """All hosts of a lab share this kernel's neighbour table, and 64 hosts need 64 x 63 entries: the usual 1024
    would make them lose each other, as no 64 machines would."""
    before = {path: path.read_text() for path in NEIGHBOURS}
    for path, limit in NEIGHBOURS.items():
        path.write_text(str(max(limit, int(before[path]))))
    try:
        yield
    finally:
        for path, value in reversed(before.items()):
            path.write_text(value)


def _preflight(place: Path) -> Usage:
    """With the mesh, without --deep; a finding would spoil the number."""
    used = ddpctl("preflight", "--json", home=place, cwd=place)
    report = json.loads(used.stdout)
    assert report["ok"], [finding for finding in report["findings"] if finding["severity"] == "error"]
    return used


def _note(full: Sequence[Usage]) -> str:
    return f"{spread([used.wall_s for used in full])} s; the hosts share this machine's {os.cpu_count()} cores"


def _others(lab: Lab, count: int) -> list[Row]:
    """`hostname` by the usual tools, as parallel as they can."""
    nodes = f"node[0-{count - 1}]"
    config = f"-F {lab.ssh_config}"
    tools = {
        "pdsh": ["pdsh", "-R", "ssh", "-f", str(FAN_OUT), "-w", nodes, "hostname"],
        "clush": [str(DDPCTL.with_name("clush")), "-f", str(FAN_OUT), "-o", config, "-w", nodes, "hostname"],
    }
    rows = []
    for name, command in tools.items():
        if shutil.which(command[0]) is None:
            continue
        env = {**os.environ, "PDSH_SSH_ARGS_APPEND": config}
        used = [run(command, env=env) for _ in range(RUNS)]
        assert all(one.returncode == 0 and one.stdout.count("\n") == count for one in used), name
        cpu = statistics.median(one.cpu_s * 1000 / count for one in used)
        wall = statistics.median(one.wall_s for one in used)
        rows.append(Row(f"{name} hostname, {count} hosts, wall", wall, "s", "", f"{cpu:.1f} ms of CPU per host"))
    return rows
