"""A big file and a folder of data onto many hosts behind slow links: ddpctl's chain against scp and clush."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ddpctl.environment.spread import bring_files
from ddpctl.transport.fleet import open_fleet
from tests.bench.report import Row, spread
from tests.lab import Lab
from tests.lab.process import call
from tests.lab_environment.scene import BASE, MB, holds, inventory, noise

RATE = "200mbit"
HOSTS = 8
SIZE = 192 * MB  # a CPU wheel of torch
GROWTH = (2, 4, 8, 16)
GROWTH_SIZE = 64 * MB
DATA_SIZE = int(os.environ.get("BENCH_DATA_MB", "1000")) * MB  # half of it in small files
SMALL_SIZE = 100_000  # a small file
LARGE_FILES = 4


def all_of(folder: Path) -> Sequence[Row]:
    return [*against_copies(folder), *growth(folder), *data_folder(folder)]


@contextmanager
def slow_lab(count: int) -> Iterator[Lab]:
    """Every host's link and this machine's own are capped, both ways.

    The burst holds a whole segment of the kernel's offloading (64 KB and its headers): cutting every segment into
    packets would take more of two cores than all of the hosts' work.
    """
    with Lab(count) as lab:
        shape = ["root", "tbf", "rate", RATE, "burst", "128kb", "latency", "50ms"]
        call(["tc", "qdisc", "replace", "dev", lab.claim.device, *shape])
        for port in ("uplink", *(cable.port for host in lab for cable in host.cables)):
            lab.switch.call(["tc", "qdisc", "replace", "dev", port, *shape])
        for host in lab:
            host.run(["tc", "qdisc", "replace", "dev", "eth0", *shape])
        yield lab


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def by_ddpctl(lab: Lab, folder: Path, size: int, seed: int) -> tuple[float, float]:
    """Seconds until every host has verified it, and how many copies left this machine."""
    where, source = inventory(lab, folder), noise(size, seed)
    names = [host.name for host in where.hosts]
    fleet = open_fleet(where)
    try:
        fleet.map(lambda transport: transport.call("echo"), names)  # connected, the worker is there
        begun = time.monotonic()
        delivery = bring_files("bench", [source], fleet, lambda _: None, names)
        seconds = time.monotonic() - begun
    finally:
        fleet.close()
    assert delivery.ok, delivery.errors
    assert all(holds(lab, index, source) for index in range(len(lab)))
    for host in lab:
        host.run(f"rm -rf {BASE}/store")
    return seconds, delivery.traffic.sent_by_controller / size


def against_copies(folder: Path) -> Iterator[Row]:
    with slow_lab(HOSTS) as lab:
        path = folder / "file"
        path.write_bytes(noise(SIZE, 1).data)
        config = ["-F", str(lab.ssh_config), "-q"]
        one = timed(lambda: subprocess.run(["scp", *config, path, "node0:/tmp/one"], check=True))
        runs = [by_ddpctl(lab, folder, SIZE, seed) for seed in (2, 3, 4)]
        seconds, copies = statistics.median(run[0] for run in runs), max(run[1] for run in runs)

        def parallel_scp() -> None:
            copies = [subprocess.Popen(["scp", *config, path, f"node{n}:/tmp/many"]) for n in range(HOSTS)]
            assert [copy.wait() for copy in copies] == [0] * HOSTS

        scp = timed(parallel_scp)
        what = f"{SIZE // MB} MB to {HOSTS} hosts, every link {RATE}"
        yield Row("one copy by scp", one, "s", note=f"{SIZE // MB} MB to one host over the same link")
        yield Row("ddpctl, all hosts verified", seconds, "s", note=f"{what}; {spread([run[0] for run in runs])}")
        yield Row("ddpctl / one copy", seconds / one, "x", "1.3 or less", what)
        yield Row("sent by the controller", copies, "copies", "under 1.2", what)
        yield Row("parallel scp / one copy", scp / one, "x", note=what)
        if shutil.which("clush"):
            nodes = ",".join(host.name for host in lab)
            command = [
                "clush",
                "-S",
                "-w",
                nodes,
                "-o",
                f"-F {lab.ssh_config}",
                "--copy",
                str(path),
                "--dest",
                "/tmp/clush",
            ]
            yield Row(
                "clush --copy / one copy", timed(lambda: subprocess.run(command, check=True)) / one, "x", note=what
            )


def growth(folder: Path) -> Iterator[Row]:
    base = 0.0
    for count in GROWTH:
        with slow_lab(count) as lab:
            seconds, _ = by_ddpctl(lab, folder, GROWTH_SIZE, count)
        base = base or seconds
        note = f"{GROWTH_SIZE // MB} MB, every link {RATE}; {seconds / base:.2f}x of {GROWTH[0]} hosts"
        yield Row(f"ddpctl, {count} hosts", seconds, "s", "close to flat", note)


def data_folder(folder: Path) -> Iterator[Row]:
    """Push a folder of data without a break; push another, kill the push in the middle, and resume it.

    The disks of all hosts share 70 % of this machine's memory, so a host holds a single folder at any time. While a
    host unpacks small files it holds them twice: 1 GB needs 1.5 GB on each host.
    """
    files = folder / "data"
    whole = folder / "whole"
    with slow_lab(HOSTS) as lab:
        inventory(lab, folder)
        whole.write_bytes(noise(DATA_SIZE, 2).data)
        one = timed(
            lambda: subprocess.run(["scp", "-F", str(lab.ssh_config), "-q", whole, "node0:/tmp/one"], check=True)
        )
        whole.unlink()
        for host in lab:
            host.run("rm -f /tmp/one")
        what = f"{DATA_SIZE // MB} MB in {DATA_SIZE // 2 // SMALL_SIZE + LARGE_FILES} files to {HOSTS} hosts, {RATE}"
        write_data(files, 1, size=MB)
        push(folder, files)  # the worker is there
        write_data(files, 3)
        documents: list[dict[str, float]] = []
        straight = timed(lambda: documents.append(push(folder, files)))
        yield Row("one copy by scp", one, "s", note=f"{DATA_SIZE // MB} MB to one host over the same link")
        yield Row("push --data, all hosts verified", straight, "s", note=what)
        yield Row("push --data / one copy", straight / one, "x", "1.3 or less", what)
        yield Row("sent by the controller", documents[0]["sent_by_controller"] / DATA_SIZE, "copies", note=what)
        yield Row("the same again", timed(lambda: push(folder, files)), "s", note="sends nothing")
        for host in lab:
            host.run(f"rm -rf {BASE}/data {BASE}/store")
        write_data(files, 5)
        broken = timed(lambda: push(folder, files, kill_after=straight / 2))
        resumed = timed(lambda: documents.append(push(folder, files)))
        reused = documents[1]["reused"] / HOSTS / DATA_SIZE
        yield Row("broken off and resumed / one copy", (broken + resumed) / one, "x", note=f"{reused:.0%} was there")


def write_data(folder: Path, seed: int, size: int = DATA_SIZE) -> None:
    """Replace the folder: half of the size in large files, half in small files."""
    shutil.rmtree(folder, ignore_errors=True)
    data = memoryview(noise(size, seed).data)
    half = size // 2
    large, small = half // LARGE_FILES, half // SMALL_SIZE
    (folder / "small").mkdir(parents=True)
    for number in range(LARGE_FILES):
        (folder / f"large{number}").write_bytes(data[number * large : (number + 1) * large])
    for number in range(small):
        begin = half + number * SMALL_SIZE
        (folder / "small" / f"{number}").write_bytes(data[begin : begin + SMALL_SIZE])


def push(folder: Path, files: Path, kill_after: float | None = None) -> dict[str, float]:
    """Run `ddpctl push --data`; return the bytes of its document. ``kill_after``: seconds until its SIGKILL."""
    command = [sys.executable, "-m", "ddpctl", "push", str(folder / "inventory.yaml"), "--data", str(files), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=kill_after, check=kill_after is None)
    except subprocess.TimeoutExpired:
        return {}
    found: dict[str, float] = json.loads(done.stdout)["bytes"]
    return found
