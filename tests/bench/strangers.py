"""A live run under a flood by a stranger: idle and new connections to all ports of ddpctl, from one or 200 addresses.

STRANGERS_S is the length of each flood in seconds. PyTorch's own ports are left out: their flood can end the attempt.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.report import Row, spread
from tests.e2e.programs import MEETING
from tests.e2e.site import Site, named, ranks
from tests.lab import Host, Lab, interpreters
from tests.lab.command import Ddpctl
from tests.lab.flood import flood_command

FLOOD_S = float(os.environ.get("STRANGERS_S", "600"))
SETTLE_S, LOOK_S = 15.0, 2.0
IDLE, RATE = 10_000, 5000  # idle connections to each port; new connections a second to all ports together
ADDRESSES = 200
RUNS = "/root/.local/state/ddpctl/runs"
SAVES = MEETING + "for step in range(10**9):\n    stay_together()\n    step % 50 or save(f'step_{step:07d}', '{}')\n"
SPLICE_F_NONBLOCK = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def all_of(folder: Path) -> Sequence[Row]:
    """A flood from the stranger's address, then a flood from many addresses; each under a run of its own."""
    with Lab(3) as lab:
        return [*_measure(lab, folder / "one", []), *_measure(lab, folder / "many", _add_addresses(lab[2]))]


def _measure(lab: Lab, folder: Path, sources: Sequence[str]) -> list[Row]:
    hosts, stranger = lab.hosts[:2], lab[2]
    folder.mkdir()
    site = Site(lab, Ddpctl(folder), folder / "site", str(interpreters.make_stand_in())).only(0, 1)
    job = site.job("flooded", SAVES, restarts=3, checkpoint={"replicas": 2})
    run = site.up(job)["run"]
    site.wait_for_output(job, "attempt 0 of node0.*attempt 0 of node0")
    time.sleep(SETTLE_S)
    ends = [f"{host.fabric_address}:{port}" for host in hosts for port in _ports(host)]
    started = [_started(host, run) for host in hosts]
    memory, logs = [_memory_mb(host) for host in hosts], [_recorded_bytes(host, run) for host in hosts]
    quiet = [LeaseWatch(host) for host in hosts]
    time.sleep(max(SETTLE_S, FLOOD_S / 10))
    before = [watch.end() for watch in quiet]
    watches = [LeaseWatch(host) for host in hosts]
    rate = RATE / len(ends)
    floods = [stranger.popen(flood_command([end], IDLE, rate, int(rate * FLOOD_S), sources)) for end in ends]
    most, loads = list(memory), []
    while any(flood.poll() is None for flood in floods):
        most = [max(pair) for pair in zip(most, map(_memory_mb, hosts), strict=True)]
        loads.append(os.getloadavg()[0])
        time.sleep(LOOK_S)
    said = [flood.communicate()[0] for flood in floods]
    during = [watch.end() for watch in watches]
    grown = [_recorded_bytes(host, run) - then for host, then in zip(hosts, logs, strict=True)]
    lost = sum(len(then - _started(host, run)) for host, then in zip(hosts, started, strict=True))
    status, behind = site.status(job), _copies_behind(site, job, *hosts)
    site("kill", job).ok()
    made, established, seconds = (sum(values) for values in zip(*map(_report, said), strict=True))
    seconds /= len(said)
    new = (made - IDLE * len(ends)) / seconds
    how = f"{len(ends)} ports, {IDLE:,} idle connections to each, {new:,.0f} new a second for {seconds:.0f} s; "
    how += f"{established:,.0f} of {made:,.0f} established; load {spread(loads)}"
    name = f"{len(sources)} addresses" if sources else "one address"
    closed = sum(one["count"] for one in status["strangers"])
    rows = [
        Row(f"{name}: ranks lost", lost, f"of {sum(map(len, started))}", "0", how),
        Row(f"{name}: attempt", status["attempt"], "", "1", f"the run is {status['state']}"),
        Row(f"{name}: connections that ddpctl counted", f"{closed:,}", "", "", "`status --json`"),
        Row(f"{name}: checkpoints of node0 without a copy", behind, "", "", "right after the flood; a save in 10 s"),
    ]
    for nth, host in enumerate(hosts):
        title = f"{name}, {host.name}"
        rows += [
            _lease_row(title, during[nth], before[nth]),
            Row(f"{title}: memory", most[nth], "MB", "", f"resident, all processes; {memory[nth]:.1f} MB before"),
            Row(f"{title}: logs and records", grown[nth] / 1024, "KB", "", "growth from before to after"),
        ]
    return rows


def _lease_row(title: str, during: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]]) -> Row:
    (pauses, rests), (quiet, quiet_rests) = zip(*during, strict=True), zip(*before, strict=True)
    note = f"{len(pauses)} renewals, median {statistics.median(pauses):.2f} s, longest {max(pauses):.2f} s; "
    note += f"least rest of a lease {min(rests):.1f} s. Before: median {statistics.median(quiet):.2f} s, "
    note += f"99th percentile {_percentile(quiet):.2f} s, least rest {min(quiet_rests):.1f} s"
    return Row(f"{title}: pause between renewals of the lease, 99th percentile", _percentile(pauses), "s", "", note)


def _percentile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _report(said: str) -> tuple[float, float, float]:
    match = re.search(r"made (\d+) established (\d+) seconds ([\d.]+)", said)
    assert match, said
    return float(match[1]), float(match[2]), float(match[3])


def _add_addresses(host: Host) -> list[str]:
    """More addresses of the host, in the network of its own address."""
    first, second, _, _ = host.fabric_address.split(".")
    third = int(host.fabric_address.split(".")[2])
    addresses = [f"{first}.{second}.{third + 1}.{last}" for last in range(1, ADDRESSES + 1)]
    host.run(["ip", "-batch", "-"], stdin="".join(f"address add {address}/22 dev eth0\n" for address in addresses))
    return addresses


def _ports(host: Host) -> list[int]:
    """The ports of ddpctl's own processes."""
    lines = [line.split() for line in host.run("ss -ltnpH").stdout.splitlines()]
    return sorted(int(words[3].rpartition(":")[2]) for words in lines if '"ddpctl-' in words[-1])


def _started(host: Host, run: str) -> set[tuple[int, int]]:
    return {(rank.pid, rank.start) for rank in ranks(host, run).values()}


def _copies_behind(site: Site, job: str, writer: Host, other: Host) -> int:
    """The checkpoints of the writer that are newer than the newest copy on the other host."""
    saves = writer.run(["ls", f"{site.checkpoints(job)}/{writer.name}"]).stdout.split()
    copies = other.run(["ls", f"{site.checkpoints(job)}/{writer.name}/.ddpctl"]).stdout.split()
    newest = max((name for name in copies if name.startswith("step_")), default="")
    return sum(f"{name}.json" > newest for name in saves)


def _memory_mb(host: Host) -> float:
    """The resident memory of ddpctl's processes."""
    found = 0
    for folder in host.proc.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:  # it has ended
            continue
        if status.startswith("Name:\tddpctl-"):
            found += int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
    return found / 1024


def _recorded_bytes(host: Host, run: str) -> int:
    assert host.init
    root = Path("/proc", str(host.init.pid), f"root{RUNS}/{run}/{host.name}")
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


class LeaseWatch:
    """Watches the renewals of a host's lease, without a part in them: tee(2) leaves the pipe's bytes for the supervisor
    and the guardian, which read about once a second.
    """

    def __init__(self, host: Host) -> None:
        agent, supervisor = named(host, "ddpctl-agent"), named(host, "ddpctl-super")
        assert agent is not None
        assert supervisor is not None
        written, read = _pipes(host, agent.pid, os.O_WRONLY), _pipes(host, supervisor.pid, os.O_RDONLY)
        self._files = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for pipe, path in read.items() if pipe in written]
        assert len(self._files) == 2, "the supervisor's pipe and the guardian's"
        self._until, self._renewed = 0.0, 0.0
        self._found: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> Sequence[tuple[float, float]]:
        """Of each renewal: the seconds since the renewal before, and the seconds that the lease still had."""
        self._over.set()
        self._thread.join()
        for file in self._files:
            os.close(file)
        return self._found

    def _watch(self) -> None:
        look = select.epoll()
        for file in self._files:
            look.register(file, select.EPOLLIN | select.EPOLLET)
        copy, into = os.pipe()
        while not self._over.is_set():
            for file, _ in look.poll(0.5):
                size = _LIBC.tee(file, into, 1 << 16, SPLICE_F_NONBLOCK)
                if size > 0:
                    self._note(max(map(float, os.read(copy, size).split())))
        for end in (copy, into, look):
            os.close(end.fileno() if isinstance(end, select.epoll) else end)

    def _note(self, until: float) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if until > self._until:
            if self._renewed:
                self._found.append((now - self._renewed, self._until - now))
            self._until, self._renewed = until, now


def _pipes(host: Host, pid: int, mode: int) -> Mapping[str, Any]:
    """The pipes that a process has open in this mode: name of the pipe, and a path that opens it."""
    found = {}
    for path in (host.proc / str(pid) / "fd").iterdir():
        flags = re.findall(r"flags:\s+(\d+)", (host.proc / str(pid) / "fdinfo" / path.name).read_text())[0]
        if os.readlink(path).startswith("pipe:") and int(flags, 8) & os.O_ACCMODE == mode:
            found[os.readlink(path)] = path
    return found
