"""What the benchmarks measured, and how it is judged. Pure.

Scaling: the same work on more and more processes. Speed-up is samples per second by those of one process, efficiency is
speed-up by the number of processes. Network: one all_reduce between every pair of nodes, and one over all of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.limits import LATE_HOST_FACTOR, LEAST_COMPARED, SLOW_HOST_SHARE, WARM_UP_LINES
from ddpctl.spec.metrics import COMM_SHARE, SAMPLES, Values, of_job
from ddpctl_worker.wire.contract import SCHEMA


@dataclass(frozen=True)
class Rank:
    """A rank with its host, and the share of its time in communication where it said so."""

    host: str
    rank: int
    comm_share: float | None
    samples_per_s: float


@dataclass(frozen=True)
class Measured:
    """One run of a job: samples per second of the whole job, its mean share of time in communication.

    ``slowest`` is the rank that the others wait for; None where that cannot be said.
    """

    samples_per_s: float
    comm_share: float | None = None
    slowest: Rank | None = None
    devices: int | None = None  # of one process, where it drives several (DataParallel)


def measured(lines: Mapping[tuple[str, str], Sequence[Values]]) -> Measured | None:
    """The figures from the metrics of a run, by host and rank ("" for a rank unknown); None without samples per second.

    A rank's value is the mean of its lines after the warm-up.
    """
    counted = {who: _mean(values) for who, values in lines.items()}
    counted = {who: values for who, values in counted.items() if SAMPLES in values}
    if not counted:
        return None
    total = of_job(list(counted.values()))
    devices = total.get("devices")
    ranks = [
        Rank(host, int(rank), values.get(COMM_SHARE), values[SAMPLES])
        for (host, rank), values in counted.items()
        if rank
    ]
    return Measured(
        samples_per_s=total[SAMPLES],
        comm_share=total.get(COMM_SHARE),
        slowest=_slowest(ranks),
        devices=None if devices is None else round(devices),
    )


def _mean(lines: Sequence[Values]) -> dict[str, float]:
    """The mean of each value over the lines that hold it."""
    kept = lines[WARM_UP_LINES:] or lines
    names = {name for values in kept for name in values}
    return {name: statistics.fmean(values[name] for values in kept if name in values) for name in names}


def _slowest(ranks: Sequence[Rank]) -> Rank | None:
    """The ranks of a step end it together: the one that computes longest is the one that waits least for the others."""
    if len(ranks) < 2:
        return None
    if all(rank.comm_share is not None for rank in ranks):
        return min(ranks, key=lambda rank: rank.comm_share or 0.0)
    return min(ranks, key=lambda rank: rank.samples_per_s)


@dataclass(frozen=True)
class ScalingRow:
    """One size. ``parallel`` is ``ddp`` (what the job does by itself) or ``dp`` (DataParallel in one process)."""

    nodes: int
    processes: int
    run: str
    figures: Measured
    parallel: str = "ddp"

    @property
    def devices(self) -> int:
        """How many devices compute: the ideal speed-up."""
        return self.figures.devices or self.processes if self.parallel == "dp" else self.processes


@dataclass(frozen=True)
class ScalingReport:
    """All sizes, the smallest first; the first one is the base of the speed-up."""

    job: str
    cluster: str
    rows: tuple[ScalingRow, ...]

    def speed_up(self, row: ScalingRow) -> float:
        """How many times the samples per second of one process."""
        base = self.rows[0]
        return row.figures.samples_per_s / (base.figures.samples_per_s / base.processes)

    def efficiency(self, row: ScalingRow) -> float:
        return self.speed_up(row) / row.devices

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "benchmark": "scaling", **vars(self), "rows": [self._row(row) for row in self.rows]}

    def _row(self, row: ScalingRow) -> dict[str, Any]:
        figures = row.figures
        return {
            "parallel": row.parallel,
            "nodes": row.nodes,
            "processes": row.processes,
            "devices": row.devices,
            "run": row.run,
            "samples_per_s": figures.samples_per_s,
            "speed_up": self.speed_up(row),
            "efficiency": self.efficiency(row),
            "comm_share": figures.comm_share,
            "slowest": asdict(figures.slowest) if figures.slowest else None,
        }


# --- the network -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduce:
    """One all_reduce between these hosts: ``size`` bytes took ``time_us``; bus bandwidth in GB/s (10^9 bytes).

    ``latency_us`` is the time of a few bytes, where that was measured too.
    """

    hosts: tuple[str, ...]
    size: int
    time_us: float
    busbw_gb_s: float
    latency_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "hosts": list(self.hosts),
            "bytes": self.size,
            "time_us": self.time_us,
            "busbw_gb_s": self.busbw_gb_s,
            "latency_us": self.latency_us,
        }


@dataclass(frozen=True)
class Slow:
    """A host, or a pair of hosts, that is slow where the others are not; ``why`` says by how much."""

    hosts: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class NetworkReport:
    """``pairs`` are those of two hosts each, ``whole`` is every message size over all hosts."""

    job: str
    cluster: str
    backend: str
    run: str
    hosts: tuple[str, ...]
    pairs: tuple[Reduce, ...]
    whole: tuple[Reduce, ...]

    @property
    def slow(self) -> tuple[Slow, ...]:
        """The slow hosts, then the slow pairs of hosts that are not slow themselves."""
        hosts = slow_hosts(self.pairs)
        known = {host for one in hosts for host in one.hosts}
        late = (one for one in late_hosts(self.pairs) if not known & set(one.hosts))
        return (*hosts, *late, *slow_pairs(self.pairs, known))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "benchmark": "network",
            **vars(self),
            "hosts": list(self.hosts),
            "pairs": [one.to_json() for one in self.pairs],
            "whole": [one.to_json() for one in self.whole],
            "slow": [asdict(one) for one in self.slow],
        }


def network_report(lines: Iterable[str], *, job: str, cluster: str, run: str, hosts: Sequence[str]) -> NetworkReport:
    """The report from what worker/jobs/allreduce_bench.py prints with ``--pairs``; its docstring says what that is.

    Raises:
        DdpctlError: the results are not there.
    """
    results = [found for line in lines if line.startswith("{") and (found := _result(line))]
    pairs = [found for found in results if "pair" in found]
    whole = [found for found in results if found.get("op") == "all_reduce"]
    if not pairs or not whole:
        raise DdpctlError(f"{run} ended without results", hint=f"its output is kept: ddpctl tail {run}")
    everyone = tuple(hosts)
    return NetworkReport(
        job=job,
        cluster=cluster,
        backend=str(whole[0]["backend"]),
        run=run,
        hosts=everyone,
        pairs=tuple(_reduce(tuple(found["pair"]), found) for found in pairs),
        whole=tuple(_reduce(everyone, found) for found in whole),
    )


def _result(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _reduce(hosts: tuple[str, ...], found: Mapping[str, Any]) -> Reduce:
    latency = found.get("latency_us")
    figures = int(found["bytes"]), float(found["time_us"]), float(found["busbw_gb_s"])
    return Reduce(hosts, *figures, None if latency is None else float(latency))


def slow_hosts(pairs: Sequence[Reduce]) -> tuple[Slow, ...]:
    """Hosts whose best pair is under half of the median of all hosts' best: every link of such a host is slow."""
    best = _by_host(pairs, lambda one: one.busbw_gb_s, max)
    if len(best) < LEAST_COMPARED:
        return ()  # two hosts have one link: nothing to compare it with
    middle = statistics.median(best.values())
    return tuple(
        Slow((host,), f"{best[host]:.3g} GB/s at best, the others {middle:.3g}")
        for host in sorted(best, key=lambda host: best[host])
        if best[host] < SLOW_HOST_SHARE * middle
    )


def late_hosts(pairs: Sequence[Reduce]) -> tuple[Slow, ...]:
    """Hosts whose quickest all_reduce of a few bytes takes several times that of the others."""
    best = _by_host([one for one in pairs if one.latency_us is not None], lambda one: one.latency_us, min)
    if len(best) < LEAST_COMPARED:
        return ()
    middle = statistics.median(best.values())
    return tuple(
        Slow((host,), f"{best[host]:.0f} us at best for a small all_reduce, the others {middle:.0f}")
        for host in sorted(best, key=lambda host: -best[host])
        if best[host] > LATE_HOST_FACTOR * middle
    )


def slow_pairs(pairs: Sequence[Reduce], known: set[str]) -> tuple[Slow, ...]:
    """Pairs of hosts, neither of them ``known`` to be slow, that get under half of what both get with others."""
    best = _by_host(pairs, lambda one: one.busbw_gb_s, max)
    found = []
    for one in sorted(pairs, key=lambda one: one.busbw_gb_s):
        expected = min(best[host] for host in one.hosts)
        if one.busbw_gb_s < SLOW_HOST_SHARE * expected and not known & set(one.hosts):
            found.append(Slow(one.hosts, f"{one.busbw_gb_s:.3g} GB/s, each of them {expected:.3g} or more with others"))
    return tuple(found)


def _by_host(pairs: Sequence[Reduce], value: Any, choose: Any) -> dict[str, float]:
    """The best value of each host over its pairs."""
    hosts = dict.fromkeys(host for one in pairs for host in one.hosts)
    return {host: choose(value(one) for one in pairs if host in one.hosts) for host in hosts}


def node_counts(hosts: int) -> tuple[int, ...]:
    """1, 2, 4 ... and all of them."""
    powers = [2**power for power in range(hosts.bit_length()) if 2**power < hosts]
    return (*powers, hosts)
