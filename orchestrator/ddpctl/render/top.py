"""The rows of ``ddpctl top``: pure functions from the hosts' pulses to the cells of tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.render.clean import clean
from ddpctl.render.console import Whole, columns
from ddpctl.render.status import (
    FROM_OUTPUT,
    age_text,
    attempt_line,
    cause_line,
    placed_text,
    slots_by_host,
    slow_line,
    state_text,
    stuck_line,
)
from ddpctl.spec.fold import one_line
from ddpctl.spec.metrics import COUNTERS, SAMPLES
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.slots import Claim, OtherRun, place_of_run, slots_of_run
from ddpctl.spec.status import RunStatus, differing_arguments
from ddpctl.spec.top import GpuPulse, Holder, HostView, Overview, Pulse, RankPulse
from ddpctl.spec.values import plural
from ddpctl_worker.wire import contract

HOST_COLUMNS = ("HOST", "LOAD", "CPU", "MEMORY", "GPU", "GPU MEM", "TEMP", "POWER", "IN USE BY")
RUN_COLUMNS = ("JOB", "STATE", "NODES", "STEP", "SAMPLES/S", "STARTED", "RUN", "NOTE")
RANK_COLUMNS = ("RANK", "HOST", "PID", "STATE", "CPU", "RSS", "GPU", "STEP", "SAMPLES/S", "OUTPUT", "NOTE")
UNFOLDED = 16  # GPUs; with more, only the GPUs of opened hosts have rows
UNKNOWN = "unknown"
_LATE = {"runs": "the disk", "gpus": "the GPU driver", "claims": "the folder of the slots"}
_FAILED = {"runs": "the runs", "gpus": "the GPUs", "claims": "the runs of other accounts"}
_GB = 1e9


@dataclass(frozen=True)
class TopRow:
    """A row of a table. ``key`` names its subject and stays the same from one refresh to the next."""

    key: str
    cells: tuple[Text, ...]

    def has(self, word: str) -> bool:
        """Return whether a cell contains this word, in any case."""
        return any(word.lower() in cell.plain.lower() for cell in self.cells)


def _row(key: str, *cells: str | Text) -> TopRow:
    """Return a row of clean text: a cell cannot steer the terminal or begin another line."""
    texts = (cell if isinstance(cell, Text) else Text(cell) for cell in cells)
    return TopRow(key, tuple(Text(clean(" ".join(text.plain.split("\n"))), text.style) for text in texts))


def host_rows(seen: Overview, opened: Collection[str] = ()) -> list[TopRow]:
    """Return a row for each host, and below it its GPUs if there are few GPUs or the host is ``opened``."""
    unfold = sum(len(view.pulse.gpus or ()) for view in seen.hosts if view.pulse) <= UNFOLDED
    rows = []
    for view in seen.hosts:
        rows.append(_host_row(seen, view))
        if view.pulse is not None and (unfold or view.host in opened):
            rows += [_gpu_row(f"{view.host}/{place}", gpu) for place, gpu in enumerate(view.pulse.gpus or ())]
    return rows


def _host_row(seen: Overview, view: HostView) -> TopRow:
    pulse = view.pulse
    if pulse is None:
        return _row(view.host, view.host, *["-"] * (len(HOST_COLUMNS) - 2), Text(view.error or "", "yellow"))
    gpus = pulse.gpus or ()
    return _row(
        view.host,
        view.host,
        _number(pulse.load, "{:.1f}"),
        _number(pulse.cpu, "{:.0f}%"),
        _of(pulse.memory, pulse.memory_total),
        UNKNOWN if pulse.gpus is None else _uses(gpus),
        _of(_sum([gpu.memory for gpu in gpus]), _sum([gpu.memory_total for gpu in gpus])),
        _number(max((gpu.temperature for gpu in gpus if gpu.temperature is not None), default=None), "{:.0f}C"),
        _number(_sum([gpu.power_w for gpu in gpus]), "{:.0f}W"),
        Text("; ".join(_used_by(seen, pulse)), "yellow" if pulse.late or pulse.errors or pulse.gpu_error else ""),
    )


def _uses(gpus: Sequence[GpuPulse]) -> str:
    """Return ``8: 97%``: the number of GPUs and the mean of the known values."""
    known = [gpu.use for gpu in gpus if gpu.use is not None]
    if not gpus:
        return "-"
    return f"{len(gpus)}: {sum(known) / len(known):.0f}%" if known else f"{len(gpus)}: {UNKNOWN}"


def _used_by(seen: Overview, pulse: Pulse) -> Iterator[str]:
    """Yield the live runs of all accounts on the host, other holders of its GPUs, and the host's faults."""
    here = {run.run: _job_text(seen, run) for run in seen.runs if run.run in pulse.runs and not run.verdict.terminal}
    yield from here.values()
    yield from dict.fromkeys(_claimed_by(claim) for claim in pulse.claims if claim.slots)
    holders = [holder for gpu in pulse.gpus or () for holder in gpu.holders if holder.run not in here]
    yield from dict.fromkeys(_who(holder, ranks=False) for holder in holders)
    for what, seconds in pulse.late.items():
        yield f"{_LATE[what]} has not answered for {seconds:.0f} s"
    for what, error in pulse.errors.items():
        yield f"{_FAILED[what]} cannot be read: {error}"
    if pulse.gpu_error:
        yield pulse.gpu_error


def _gpu_row(key: str, gpu: GpuPulse) -> TopRow:
    watts = _number(gpu.power_w, "{:.0f}W")
    limit = "" if gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
    return _row(
        key,
        f"  gpu{gpu.index} {gpu.name.removeprefix('NVIDIA ')}",
        "",
        "",
        "",
        UNKNOWN if gpu.use is None else f"{gpu.use:.0f}%",
        _of(gpu.memory, gpu.memory_total),
        _number(gpu.temperature, "{:.0f}C"),
        f"{watts}{limit}",
        Text(gpu.error, "bold red") if gpu.error else "; ".join(_who(holder) for holder in gpu.holders) or "free",
    )


def _claimed_by(claim: Claim) -> str:
    return f"{claim.account}: run {claim.job}"


def _who(holder: Holder, *, ranks: bool = True) -> str:
    """Return ``train rank 3``, ``ada: python serve.py (pid 4021)``, or the pid of a process in another container."""
    if holder.run is not None:
        rank = f" rank {holder.rank}" if ranks and holder.rank is not None else ""
        return f"{holder.job or holder.run}{rank}"
    if holder.user is None:
        return f"pid {holder.pid}, not seen from here"
    return f"{holder.user}: {holder.command} (pid {holder.pid})"


def run_rows(seen: Overview) -> list[TopRow]:
    """Return a row for each run of this account, then for each run of other accounts."""
    return [_run_row(seen, run) for run in seen.runs] + [_other_row(run) for run in seen.others]


def _job_text(seen: Overview, run: RunStatus) -> str:
    """Return ``train``, or ``train (exp1-7f3a)`` if there are runs of several projects."""
    return f"{run.job} ({run.project})" if len({each.project for each in seen.runs}) > 1 else run.job


def _run_row(seen: Overview, run: RunStatus) -> TopRow:
    values = seen.values(run.run)
    return _row(
        run.run,
        _job_text(seen, run),
        state_text(run.verdict.state),
        join_rows(run),
        _number(values.get("step"), "{:.0f}"),
        _rate(values.get(SAMPLES)),
        age_text(run.verdict.started),
        run.run,
        Text("; ".join([*notes(run), *_arguments(seen, run)]), "yellow"),
    )


def _arguments(seen: Overview, run: RunStatus) -> list[str]:
    """Return the arguments in which the run differs from other runs of its program, as a list of at most one item."""
    own = differing_arguments(seen.runs).get(run.run)
    return [clean(one_line(own))] if own else []


def _other_row(other: OtherRun) -> TopRow:
    """Return the row of another account's run: what its claims show."""
    run, now = other.first, datetime.now(timezone.utc)
    slots = slots_by_host(slots_of_run(other.claims, run.run))
    return _row(
        f"{run.account}/{run.run}",
        run.job,
        placed_text(other.state, place_of_run(other.claims, run.run)),
        str(len(other.hosts)),
        "-",
        "-",
        age_text(other.started(now), now),
        run.run,
        f"account {run.account}" + ("" if slots == "-" else f", slots {slots}"),
    )


def join_rows(run: RunStatus) -> str:
    """Return ``4``, or ``1 of 4`` while some nodes have not joined yet."""
    nodes = run.verdict.active_nodes
    there = sum(node.state == contract.RUNNING for node in nodes)
    return f"{there} of {len(nodes)}" if run.verdict.state in contract.COMING else str(len(nodes))


def notes(run: RunStatus) -> list[str]:
    """Return notes on a run: why it failed or is stuck, slow ranks, and hosts without an answer."""
    found = [cause_line(run.verdict.cause)] if run.verdict.cause and run.verdict.terminal else []
    if run.diagnosis and not run.verdict.terminal:
        found.append(stuck_line(run))
    if not run.verdict.terminal:
        found += [slow_line(slow) for slow in run.slow]
        found += [f"{node.host}: {node.note}" for node in run.nodes if node.state == contract.QUEUED and node.note]
        silent = [node for node in run.verdict.active_nodes if node.state in contract.NODE_ONLY]
        found += [f"{node.host} is {node.state}" for node in silent]
        found += [attempt_line(attempt) for attempt in run.verdict.attempts[-2:-1]]
    return found


def run_head(seen: Overview, run: RunStatus) -> Text:
    """Return the lines above the ranks of a run."""
    head = Text.assemble(f"{run.job}  ", state_text(run.verdict.state), f"  run {run.run}  project {run.project}  ")
    head.append(f"{plural(len(run.verdict.active_nodes), 'node')}  world size {run.world_size}")
    if run.verdict.state in contract.COMING:
        head.append(f"  {join_rows(run)} nodes have joined")
    if run.verdict.started:
        head.append("\n" + "  ".join((f"started {age_text(run.verdict.started)}", *_measured(seen, run))))
    for line in [*_arguments(seen, run), *notes(run)]:
        head.append(f"\n{clean(' '.join(line.split()))}", "yellow")
    return head


def _measured(seen: Overview, run: RunStatus) -> Iterator[str]:
    for name, value in seen.values(run.run).items():
        yield f"{name} {value:.0f}" if name in COUNTERS else f"{name} {_rate(value)}"
    if seen.printed(run.run) and not seen.metrics(run.run):
        yield FROM_OUTPUT


def rank_rows(seen: Overview, run: RunStatus) -> list[TopRow]:
    """Return a row for each rank, in order."""
    rows = {rank: _rank_row(seen, run, node, rank) for node in run.verdict.active_nodes for rank in node.ranks}
    return [rows[rank] for rank in sorted(rows)]


def _rank_row(seen: Overview, run: RunStatus, node: NodeStatus, rank: int) -> TopRow:
    host = seen.pulse(node.host)
    of_run = host.runs.get(run.run, {}) if host is not None else {}
    pulse = of_run.get(str(rank), RankPulse())
    slow = [slow for slow in run.slow if slow.rank == rank and not run.verdict.terminal]
    suspects = run.diagnosis.suspects if run.diagnosis and not run.verdict.terminal else ()
    note = [f"slow: last in {100 * lag.last_share:.0f}% of steps, {lag.lag_ms} ms" for lag in slow]
    note += ["the others wait for it" for suspect in suspects if suspect.rank == rank]
    gpus = host.gpus if host is not None else None
    held = [gpu for gpu in gpus or () if any(who.run == run.run and who.rank == rank for who in gpu.holders)]
    return _row(
        str(rank),
        str(rank),
        node.host,
        _number(pulse.pid, "{}"),
        _rank_state(node, pulse, host),
        _number(pulse.cpu, "{:.0f}%"),
        _number(pulse.rss_mb, "{:.0f}MB"),
        ", ".join(f"{gpu.index}: {_number(gpu.use, '{:.0f}%')}" for gpu in held) or "-",
        _number(pulse.metrics.get("step", pulse.printed.get("step")), "{:.0f}"),
        _rate(pulse.metrics.get(SAMPLES)),
        "-" if pulse.output_age_s is None else f"{pulse.output_age_s:.0f}s",
        Text("; ".join(note), "yellow"),
    )


def _rank_state(node: NodeStatus, pulse: RankPulse, host: Pulse | None) -> str | Text:
    """Return the state of the rank's process, or the node's state if no process is visible."""
    if node.state in contract.TERMINAL or pulse.state is None:
        return state_text(node.state)
    return Text(UNKNOWN, "yellow") if host is None or "runs" in {*host.late, *host.errors} else pulse.state


def summary(seen: Overview) -> Text:
    """Return ``4 hosts, 1 without an answer (node3)  32 GPUs, 97% in use  2 runs live``."""
    silent = [view.host for view in seen.hosts if view.pulse is None]
    gpus = [gpu for view in seen.hosts if view.pulse for gpu in view.pulse.gpus or ()]
    live = sum(not run.verdict.terminal for run in seen.runs)
    text = Text(plural(len(seen.hosts), "host"))
    if silent:
        text.append(f", {len(silent)} without an answer ({fold_names(silent)})", "yellow")
    if gpus:
        known = [gpu.use for gpu in gpus if gpu.use is not None]
        mean = f"{sum(known) / len(known):.0f}%" if known else UNKNOWN
        text.append(f"  {plural(len(gpus), 'GPU')}, {mean} in use")
    text.append(f"  {plural(live, 'live run')}")
    return text.append(f", {len(seen.others)} of other accounts") if seen.others else text


def overview_view(seen: Overview) -> RenderableType:
    """Return the whole overview as a page, for a pipe."""
    hosts = [view.host for view in seen.hosts]
    parts: list[RenderableType] = [summary(seen), Text(""), _table(HOST_COLUMNS, host_rows(seen, hosts))]
    if seen.runs or seen.others:
        parts += [Text(""), _table(RUN_COLUMNS, run_rows(seen))]
    return Group(*parts)


def run_view(seen: Overview, run: RunStatus) -> RenderableType:
    """Return a run as a page."""
    return Group(run_head(seen, run), Text(""), _table(RANK_COLUMNS, rank_rows(seen, run)))


def _table(names: Sequence[str], rows: Sequence[TopRow]) -> RenderableType:
    table = columns(*names)
    for row in rows:
        table.add_row(*row.cells)
    return Whole(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _rate(value: float | None) -> str:
    """Return a number with as many digits as a person can read."""
    return _number(value, "{:.0f}" if value is not None and abs(value) >= 100 else "{:.3g}")


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _of(used: float | None, total: float | None) -> str:
    """Return ``31/64G``, with a decimal for small totals."""
    if used is None or not total:
        return "-"
    return f"{used / _GB:.{int(total < 10 * _GB)}f}/{total / _GB:.{int(total < 10 * _GB)}f}G"
