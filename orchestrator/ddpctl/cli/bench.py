"""``ddpctl bench``: measures the speed-up on more machines, and finds slow machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from ddpctl.cli import session
from ddpctl.cli.interrupts import Interrupts
from ddpctl.cli.limits import BENCH_S, JOB_LETTERS
from ddpctl.cli.session import D
from ddpctl.code import code_mentions
from ddpctl.errors import Interrupted, UsageError
from ddpctl.files.program import shipped_jobs
from ddpctl.render.bench import network_html, network_view, scaling_html, scaling_view
from ddpctl.spec.bench import ScalingReport, ScalingRow, network_report, node_counts
from ddpctl.spec.event import StageEnded, StageStarted, Tell
from ddpctl.spec.inventory import Inventory, job_hosts
from ddpctl.spec.job import JobSpec, Requires
from ddpctl.spec.metrics import SAMPLES
from ddpctl.spec.values import plural
from ddpctl.stages.bench import HOW_TO_REPORT, measure, output_of_rank_0
from ddpctl.stages.launch import Launch, launch_of
from ddpctl.transport.base import Fleet
from ddpctl_worker.wire.contract import ENV_METRICS

NETWORK_SCRIPT = "allreduce_bench.py"
NETWORK_ARGS = ("--pairs", "--min_bytes", "16", "--max_bytes", "16M", "--iters", "10")

bench = typer.Typer(help="Measure the speed-up on more nodes, and find slow nodes.")

JobOption = typer.Option(None, "--job", help="Job to measure; required if the inventory has more than one.")
HtmlOption = typer.Option(None, "--html", metavar="FILE", help="Also write the result as a self-contained HTML page.")


@bench.command()
def scaling(
    inventory: Path | None = session.InventoryArgument,
    job: str = JobOption,
    nodes: str = typer.Option(
        None, "--nodes", metavar="N,...", help="Numbers of nodes to measure; default: 1,2,4,... and all."
    ),
    compare: str = typer.Option(None, "--compare", metavar="dp", help="dp: also measure DataParallel on one node."),
    seconds: float = typer.Option(BENCH_S, "--seconds", min=1.0, help="Measure each run for this long after warm-up."),
    html: Path = HtmlOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Run a job on more and more nodes: samples/s, speed-up, efficiency, time in communication, slowest rank.

    Each number of nodes is a run of its own. The job must write samples_per_s to the file $DDPCTL_METRICS.
    """
    session.check_page(html)
    where = session.load(inventory, option, job=job)
    spec = where.job(job)
    if compare not in (None, "dp"):
        raise UsageError(f"--compare takes dp, not {compare!r}")
    counts = _counts(nodes, len(job_hosts(where, spec, "all")))
    _refuse_without_metrics(launch_of(where, spec, session.new_identity(where)))
    with _measuring(where) as (fleet, tell):
        trial = _Trials(where, spec, fleet, tell, seconds)
        rows = [trial.run(count) for count in reversed(counts)]
        if rows[-1].nodes > 1 or rows[-1].processes > 1:
            rows.append(trial.run(1, nproc=1))
        rows.reverse()
        if compare:
            rows.append(trial.run(1, nproc=1, parallel=compare))
    report = ScalingReport(spec.name, where.cluster, tuple(rows))
    return _show(report, scaling_view, scaling_html, html, as_json=as_json)


@bench.command()
def network(
    inventory: Path | None = session.InventoryArgument,
    job: str = JobOption,
    html: Path = HtmlOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Time all_reduce between every two nodes and across all of them, in the job's environment, and name slow nodes."""
    session.check_page(html)
    where = session.load(inventory, option, job=job)
    spec = _network_job(where, job)
    launch = launch_of(where, spec, session.new_identity(where), nproc=1)
    if len(launch.hosts) < 2:
        raise UsageError(
            "bench network needs two nodes or more, but there is only one", hint="add hosts to the inventory"
        )
    with _measuring(where) as (fleet, tell):
        tell(StageStarted("bench network", None))
        run, lines = output_of_rank_0(launch, fleet, tell, by=session.author())
        tell(StageEnded("bench network", True))
    report = network_report(lines, job=spec.name, cluster=where.cluster, run=run.run, hosts=run.hosts)
    return _show(report, network_view, network_html, html, as_json=as_json)


class _Trials:
    """Runs a job in several sizes."""

    def __init__(self, inventory: Inventory, job: JobSpec, fleet: Fleet, tell: Tell, seconds: float) -> None:
        self._inventory, self._job, self._fleet, self._tell, self._seconds = inventory, job, fleet, tell, seconds

    def run(self, nodes: int, nproc: int | None = None, parallel: str = "ddp") -> ScalingRow:
        """Measure the job on ``nodes`` nodes."""
        job = self._job.model_copy(update={"name": _bench_name(self._job.name), "after": None})
        if parallel == "dp":
            job = job.model_copy(update={"args": (*job.args, "--parallel", "dp")})
        launch = launch_of(self._inventory, job, session.new_identity(self._inventory), nodes=nodes, nproc=nproc)
        stage = plural(nodes, "node") if nproc is None else "1 process"
        stage = "DataParallel" if parallel == "dp" else stage
        self._tell(StageStarted(stage, None))
        try:
            run, figures = measure(launch, self._fleet, self._tell, seconds=self._seconds, by=session.author())
        except BaseException:
            self._tell(StageEnded(stage, False))
            raise
        self._tell(StageEnded(stage, True, f"{figures.samples_per_s:.1f} samples/s"))
        return ScalingRow(nodes, run.world_size, run.run, figures, parallel)


def _counts(text: str | None, hosts: int) -> tuple[int, ...]:
    """Return the numbers of nodes in rising order.

    Raises:
        UsageError: ``text`` is not a list of numbers, or a number is 0 or more than ``hosts``.
    """
    if text is None:
        return node_counts(hosts)
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--nodes takes numbers such as 1,2,4, not {text!r}") from None
    if found[0] < 1 or found[-1] > hosts:
        wrong = found[0] if found[0] < 1 else found[-1]
        raise UsageError(f"--nodes {wrong}, but the job has {plural(hosts, 'host')}")
    return tuple(found)


def _refuse_without_metrics(launch: Launch) -> None:
    """Refuse a job that cannot report metrics; this can be seen where the job's whole code is here.

    Raises:
        UsageError: no file of the code mentions $DDPCTL_METRICS.
    """
    job, archive = launch.job, launch.archive
    if job is not None and archive is not None and not code_mentions(archive, ENV_METRICS):
        what = f"{job.name} reports no {SAMPLES}: nothing in {job.code} mentions {ENV_METRICS}"
        raise UsageError(what, hint=HOW_TO_REPORT)


def _network_job(inventory: Inventory, name: str | None) -> JobSpec:
    """Return the job ``name`` with the benchmark's program. In an inventory without jobs, return a job on all hosts."""
    keys: dict[str, Any] = {"script": NETWORK_SCRIPT, "args": NETWORK_ARGS, "code": str(shipped_jobs())}
    if name is None and not inventory.jobs:
        return JobSpec(name="bench-network", **keys)
    job = inventory.job(name)
    gone: dict[str, Any] = {"module": None, "workdir": None, "outputs": (), "requires": Requires()}
    gone |= {"links": {}, "after": None}
    return job.model_copy(update=keys | gone | {"name": _bench_name(job.name), "local_rank_arg": "none"})


def _bench_name(job: str) -> str:
    """Return another job name, so that `status JOB` still means the real job."""
    return f"bench-{job}"[:JOB_LETTERS]


@contextlib.contextmanager
def _measuring(inventory: Inventory) -> Iterator[tuple[Fleet, Tell]]:
    """Open connections and a progress display. Any signal ends the present run, like Ctrl-C."""
    with Interrupts(), session.working_fleet(inventory) as (fleet, tell):
        try:
            yield fleet, tell
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing is left running") from None


def _show(
    report: D, view: Callable[[D], RenderableType], page: Callable[[D], str], html: Path | None, *, as_json: bool
) -> int:
    with session.with_page(html, lambda: page(report)):
        session.show(report, view, as_json=as_json)
    return 0
