"""Runs a job to measure it: start the job, watch its metrics or its output, and end its processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ddpctl.errors import HostsFailed, JobFailed, Survivors
from ddpctl.spec.bench import RunFigures, measure_run
from ddpctl.spec.event import Event, Note, Tell
from ddpctl.spec.limits import LEAST_SAMPLES_PER_S, MOST_SAMPLES_PER_S, WARM_UP_LINES
from ddpctl.spec.lines import Group
from ddpctl.spec.metrics import SAMPLES, Values
from ddpctl.spec.status import RunStatus
from ddpctl.stages.follow import follow
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import (
    BENCH_FIRST_LINE_S,
    BENCH_GRACE_S,
    BENCH_MOST_S,
    BENCH_POLL_S,
    BENCH_REST_S,
    METRICS_LINES,
    METRICS_READ_S,
)
from ddpctl.stages.preflight import Options
from ddpctl.stages.status import read_run
from ddpctl.stages.up import Up
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.wire import contract

HOW_TO_REPORT = (
    'append a line such as {"step": 120, "samples_per_s": 5120} to the file $DDPCTL_METRICS about once a second '
    "(docs/jobs.md, Metrics)"
)


class MetricsReader:
    """Reads the metrics of a run. ``lines`` has all lines so far, by host and rank, and grows with each ``read``."""

    def __init__(self, run: RunStatus, fleet: Fleet) -> None:
        self._run, self._fleet = run, fleet
        self._offsets: dict[str, dict[str, int]] = {}
        self.lines: dict[tuple[str, str], list[Values]] = {}

    def read(self) -> bool:
        """Read the new lines of every rank; return whether there were any.

        Raises:
            HostsFailed: a node did not answer.
        """

        def ask(transport: Transport) -> dict[str, Any]:
            request = {"run": self._run.run, "offsets": self._offsets.get(transport.host, {})}
            found: dict[str, Any] = transport.call("metrics", request, timeout=METRICS_READ_S)["ranks"]
            return found

        outcome = self._fleet.map(ask, self._run.hosts)
        if outcome.errors:
            raise HostsFailed(f"the metrics of {self._run.run} could not be read", outcome.errors)
        came = [self._take(host, ranks) for host, ranks in outcome.results.items()]
        return any(came)

    def _take(self, host: str, ranks: dict[str, Any]) -> bool:
        for rank, found in ranks.items():
            self._offsets.setdefault(host, {})[rank] = int(found["offset"])
            if found["lines"]:
                kept = self.lines.setdefault((host, rank), [])
                kept.extend(found["lines"][: METRICS_LINES - len(kept)])
        return any(found["lines"] for found in ranks.values())


def measure(launch: Launch, fleet: Fleet, tell: Tell, *, seconds: float, by: str) -> tuple[RunStatus, RunFigures]:
    """Run a job until its metrics cover ``seconds`` after the warm-up, or until it is over; then stop it.

    Raises:
        JobFailed: the job failed, or wrote no samples_per_s that can be compared with another value.
        PreflightFailed, HostsFailed, Survivors: as `up` and `kill`.
    """
    with running(launch, fleet, tell, by) as run:
        reader = MetricsReader(run, fleet)
        end = _watch(run, reader, fleet, seconds)
    _raise_for(end)
    found = measure_run(reader.lines)
    if found is None:
        raise JobFailed(f"{run.job} wrote no {SAMPLES} to $DDPCTL_METRICS", hint=HOW_TO_REPORT)
    if not LEAST_SAMPLES_PER_S <= found.samples_per_s <= MOST_SAMPLES_PER_S:
        what = f"{run.job} wrote a mean {SAMPLES} of {found.samples_per_s:g}, with which no speed can be compared"
        raise JobFailed(what, hint=HOW_TO_REPORT)
    return run, found


def output_of_rank_0(launch: Launch, fleet: Fleet, tell: Tell, *, by: str) -> tuple[RunStatus, list[str]]:
    """Run a job to its end; return the lines that its rank 0 wrote to stdout.

    Raises:
        JobFailed: the job failed. PreflightFailed, HostsFailed, Survivors: as `up` and `kill`.
    """
    lines: list[str] = []

    def take(groups: Sequence[Group]) -> None:
        lines.extend(line.text for (line,) in groups if line.rank == 0 and line.stream == "stdout")

    with running(launch, fleet, tell, by) as run:
        follow(run.run, run.hosts, fleet, tell, take, folded=False)
        end = read_run(fleet, run)
    _raise_for(end)
    return run, lines


@contextlib.contextmanager
def running(launch: Launch, fleet: Fleet, tell: Tell, by: str) -> Iterator[RunStatus]:
    """Run a job while the body runs, then end all its processes.

    The run has its own folder for checkpoints, and notifies no person.

    Raises:
        Survivors: processes of the run are left. HostsFailed: a host did not confirm the end.
    """
    up = Up(replace(launch, own_checkpoints=True, notify=()), fleet, _warnings_only(tell), Options(reuse=True))
    try:
        yield up.run()
    finally:
        try:
            _end(up, by)
        except KeyboardInterrupt:  # the first Ctrl-C; a second one raises nothing
            _end(up, by)
            raise


def _end(up: Up, by: str) -> None:
    """End all processes of the run. Raises Survivors, HostsFailed: as ``running``."""
    outcome = up.undo(by=by, grace=BENCH_GRACE_S)
    if outcome is not None and outcome.survivors:
        left = ", ".join(f"{host} pid {pid}" for host, pid, _ in outcome.survivors)
        raise Survivors(f"processes of {outcome.run} survived: {left}", hint=f"ddpctl kill {outcome.run}")
    if outcome is not None and outcome.errors:
        raise HostsFailed(f"{outcome.run} may still be running: ddpctl kill {outcome.run}", outcome.errors)


def _warnings_only(tell: Tell) -> Tell:
    """Pass on only warnings: a benchmark starts many runs, and the steps of each run are noise."""

    def choose(event: Event) -> None:
        if isinstance(event, Note) and event.level == "warning":
            tell(event)

    return choose


def _watch(run: RunStatus, reader: MetricsReader, fleet: Fleet, seconds: float) -> RunStatus:
    """Read metrics until they are enough, or the run is over or too slow; return the status of the run then."""
    begun = time.monotonic()
    first: float | None = None
    while True:
        status = read_run(fleet, run)  # before the metrics, so that no line after it is missed
        came = reader.read()
        if status.verdict.terminal:
            _read_rest(reader)
            return status
        now = time.monotonic()
        if first is None and came:
            first = now
        if first is None and now - begun > BENCH_FIRST_LINE_S:
            return status
        if first is not None and _enough(reader, now - first, seconds):
            return status
        time.sleep(BENCH_POLL_S)


def _read_rest(reader: MetricsReader) -> None:
    """Read the metrics of a run that is over until no more lines come, or until the deadline."""
    until = time.monotonic() + BENCH_REST_S
    while reader.read() and time.monotonic() < until:
        pass


def _enough(reader: MetricsReader, since_first: float, seconds: float) -> bool:
    """Whether the window has passed and every writing rank has a line after its warm-up, or the time is up."""
    counted = all(len(lines) > WARM_UP_LINES for lines in reader.lines.values())
    return since_first > BENCH_MOST_S or (since_first >= seconds and counted)


def _raise_for(end: RunStatus) -> None:
    if end.verdict.state in contract.UNSUCCESSFUL:
        why = (
            f"{end.verdict.cause.host}: {end.verdict.cause.message}"
            if end.verdict.cause
            else "no node recorded a cause"
        )
        raise JobFailed(
            f"{end.job} {end.verdict.state}: {why}", hint=f"its output is kept: ddpctl tail {end.run} -n 100"
        )
