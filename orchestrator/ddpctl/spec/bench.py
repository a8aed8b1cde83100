"""The results of the benchmarks, and their evaluation. Pure.

Scaling: the same work on more and more processes. Speed-up = samples per second / samples per second of one process.
Efficiency = speed-up / number of processes. Network: an all_reduce between every pair of nodes, and over all nodes.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter
from typing_extensions import NotRequired, TypedDict

from ddpctl.errors import DdpctlError
from ddpctl.spec.bounds import Count, Label, Name, Rate
from ddpctl.spec.limits import LATE_HOST_FACTOR, LEAST_COMPARED, SLOW_HOST_SHARE, WARM_UP_LINES
from ddpctl.spec.metrics import COMM_SHARE, SAMPLES, Values, job_metrics
from ddpctl_worker.wire.contract import SCHEMA

R = TypeVar("R")


@dataclass(frozen=True)
class Rank:
    """A rank, its host, and its share of time in communication (``None``: the rank did not write it)."""

    host: str
    rank: int
    comm_share: float | None
    samples_per_s: float


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run: samples per second of the whole job, and the mean share of time in communication.

    ``slowest``: the rank for which the other ranks wait; ``None``: not known.
    """

    samples_per_s: float
    comm_share: float | None = None
    slowest: Rank | None = None
    devices: int | None = None  # devices of a single process that drives several (DataParallel)


def measure_run(lines: Mapping[tuple[str, str], Sequence[Values]]) -> RunFigures | None:
    """Return the figures of a run from its metrics; ``None``: no rank wrote samples per second.

    ``lines``: (host, rank) -> its metrics; the rank is "" if it is not known. A rank's value is the mean over its lines
    after the warm-up.
    """
    counted = {rank: _mean(values) for rank, values in lines.items()}
    counted = {rank: values for rank, values in counted.items() if SAMPLES in values}
    if not counted:
        return None
    total = job_metrics(list(counted.values()))
    devices = total.get("devices")
    ranks = [
        Rank(host, int(rank), values.get(COMM_SHARE), values[SAMPLES])
        for (host, rank), values in counted.items()
        if rank
    ]
    return RunFigures(
        samples_per_s=total[SAMPLES],
        comm_share=total.get(COMM_SHARE),
        slowest=_slowest(ranks),
        devices=None if devices is None else round(devices),
    )


def _mean(lines: Sequence[Values]) -> dict[str, float]:
    """Return the mean of each value over the lines after the warm-up that have the value."""
    kept = lines[WARM_UP_LINES:] or lines
    names = {name for values in kept for name in values}
    return {name: statistics.fmean(values[name] for values in kept if name in values) for name in names}


def _slowest(ranks: Sequence[Rank]) -> Rank | None:
    """Return the rank that computes longest: all ranks end a step together, so it spends least time in communication.

    Without the shares of communication, it is the rank with the fewest samples per second.
    """
    if len(ranks) < 2:
        return None
    if all(rank.comm_share is not None for rank in ranks):
        return min(ranks, key=lambda rank: rank.comm_share or 0.0)
    return min(ranks, key=lambda rank: rank.samples_per_s)


@dataclass(frozen=True)
class ScalingRow:
    """The figures for a number of processes. ``parallel``: ``ddp``, or ``dp`` (DataParallel in a single process)."""

    nodes: int
    processes: int
    run: str
    figures: RunFigures
    parallel: str = "ddp"

    @property
    def devices(self) -> int:
        """Return the number of devices that compute: the ideal speed-up."""
        return max(1, self.figures.devices or self.processes if self.parallel == "dp" else self.processes)


@dataclass(frozen=True)
class ScalingReport:
    """The figures of all sizes, the smallest first. The first size is the base of the speed-up."""

    job: str
    cluster: str
    rows: tuple[ScalingRow, ...]

    def speed_up(self, row: ScalingRow) -> float:
        """Return the speed-up over one process, by samples per second."""
        base = self.rows[0]
        return row.figures.samples_per_s / base.figures.samples_per_s * base.processes

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
    """An all_reduce between these hosts: ``size`` bytes took ``time_us``. Bus bandwidth in GB/s (10^9 bytes).

    ``latency_us``: the time for a few bytes; ``None``: not measured.
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
    """A host, or a pair of hosts, that is much slower than the rest; ``why`` says by how much."""

    hosts: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class NetworkReport:
    """``pairs``: an all_reduce for each pair of hosts. ``whole``: an all_reduce over all hosts per message size."""

    job: str
    cluster: str
    backend: str
    run: str
    hosts: tuple[str, ...]
    pairs: tuple[Reduce, ...]
    whole: tuple[Reduce, ...]

    @property
    def slow(self) -> tuple[Slow, ...]:
        """Return the slow hosts, the late hosts, and the slow pairs of hosts that are not slow themselves."""
        slow = slow_hosts(self.pairs)
        hosts = {host for found in slow for host in found.hosts}
        late = (found for found in late_hosts(self.pairs) if not hosts & set(found.hosts))
        return (*slow, *late, *slow_pairs(self.pairs, hosts))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "benchmark": "network",
            **vars(self),
            "hosts": list(self.hosts),
            "pairs": [reduce.to_json() for reduce in self.pairs],
            "whole": [reduce.to_json() for reduce in self.whole],
            "slow": [asdict(found) for found in self.slow],
        }


_Amount = Rate  # times have the same bounds


class _MeasuredDict(TypedDict):
    """A line of JSON of worker/jobs/allreduce_bench.py."""

    bytes: Annotated[Count, Field(ge=1)]
    time_us: _Amount
    busbw_gb_s: _Amount
    latency_us: NotRequired[_Amount | None]


class _PairDict(_MeasuredDict):
    pair: tuple[Name, Name]


class _WholeDict(_MeasuredDict):
    op: Literal["all_reduce"]
    backend: Label


def network_report(lines: Iterable[str], *, job: str, cluster: str, run: str, hosts: Sequence[str]) -> NetworkReport:
    """Parse the output of worker/jobs/allreduce_bench.py with ``--pairs``; the docstring there describes the format.

    A line that is no result, or is about another host, is skipped: any program on the node may write to this output.

    Raises:
        DdpctlError: the output has no results.
    """
    every = list(lines)
    pairs = [found for found in _results(TypeAdapter(_PairDict), every) if len({*found["pair"]} & {*hosts}) == 2]
    whole = _results(TypeAdapter(_WholeDict), every)
    if not pairs or not whole:
        raise DdpctlError(f"{run} ended without results", hint=f"its output is kept: ddpctl tail {run}")
    everyone = tuple(hosts)
    return NetworkReport(
        job=job,
        cluster=cluster,
        backend=whole[0]["backend"],
        run=run,
        hosts=everyone,
        pairs=tuple(_reduce(found["pair"], found) for found in pairs),
        whole=tuple(_reduce(everyone, found) for found in whole),
    )


def _results(shape: TypeAdapter[R], lines: Iterable[str]) -> list[R]:
    """Return the lines that have this shape."""
    found: list[R] = []
    for line in lines:
        if line.startswith("{"):
            with contextlib.suppress(ValueError):  # a ValidationError, or bytes that are not UTF-8
                found.append(shape.validate_json(line))
    return found


def _reduce(hosts: tuple[str, ...], found: _PairDict | _WholeDict) -> Reduce:
    return Reduce(hosts, found["bytes"], found["time_us"], found["busbw_gb_s"], found.get("latency_us"))


def slow_hosts(pairs: Sequence[Reduce]) -> tuple[Slow, ...]:
    """Return the hosts whose best pair is below half of the median of all hosts' best: all their links are slow."""
    best = _best_by_host(pairs, lambda pair: pair.busbw_gb_s, max)
    if len(best) < LEAST_COMPARED:
        return ()  # two hosts have a single link, with nothing to compare
    middle = statistics.median(best.values())
    return tuple(
        Slow((host,), f"{best[host]:.3g} GB/s at best, the others {middle:.3g}")
        for host in sorted(best, key=lambda host: best[host])
        if best[host] < SLOW_HOST_SHARE * middle
    )


def late_hosts(pairs: Sequence[Reduce]) -> tuple[Slow, ...]:
    """Return the hosts whose quickest all_reduce of a few bytes takes several times as long as the median."""
    best = _best_by_host([pair for pair in pairs if pair.latency_us is not None], lambda pair: pair.latency_us, min)
    if len(best) < LEAST_COMPARED:
        return ()
    middle = statistics.median(best.values())
    return tuple(
        Slow((host,), f"{best[host]:.0f} us at best for a small all_reduce, the others {middle:.0f}")
        for host in sorted(best, key=lambda host: -best[host])
        if best[host] > LATE_HOST_FACTOR * middle
    )


def slow_pairs(pairs: Sequence[Reduce], slow: set[str]) -> tuple[Slow, ...]:
    """Return the pairs that get less than half of the bandwidth that both hosts get in another pair.

    Pairs with a host in ``slow`` are left out: that host explains them.
    """
    best = _best_by_host(pairs, lambda pair: pair.busbw_gb_s, max)
    found = []
    for pair in sorted(pairs, key=lambda pair: pair.busbw_gb_s):
        expected = min(best[host] for host in pair.hosts)
        if pair.busbw_gb_s < SLOW_HOST_SHARE * expected and not slow & set(pair.hosts):
            why = f"{pair.busbw_gb_s:.3g} GB/s, each of them {expected:.3g} or more with others"
            found.append(Slow(pair.hosts, why))
    return tuple(found)


def _best_by_host(pairs: Sequence[Reduce], value: Any, choose: Any) -> dict[str, float]:
    hosts = dict.fromkeys(host for pair in pairs for host in pair.hosts)
    return {host: choose(value(pair) for pair in pairs if host in pair.hosts) for host in hosts}


def node_counts(hosts: int) -> tuple[int, ...]:
    """Return the numbers of nodes to measure: 1, 2, 4 ... and all hosts."""
    powers = [2**power for power in range(hosts.bit_length()) if 2**power < hosts]
    return (*powers, hosts)
