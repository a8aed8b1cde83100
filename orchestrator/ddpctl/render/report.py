"""A report about a run for the terminal: the verdict first, then the facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpctl.render.chart import short_number
from ddpctl.render.console import Whole, columns
from ddpctl.render.groups import matrix, matrix_summary
from ddpctl.render.push import size
from ddpctl.render.status import (
    attempt_end,
    cause_view,
    metrics_line,
    set_aside_text,
    slow_line,
    state_text,
    stuck_line,
)
from ddpctl.spec.command import display
from ddpctl.spec.curves import Curve
from ddpctl.spec.gpuuse import GpuUse, least_busy_first, mean_use
from ddpctl.spec.metrics import COUNTERS
from ddpctl.spec.outcome import Attempt
from ddpctl.spec.plan import CodeRef
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.report import RunReport
from ddpctl.spec.times import duration_seconds, elapsed
from ddpctl.spec.values import plural

NO_METRICS = 'no metrics: add lines such as {"step": 120, "loss": 0.31} to the file that DDPCTL_METRICS names'
LESS_BUSY = 10.0  # percentage points: a GPU that is this much less busy than the mean is named
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24  # letters of a sparkline


def report_view(report: RunReport) -> RenderableType:
    """Return the end of the run, its attempts, its metrics, and its program."""
    run = report.run
    head = Text.assemble(f"{run.job}  ", state_text(run.verdict.state), report.headline.removeprefix(run.verdict.state))
    head.append(f"  run {run.run}  cluster {run.cluster}  project {run.project}")
    parts: list[RenderableType] = [head]
    if run.diagnosis:
        parts.append(Text(stuck_line(run, report.made), style="bold yellow"))
    parts += [Text(slow_line(slow), style="yellow") for slow in run.slow]
    if run.verdict.cause:
        parts.append(cause_view(run.verdict.cause, run.hint))
    parts += [Text(f"not in this report: {host}: {why}", "yellow") for host, why in report.missing.items()]
    parts += [Text(""), Whole(_attempts(report))]
    if shown := shown_curves(report.curves):
        parts += [Text(""), Whole(_metrics(shown))]
    else:
        parts += [Text(""), Text(metrics_line(report.run) or NO_METRICS)]
    return Group(*parts, Text(""), *map(Text, _facts(report)))


def shown_curves(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves to show. A counter such as "step" is an axis, not a curve."""
    return [curve for curve in curves if curve.name not in COUNTERS and (curve.lines or curve.not_finite)]


def _attempts(report: RunReport) -> Table:
    table = columns("ATTEMPT", "HOSTS", "TOOK", "END")
    for attempt, end in attempt_ends(report):
        end += f"; set aside: {set_aside_text(attempt)}" if attempt.set_aside else ""
        table.add_row(str(attempt.number), Text(fold_names(attempt.hosts)), attempt_took(attempt, report), Text(end))
    return table


def attempt_ends(report: RunReport) -> Iterator[tuple[Attempt, str]]:
    """Yield each attempt with its end; the last attempt has the run's end."""
    *earlier, last = report.run.verdict.attempts
    for attempt in earlier:
        yield attempt, attempt_end(attempt)
    yield last, report.run.verdict.state


def attempt_took(attempt: Attempt, report: RunReport) -> str:
    took = elapsed(attempt.started, attempt.ended or report.run.verdict.ended or report.made.isoformat())
    return "-" if took is None else duration_seconds(max(0.0, took))


def _metrics(curves: Sequence[Curve]) -> Table:
    table = columns("METRIC", "FIRST", "LAST", "LOWEST", "HIGHEST", "")
    for curve in curves:
        values = [y for _, y in curve.points]
        if not values:
            table.add_row(Text(curve.name), "-", "-", "-", "-", Text(not_finite_text(curve), "red"))
            continue
        figures = map(short_number, (values[0], values[-1], min(values), max(values)))
        table.add_row(
            Text(curve.name), *figures, Text.assemble(sparkline(values), (f"  {not_finite_text(curve)}", "red"))
        )
    return table


def not_finite_text(curve: Curve) -> str:
    """Return ``10 values from step 2990 on are not finite``; empty if all values are finite."""
    if not curve.not_finite:
        return ""
    at = "" if curve.not_finite_at is None else f" from {curve.axis} {short_number(curve.not_finite_at)} on"
    return f"{plural(curve.not_finite, 'value')}{at} {'is' if curve.not_finite == 1 else 'are'} not finite"


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return ``█▆▃▂▁``: a letter for each stretch, as high as its mean."""
    count = min(width, len(values))
    parts = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    means = [sum(value / len(part) for value in part) for part in parts]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[0] * count
    return "".join(_BARS[int((mean / 2 - low / 2) / (high / 2 - low / 2) * (len(_BARS) - 1))] for mean in means)


def _facts(report: RunReport) -> Iterator[str]:
    run = report.run
    yield f"started  {origin_text(report)}"
    if report.run.record.code is not None:
        yield f"code     {code_text(report.run.record.code)}"
    if versions := environments(report):
        yield f"torch    {'; '.join(versions)}"
    if report.command:
        yield f"command  {display(list(report.command))}"
    if run.continues:
        yield f"continues run {run.continues}"
    if report.checkpoints:
        newest = report.checkpoints[0]
        count = plural(len(report.checkpoints), "checkpoint")
        yield f"saved    {count}, the newest one {newest.entry} ({size(newest.size)})"
    if report.gpus:
        yield f"GPUs     {gpus_text(report.gpus)}"
    if len(run.hosts) > 1:
        yield f"network  {network_text(report)}"


def gpus_text(gpus: Sequence[GpuUse]) -> str:
    """Return ``16, busy 87 % of the time on average, node1:3 only 12 %; memory: 71.2 of 80 GiB``."""
    text = str(len(gpus))
    if (mean := mean_use(gpus)) is not None:
        text += f", busy {mean:.0f} % of the time on average"
        least = least_busy_first(gpus)[0]
        text += f", {least.host}:{least.index} only {least.use:.0f} %" if mean - (least.use or 0.0) >= LESS_BUSY else ""
    fullest = max(gpus, key=lambda gpu: gpu.memory_max_mb or 0)
    return text if fullest.memory_max_mb is None else f"{text}; memory: {memory_text(fullest)}"


def memory_text(gpu: GpuUse) -> str:
    """Return ``71.2 of 80 GiB``: the most memory that the GPU had in use."""
    if gpu.memory_max_mb is None:
        return "-"
    most = f"{gpu.memory_max_mb / 1024:.3g}"
    return f"{most} GiB" if gpu.memory_total_mb is None else f"{most} of {gpu.memory_total_mb / 1024:.3g} GiB"


def network_text(report: RunReport) -> str:
    return matrix_summary(matrix(report.network)) if report.network else "not measured: preflight was skipped"


def origin_text(report: RunReport) -> str:
    """Return ``2026-11-24 03:10:25 UTC from anna@desk:/home/anna/exp1``."""
    origin = report.run.origin
    return f"{clock(report.run.verdict.started)}{f' from {origin}' if origin else ''}"


def clock(time: str | None) -> str:
    """Return an ISO 8601 time as ``2026-11-24 03:10:25 UTC``; ``-`` without a time."""
    if not time:
        return "-"
    day, _, rest = time.partition("T")
    return f"{day} {rest[:8]} UTC" if rest.endswith(("Z", "+00:00")) else time


def code_text(code: CodeRef) -> str:
    """Return ``commit 3f2c91a0b2c4, with changes that were not committed``."""
    if not code.git_commit:
        return f"no git commit; the archive sent was {code.sha256[:12]}"
    return f"commit {code.git_commit[:12]}{', with changes that were not committed' if code.dirty else ''}"


def environments(report: RunReport) -> list[str]:
    """Return ``2.13.0 in environment 1f0c92ab4d5e``, with the hosts if they differ."""
    found: dict[str, list[str]] = {}
    for host, launch in report.launches.items():
        if launch.torch:
            where = f" in environment {launch.environment[:12]}" if launch.environment else ""
            found.setdefault(f"{launch.torch}{where}", []).append(host)
    return list(found) if len(found) < 2 else [f"{text} on {fold_names(hosts)}" for text, hosts in found.items()]
