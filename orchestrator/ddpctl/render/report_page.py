"""A report about a run as an HTML page without scripts and requests, in light and dark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape

import ddpctl
from ddpctl.render.chart import curve_chart, short_number, use_picture
from ddpctl.render.groups import matrix
from ddpctl.render.html import HEAT_HOSTS, heat_map
from ddpctl.render.page import page, table
from ddpctl.render.push import size
from ddpctl.render.report import (
    NO_METRICS,
    attempt_ends,
    attempt_took,
    clock,
    code_text,
    environments,
    memory_text,
    not_finite_text,
    origin_text,
    shown_curves,
)
from ddpctl.render.status import cause_line, fold_ranks, metrics_line, set_aside_text, slow_line, stuck_line
from ddpctl.spec.command import display
from ddpctl.spec.curves import Curve, thin_curve
from ddpctl.spec.gpuuse import GpuUse, least_busy_first, mean_use, use_over_time
from ddpctl.spec.limits import MOST_POINTS
from ddpctl.spec.metrics import COMM_SHARE, SAMPLES
from ddpctl.spec.outcome import Attempt, Cause
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.record import RecordedLaunch
from ddpctl.spec.report import RunReport
from ddpctl.spec.times import duration_seconds, elapsed
from ddpctl.spec.values import plural
from ddpctl_worker.wire import contract

MOST_TILES = 3  # metrics at the top
MOST_CHARTS = 32
MOST_RANKS = 32
MOST_GPUS = 64
GPU_COLUMNS = 120  # columns in the picture of a GPU's use
MOST_ATTEMPTS = 6  # the newest attempts; older attempts are folded
MOST_MARKS = 8  # attempts with beginnings that a picture can show apart
MANY_HOSTS = 8  # more hosts are folded
LONG = 300  # letters of a message before the fold
MOST_LETTERS = 16_000  # letters of a traceback

_KINDS = {
    contract.SUCCEEDED: "ok",
    contract.FAILED: "error",
    contract.LOST: "error",
    contract.KILLED: "warning",
    contract.STOPPING: "warning",
}

STYLE = """
.verdict { display: flex; flex-wrap: wrap; gap: .5rem .75rem; align-items: center; margin: .6rem 0;
  font-size: 1.15rem; }
.verdict .badge { font-size: 1rem; padding: .1rem .75rem; }
article.error { border-left: 4px solid var(--error); }
article.warning { border-left: 4px solid var(--warning); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0 0;
  padding: 0; list-style: none; }
.tiles li { padding: .7rem .9rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tiles span { display: block; color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.tiles b { font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
.charts figure { margin: 0; max-width: none; padding: .8rem .9rem .4rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px; min-width: 0; }
.charts figcaption { display: flex; flex-wrap: wrap; gap: 0 .75rem; align-items: baseline; }
.charts figcaption b { overflow-wrap: anywhere; }
.charts .wrong { color: var(--error); }
.strip { display: flex; gap: 2px; height: 1.1rem; overflow: hidden; margin: .5rem 0 .25rem; }
.strip i { flex: 1 1 0; min-width: 3px; border-radius: 3px; background: var(--soft); }
.strip .ok { background: var(--ok); } .strip .error { background: var(--error); }
.strip .warning { background: var(--warning); } .strip .info { background: var(--info); }
.attempts { margin: .75rem 0 0; padding: 0; list-style: none; }
.attempts > li { display: grid; grid-template-columns: 2.2rem minmax(0, 1fr); gap: 0 .5rem; padding: .5rem 0;
  border-top: 1px solid var(--line); }
.attempts p { margin: 0; }
.bar { display: inline-block; width: 8rem; height: .6rem; margin-right: .5rem; border-radius: 3px;
  background: var(--line); }
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--info); }
.use { display: block; width: 22rem; height: 1.4rem; }
.use rect { fill: var(--line); } .use path { fill: var(--info); }
pre { max-height: 26rem; overflow: auto; }
.card pre { background: var(--card); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .35rem 1.25rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-top: .75rem; border-top: 1px solid var(--line); font-size: .85rem; }
@media (max-width: 40rem) { main { padding: 1.25rem 1rem 3rem; } h1 { font-size: 1.6rem; } .bar { width: 5rem; }
  .use { width: 9rem; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: .6rem; } }
@media print { .strip i, .badge { print-color-adjust: exact; } }
"""


def report_html(report: RunReport) -> str:
    """Return the page. Every text of the report is escaped, so that it cannot become markup."""
    parts = [
        _head(report),
        *_troubles(report),
        _tiles(report),
        _metrics(report),
        _attempts(report),
        _gpus(report),
        _ranks(report),
        _network(report),
        _checkpoints(report),
        _what_ran(report),
        _foot(report),
    ]
    return page(f"{report.run.job}: {report.run.verdict.state}", parts, STYLE)


def kind_of(state: str) -> str:
    return _KINDS.get(state, "info")


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def _soft(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


# --- the verdict -----------------------------------------------------------------------------------------------------


def _head(report: RunReport) -> str:
    run = report.run
    return (
        f'<header><p class="what">ddpctl report</p><h1>{escape(run.job)}</h1>'
        f'<div class="verdict"><span class="{kind_of(run.verdict.state)} badge">{escape(run.verdict.state)}</span>'
        f"<span>{escape(report.headline.removeprefix(run.verdict.state).strip())}</span></div>"
        f'<p class="soft">run {escape(run.run)} · cluster {escape(run.cluster)} · project {escape(run.project)} · '
        f"started {escape(origin_text(report))}</p></header>"
    )


def _troubles(report: RunReport) -> Iterator[str]:
    run = report.run
    if report.missing:
        count = f"{plural(len(report.missing), 'host')} of {len(run.hosts)}"
        items = "".join(f"<li><b>{escape(host)}</b>: {escape(why)}</li>" for host, why in report.missing.items())
        yield f'<article class="warning"><h3>Not in this report: {count}</h3><ul>{items}</ul></article>'
    if run.verdict.cause:
        yield f'<article class="error"><h3>What ended it</h3>{_cause(run.verdict.cause, run.hint)}</article>'
    lines = [slow_line(slow) for slow in run.slow]
    if run.diagnosis:
        lines.insert(0, stuck_line(run, report.made))
    if lines:
        yield f'<article class="warning">{"".join(f"<p>{escape(line)}</p>" for line in lines)}</article>'


def _cause(cause: Cause, hint: str | None) -> str:
    line = cause_line(cause)
    text = f"<p>{escape(line[:LONG])}{'…' if len(line) > LONG else ''}</p>"
    if len(line) > LONG:
        text += _folded("The whole message", cause.message)
    text += f"<p>hint: {escape(hint)}</p>" if hint else ""
    return text + _folded("Traceback", cause.traceback) if cause.traceback else text


def _folded(title: str, text: str) -> str:
    """Return a folded text. Of a long text only beginning and end are shown: the end tells most."""
    text = text.rstrip()
    if len(text) > MOST_LETTERS:
        left_out = len(text) - MOST_LETTERS
        text = f"{text[:1000]}\n... {left_out} characters are not shown ...\n{text[1000 - MOST_LETTERS :]}"
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _tiles(report: RunReport) -> str:
    run = report.run
    took = report.duration_s
    tiles = [
        ("duration", "-" if took is None else duration_seconds(took)),
        ("ranks", f"{run.world_size} on {plural(len(run.verdict.active_nodes), 'host')}"),
    ]
    if (use := mean_use(report.gpus)) is not None:
        tiles.append(("GPU use", f"{use:.0f} %"))
    for curve in [curve for curve in shown_curves(report.curves) if curve.lines][:MOST_TILES]:
        x, y = curve.points[-1]
        tiles.append((f"{curve.name}, {curve.axis} {x:g}", short_number(y)))
    return f'<ul class="tiles">{"".join(map(_tile, tiles))}</ul>'


def _tile(tile: tuple[str, str]) -> str:
    return f"<li><span>{escape(tile[0])}</span><b>{escape(tile[1])}</b></li>"


# --- pictures --------------------------------------------------------------------------------------------------------


def _metrics(report: RunReport) -> str:
    shown = shown_curves(report.curves)
    if not shown:
        return _section("Metrics", _soft(metrics_line(report.run) or NO_METRICS))
    resumed = any(1 < len(curve.lines) <= MOST_MARKS for curve in shown)
    earlier = any(len(curve.lines) > 1 for curve in shown)
    axes = " or ".join(dict.fromkeys(curve.axis for curve in shown))
    text = f"Over {'the lines that the job wrote' if axes == 'line' else f'the {axes}'}."
    text += " Grey: earlier attempts." if earlier else ""
    text += " Dashed: where the next attempt began." if resumed else ""
    charts = "".join(map(_figure, shown[:MOST_CHARTS]))
    more = len(shown) - MOST_CHARTS
    note = _soft(f"{plural(more, 'more name')} left out here: `ddpctl report --json` has all.") if more > 0 else ""
    return _section("Metrics", _soft(text), f'<div class="charts">{charts}</div>', note)


def _figure(curve: Curve) -> str:
    wrong = not_finite_text(curve)
    wrong = f'<span class="wrong">{escape(wrong)}</span>' if wrong else ""
    if not curve.lines:
        return f"<figure><figcaption><b>{escape(curve.name)}</b>{wrong}</figcaption></figure>"
    sampled = " · sampled: the file is too long to be read as a whole" if curve.sampled else ""
    caption = f"<b>{escape(curve.name)}</b>{wrong}<span class='soft'>{escape(_summary(curve) + sampled)}</span>"
    resumed = [line.points[0][0] for line in curve.lines[1:]] if len(curve.lines) <= MOST_MARKS else []
    room = MOST_POINTS * 2 // len(curve.lines)
    picture = curve_chart([thin_curve(line.points, room) for line in curve.lines], resumed=resumed)
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>"


def _summary(curve: Curve) -> str:
    """Return ``2.31 → 0.0312 · lowest 0.0298 at step 900 · highest ...``."""
    points = curve.points
    ends = f"{short_number(points[0][1])} → {short_number(points[-1][1])}"
    low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
    words = (("lowest", low), ("highest", high))
    extremes = [
        f"{word} {short_number(point[1])} at {curve.axis} {point[0]:g}"
        for word, point in words
        if point not in (points[0], points[-1])
    ]
    return " · ".join([ends, *extremes])


def _attempts(report: RunReport) -> str:
    attempts = report.run.verdict.attempts
    rows = [_attempt(attempt, end, report) for attempt, end in attempt_ends(report)]
    early, late = rows[:-MOST_ATTEMPTS], rows[-MOST_ATTEMPTS:]
    folded = f"<details><summary>{plural(len(early), 'earlier attempt')}</summary>{_list(early)}</details>"
    strip = "".join(_strip(attempts, report)) if len(attempts) > 1 else ""
    before = _soft(f"It continues run {report.run.continues}.") if report.run.continues else ""
    strip = f'<div class="strip">{strip}</div>' if strip else ""
    return _section("Attempts", before, strip, folded if early else "", _list(late))


def _list(rows: Iterable[str]) -> str:
    return f'<ol class="attempts">{"".join(rows)}</ol>'


def _strip(attempts: Iterable[Attempt], report: RunReport) -> Iterator[str]:
    for attempt in attempts:
        took = elapsed(attempt.started, attempt.ended or report.run.verdict.ended or report.made.isoformat()) or 0.0
        tip = escape(f"attempt {attempt.number}: {attempt_took(attempt, report)}", quote=True)
        yield f'<i class="{_kind(attempt, report)}" style="flex-grow:{max(took, 0.001):.3f}" title="{tip}"></i>'


def _kind(attempt: Attempt, report: RunReport) -> str:
    if attempt.number == report.run.verdict.attempts[-1].number:
        return kind_of(report.run.verdict.state)
    return "warning" if attempt.cause else "info"  # the run survived it


def _attempt(attempt: Attempt, end: str, report: RunReport) -> str:
    where = f"{fold_names(attempt.hosts)} · {clock(attempt.started)} · {attempt_took(attempt, report)}"
    trace = attempt.cause.traceback if attempt.cause else None
    if attempt.number == report.run.verdict.attempts[-1].number:
        trace = None  # the top of the page shows it
    more = _folded("Traceback", trace) if trace else ""
    text = f"{end[:LONG]}…" if len(end) > LONG else end
    aside = f"<p>{escape(f'set aside: {set_aside_text(attempt)}')}</p>" if attempt.set_aside else ""
    return (
        f"<li><b>{attempt.number}</b><div><p>{escape(text)}</p>{aside}"
        f'<p class="soft">{escape(where)}</p>{more}</div></li>'
    )


# --- GPUs ------------------------------------------------------------------------------------------------------------


def _gpus(report: RunReport) -> str:
    """Return each GPU's use over the run, the least busy first: readers look for idle GPUs."""
    if not report.gpus:
        return ""
    shown = least_busy_first(report.gpus)[:MOST_GPUS]
    text = "How much of the time each had work, from the start of the run to its end; the least busy GPU comes first."
    if not any(gpu.held for gpu in shown):
        text = "All GPUs of the hosts: which of them the run used could not be seen. " + text
    head = "<th>GPU</th><th>use</th><th>use over time</th><th>most memory</th><th>hottest</th><th>most power</th>"
    rows = "".join(_gpu(gpu, report) for gpu in shown)
    left = len(report.gpus) - len(shown)
    more = _soft(f"{left} busier GPUs are left out here: `ddpctl report --json` has all.") if left else ""
    names = ", ".join(f"{count} × {name}" for name, count in Counter(gpu.name for gpu in report.gpus).items())
    return _section(
        "GPUs",
        _soft(f"{names}. {text}"),
        f'<div class="wide"><table class="hosts"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>',
        more,
    )


def _gpu(gpu: GpuUse, report: RunReport) -> str:
    began, took = report.run.verdict.started, report.duration_s
    picture = use_picture(use_over_time(gpu, began, max(took, 1.0), GPU_COLUMNS)) if began and took is not None else ""
    use = "-" if gpu.use is None else f"{gpu.use:.0f} %"
    figures = (
        memory_text(gpu),
        "-" if gpu.temperature_max is None else f"{gpu.temperature_max:.0f} °C",
        "-" if gpu.power_max_w is None else f"{gpu.power_max_w:.0f} W",
    )
    cells = "".join(f"<td>{escape(figure)}</td>" for figure in figures)
    return f"<tr><th>{escape(gpu.host)}:{gpu.index}</th><td>{use}</td><td>{picture}</td>{cells}</tr>"


# --- slow ranks ------------------------------------------------------------------------------------------------------


def _ranks(report: RunReport) -> str:
    """Return the ranks by their time in communication: the rank with the least is the rank that its peers wait for."""
    ranks = [entry for entry in report.ranks if COMM_SHARE in entry[2]]
    if len(ranks) < 2:
        run = report.run
        calm = not run.slow and not run.diagnosis and run.record.doctor and run.world_size > 1
        return _section("Ranks", _soft("The doctor saw no rank that the others waited for.")) if calm else ""
    shown = sorted(ranks, key=lambda entry: entry[2][COMM_SHARE])[:MOST_RANKS]
    rows = "".join(
        f"<tr><td>{rank}</td><td>{escape(host)}</td><td>{_bar(values[COMM_SHARE])}</td>"
        f"<td>{short_number(values[SAMPLES]) if SAMPLES in values else '-'}</td></tr>"
        for host, rank, values in shown
    )
    more = (
        _soft(f"{len(ranks) - len(shown)} more ranks, which wait longer, are not shown.") if ranks[len(shown) :] else ""
    )
    return _section(
        "Ranks",
        _soft("Time in communication, by the last line of each rank. The slowest rank waits least."),
        '<div class="wide"><table class="hosts"><thead><tr><th>rank</th><th>host</th><th>in communication</th>'
        f"<th>samples/s</th></tr></thead><tbody>{rows}</tbody></table></div>",
        more,
    )


def _bar(share: float) -> str:
    share = min(1.0, max(0.0, share))
    return f'<span class="bar"><i style="width:{share:.1%}"></i></span>{share:.0%}'


def _network(report: RunReport) -> str:
    if len(report.run.hosts) < 2:
        return ""
    if report.network is None:
        return _section("Network", _soft("It was not measured: preflight was skipped."))
    shown = matrix(report.network, HEAT_HOSTS)
    return _section("Network", _soft("As preflight measured it before the start."), heat_map(shown))


# --- what ran --------------------------------------------------------------------------------------------------------


def _checkpoints(report: RunReport) -> str:
    if not report.checkpoints:
        return ""
    rows = [
        (
            checkpoint.entry,
            "-" if checkpoint.step is None else str(checkpoint.step),
            size(checkpoint.size),
            clock(checkpoint.time),
            "complete" if checkpoint.complete else "not complete",
        )
        for checkpoint in report.checkpoints
    ]
    return _section("Checkpoints", table(("name", "step", "size", "saved", "state"), rows))


def _what_ran(report: RunReport) -> str:
    run = report.run
    facts: list[tuple[str, str]] = []
    if report.run.record.code:
        facts.append(("code", escape(code_text(report.run.record.code))))
    if versions := environments(report):
        facts.append(("torch", escape("; ".join(versions))))
    facts.append(("hosts", escape(fold_names(run.hosts))))
    facts.append(("world size", str(run.world_size)))
    facts.append(("started", escape(origin_text(report))))
    if run.verdict.ended:
        facts.append(("ended", escape(clock(run.verdict.ended))))
    if report.command:
        facts.append(
            (
                f"on {next(iter(report.launches))}",
                f'<pre style="margin:0">{escape(display(list(report.command)))}</pre>',
            )
        )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in facts)
    return _section("What ran", f'<dl class="card">{listed}</dl>', _settings(report.settings), _hosts(report))


def _settings(settings: Mapping[str, object]) -> str:
    if not settings:
        return ""
    text = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
    return f"<details><summary>Settings of the job</summary><pre>{escape(text)}</pre></details>"


def _hosts(report: RunReport) -> str:
    rows = [
        (
            node.host,
            node.state,
            fold_ranks(node.ranks),
            "-" if node.exit_code is None else str(node.exit_code),
            report.launches.get(node.host, RecordedLaunch()).torch or "-",
        )
        for node in report.run.nodes
    ]
    is_open = " open" if len(rows) <= MANY_HOSTS else ""
    made = table(("host", "state", "ranks", "exit", "torch"), rows)
    return f"<details{is_open}><summary>{plural(len(rows), 'host')}</summary>{made}</details>"


def _foot(report: RunReport) -> str:
    live = "" if report.run.verdict.terminal else " The run was live at that time."
    made = clock(report.made.isoformat(timespec="seconds"))
    text = f"Made by ddpctl {ddpctl.__version__} on {made} from the records of {plural(len(report.launches), 'host')}."
    return f'<footer class="soft">{escape(text + live)}</footer>'
