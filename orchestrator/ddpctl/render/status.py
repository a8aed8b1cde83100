"""A run as text: its plan, its state, its end, and lists of runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.errors import ConnectError
from ddpctl.render.clean import clean
from ddpctl.render.console import Fitted, Whole, columns
from ddpctl.render.push import size
from ddpctl.spec.checkpoints import lag_line
from ddpctl.spec.command import REDACTED, display
from ddpctl.spec.fold import one_line
from ddpctl.spec.kill import KillOutcome, SavedOutcome, StoppedNode
from ddpctl.spec.outcome import Attempt, Cause, CheckpointLag, NodeStatus, Straggler, Untracked
from ddpctl.spec.plan import NodePlan, Plan
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.removal import RemovedRun
from ddpctl.spec.slots import Claim, OtherRun, fold_numbers, place_of_run, slots_of_run
from ddpctl.spec.status import LOST_FOR_RUN, RunStatus, differing_arguments
from ddpctl.spec.values import plural
from ddpctl.spec.verdict import end_and_continue, no_majority
from ddpctl_worker.wire import contract

_STYLE = {
    contract.SUCCEEDED: "green",
    contract.QUEUED: "magenta",
    contract.RUNNING: "cyan",
    contract.STARTING: "cyan",
    contract.FAILED: "bold red",
    contract.LOST: "bold red",
    contract.KILLED: "yellow",
    contract.STOPPING: "yellow",
    contract.UNREACHABLE: "bold red",
    contract.STALE: "yellow",
}


_RUN_COLUMNS = ("JOB", "PROJECT", "RUN", "STATE", "STARTED", "TIME", "HOSTS", "SLOTS", "USER", "CLUSTER")
# PROJECT is shown unless all runs are of the inventory's own project, SLOTS where a run has any. A narrow terminal
# shows no SLOTS, no CLUSTER, which is nearly always the same in every row, and no USER if all rows have the same.
_NARROW = 76
MOST_UNTRACKED = 4  # hosts with their own line
_LONG_USER = 8
FROM_OUTPUT = "(read from the output)"


def plan_view(plan: Plan) -> RenderableType:
    """Return the whole plan. No host was contacted to make it."""
    head = Text(f"{plan.job}  run {plan.run}  cluster {plan.cluster}  project {plan.project}")
    head.append(f"  master {plan.master} ({plan.master_addr})")
    if plan.world_size is not None:
        head.append(f"  world size {plan.world_size}")
    parts: list[RenderableType] = [head]
    if plan.code is not None:
        commit = f", commit {plan.code.git_commit[:12]}" if plan.code.git_commit else ""
        dirty = " (dirty)" if plan.code.dirty else ""
        parts.append(Text(f"code  {plan.code.sha256[:12]}, {plan.code.size} bytes{commit}{dirty}"))
    parts += [Text(f"link  {name} -> {place}") for name, place in plan.links.items()]
    for name, text in (("before", plan.before), ("after", plan.after)):
        parts += [Text(f"{name}  {line}") for line in (text or "").splitlines()]
    parts += [Text(f"notify  {_notifier(notifier)}") for notifier in plan.notify]
    parts += [_node_view(node) for node in plan.active]
    spares = plan.nodes[len(plan.active) :]
    parts += [Text(f"\n{node.host}  spare: it takes the place of a host that is lost", style="bold") for node in spares]
    if plan.open_questions:
        parts.append(Text("found on the nodes at launch:", style="yellow"))
        parts += [Text(f"  {question}") for question in plan.open_questions]
    return Group(*parts)


def _notifier(notifier: Mapping[str, Any]) -> str:
    """Return ``command mail -s done me@example.org`` or ``webhook https://hooks.example.org/********``."""
    return f"webhook {notifier['webhook']}" if "webhook" in notifier else f"command {display(notifier['command'])}"


def _node_view(node: NodePlan) -> RenderableType:
    """Return a node: host, folder, environment, command line."""
    lines = [Text(f"\n{node.host}  node rank {node.node_rank}", style="bold"), Text(f"  cd {node.command.cwd}")]
    for name, value in sorted(node.command.env.items()):
        lines.append(Text(f"  {name}={shlex.quote(value)}"))
    lines += [Text(f"  {name}={REDACTED}") for name in node.secret_names]
    lines.append(Text(f"  {display(node.command.argv)}"))
    return Group(*lines)


def state_text(state: str) -> Text:
    return Text(state, style=_STYLE.get(state, ""))


def status_view(run: RunStatus, *, candidates: bool = False, hint: bool = True) -> RenderableType:
    """Return a run: a row for each node, and its cause if it failed.

    ``candidates``: also other possible causes. ``hint``: the next step below the cause.
    """
    head = Text.assemble(f"{run.job}  ", state_text(run.verdict.state), f"  run {run.run}  world size {run.world_size}")
    head.append(f"\ncluster {run.cluster}  project {run.project}")
    started, ended = run.verdict.started, run.verdict.ended
    if started:
        head.append(f"  started {age_text(started)}")
    if ended:
        head.append(f"  ended {age_text(ended)}, after {duration_text(started, ended, live=False)}")
    if run.program_line:
        head.append(f"\nruns {clean(one_line(run.program_line))}")
    table = columns("HOST", "NODE RANK", "RANKS", "STATE", "PID", "EXIT", "HEARTBEAT")
    for node in run.verdict.active_nodes:
        table.add_row(
            Text(node.host),
            str(node.node_rank),
            fold_ranks(node.ranks),
            state_text(node.state),
            _or_dash(node.pid),
            _or_dash(node.exit_code),
            "-" if node.heartbeat_age_s is None else _age(node.heartbeat_age_s),
        )
    parts: list[RenderableType] = [head, Whole(table)]
    if run.continues:
        parts.append(Text(f"continues run {run.continues}"))
    parts += [Text(attempt_line(one), style="yellow") for one in run.verdict.attempts[:-1]]
    spares = [host for host in run.hosts if host not in run.verdict.attempts[-1].hosts]
    if spares:
        parts.append(Text(f"not in use: {fold_names(spares)}"))
    if run.metrics:
        parts.append(Text(metrics_line(run)))
    if run.lag:
        parts.append(lag_text(run.lag))
    parts += [Text(keeper_line(host, since), style="yellow") for host, since in run.without_keeper]
    if run.unfinished:
        parts.append(Text(unfinished_line(run), style="yellow"))
    if run.diagnosis:
        parts.append(Text(stuck_line(run), style="bold yellow"))
    parts += [Text(slow_line(one), style="yellow") for one in run.slow]
    if run.verdict.cause:
        parts.append(cause_view(run.verdict.cause, run.hint if hint else None))
    if candidates and run.verdict.candidates:
        parts.append(Text("other possible causes, earliest first:", style="bold"))
        parts += [Text(f"{cause.time}  {cause_line(cause)}") for cause in run.verdict.candidates]
    parts += [Text(left_line(node), style="yellow") for node in run.verdict.departed_nodes]
    parts += [Text(f"{node.host}: {node.note}", style="yellow") for node in run.nodes if node.note]
    if run.record.restart is not None and not run.verdict.terminal:
        lost = [node.host for node in run.nodes if node.state == contract.LOST]
        parts += [Text(f"{host} is lost: {LOST_FOR_RUN}", style="yellow") for host in lost]
        if run.verdict.lacks_majority:
            words = no_majority(len(run.nodes) - len(lost), len(run.nodes))
            parts.append(Text(f"{words}; {end_and_continue(run.run)}", style="yellow"))
    if bothered := [node for node in run.nodes if node.strangers]:
        parts.append(Text(strangers_line(bothered), style="yellow"))
    parts += [Text(line, style="yellow") for line in untracked_lines(run.run, run.untracked)]
    dropped = sum(node.dropped_lines for node in run.nodes)
    if dropped:
        parts.append(Text(f"{dropped} lines of output were dropped (disk full or over the cap)", style="yellow"))
    return Group(*parts)


def attempt_line(attempt: Attempt) -> str:
    """Return ``attempt 1 on node[0-2], 3m ago: node1: node_lost: nothing was heard from node1; set aside: ...``."""
    line = f"attempt {attempt.number} on {fold_names(attempt.hosts)}, {age_text(attempt.ended)}: {attempt_end(attempt)}"
    aside = set_aside_text(attempt)
    return f"{line}; set aside: {aside}" if aside else line


def attempt_end(attempt: Attempt) -> str:
    """Return why an attempt ended that another attempt followed."""
    return cause_line(attempt.cause) if attempt.cause else "ended"


def set_aside_text(attempt: Attempt) -> str:
    """Return ``node1 (nothing was heard from it)``: the hosts that the next attempt leaves out."""
    return ", ".join(f"{excluded.host} ({excluded.why})" for excluded in attempt.set_aside)


def metrics_line(run: RunStatus) -> str:
    """Return ``step 120  loss 0.31``, with a remark if the values come from the output."""
    values = "  ".join(f"{name} {value:.6g}" for name, value in run.metrics.items())
    return f"{values}  {FROM_OUTPUT}" if run.metrics_are_printed else values


def unfinished_line(run: RunStatus) -> str:
    """Return ``cut off while it was saved: step_20.pt on node0 (31.5 MB)``."""
    files = [f"{clean(one_line(file['path']))} on {file['host']} ({size(file['bytes'])})" for file in run.unfinished]
    return f"cut off while {'it was' if len(files) == 1 else 'they were'} saved: {', '.join(files)}"


def lag_text(lag: CheckpointLag) -> Text:
    return Text(lag_line(lag), style="yellow" if lag.late else "")


def keeper_line(host: str, since: str, now: datetime | None = None) -> str:
    """Return ``node1: the keeper of checkpoints ended 5m ago: ...``, with what that means."""
    later = "a checkpoint after that has no manifest and no copies until the job is started again"
    return f"{host}: the keeper of checkpoints ended {age_text(since, now)}: {later}"


def cause_view(cause: Cause, hint: str | None = None) -> RenderableType:
    """Return the place and the reason, the next step, and the traceback if there is one."""
    lines = [Text(cause_line(cause), style="bold red"), *([Text(f"hint: {hint}")] if hint else [])]
    if cause.traceback:
        lines.append(Text(cause.traceback.rstrip()))
    return Group(*lines)


def untracked_lines(run: str, found: Sequence[Untracked]) -> list[str]:
    """Return ``node0: 2 files that no output covers stay on the node: best.pth (15 kB), log.txt (80 B), ...``.

    The last line says how to bring such a file.
    """
    lines = [_untracked_line(files) for files in found[:MOST_UNTRACKED]]
    if len(found) > MOST_UNTRACKED:
        lines.append(f"... and such files on {fold_names([files.host for files in found[MOST_UNTRACKED:]])}")
    if named := [name for files in found for name, _ in files.largest]:
        name = shlex.quote(named[0])
        lines.append(f"to bring one: ddpctl fetch {run} --output {name}; of later runs: `outputs: [{named[0]}]`")
    return lines


def _untracked_line(untracked: Untracked) -> str:
    if untracked.error is not None:
        return f"{untracked.host}: whether files that no output covers stay there is not known: {untracked.error}"
    named = ", ".join(f"{name} ({size(length)})" for name, length in untracked.largest)
    more = f" and {untracked.files - len(untracked.largest)} more" if untracked.files > len(untracked.largest) else ""
    count = f"{'' if untracked.whole else 'at least '}{plural(untracked.files, 'file')}"
    verb = "stays" if untracked.files == 1 else "stay"
    return f"{untracked.host}: {count} that no output covers {verb} on the node: {named}{more}, in {untracked.folder}"


def left_line(node: NodeStatus) -> str:
    """Return ``node2 takes part no more: node2: signaled: the launcher was killed by SIGKILL``."""
    return f"{node.host} takes part no more: {cause_line(node.cause) if node.cause else node.state}"


def stuck_line(run: RunStatus, now: datetime | None = None) -> str:
    """Return ``stuck for 40s: 3 of 4 ranks wait in all_reduce #12 (train.py:88 in step); rank 13 on node6 is at ...``.

    If the run is over: ``was stuck for 40s when it ended: ...``. The run must have a diagnosis.
    """
    diagnosis = run.diagnosis
    assert diagnosis is not None
    if run.verdict.terminal:
        took = duration_text(diagnosis.since, run.verdict.ended or diagnosis.time, live=False)
        return f"was stuck for {took} when it ended: {diagnosis.verdict}"
    return f"stuck for {age_text(diagnosis.since, now).removesuffix(' ago')}: {diagnosis.verdict}"


def strangers_line(nodes: Sequence[NodeStatus], now: datetime | None = None) -> str:
    """Return ``4,210 connections by strangers from 10.0.0.9 and 3 other addresses to node[0-2], the last 2s ago``."""
    strangers = [node.strangers for node in nodes if node.strangers]
    counts: dict[str, int] = {}
    for seen in strangers:
        for address, number in seen.most.items():
            counts[address] = counts.get(address, 0) + number
    first = max(counts, key=lambda address: counts[address])
    others = max(len(counts), *(seen.addresses for seen in strangers)) - 1
    source = first if others < 1 else f"{first} and {plural(others, 'other address')}"
    total, last = sum(seen.count for seen in strangers), max(seen.last for seen in strangers)
    line = f"{total:,} connections by strangers from {source} to {fold_names([node.host for node in nodes])}"
    return f"{line}, the last {age_text(last, now)}: they were closed, and the run is not harmed"


def end_line(run: RunStatus) -> str:
    """Return the cause of a run's end, and what the run was stuck in unless both name the same rank."""
    why = cause_line(run.verdict.cause) if run.verdict.cause else "no node recorded a cause"
    suspects = [(suspect.host, suspect.rank) for suspect in run.diagnosis.suspects] if run.diagnosis else []
    same_rank = run.verdict.cause is not None and (run.verdict.cause.host, run.verdict.cause.rank) in suspects
    return f"{why}; it {stuck_line(run)}" if run.diagnosis and run.verdict.terminal and not same_rank else why


def slow_line(slow: Straggler) -> str:
    """Return ``slow: rank 2 on node1 is the last one in 94 % of the steps, 22.0 ms after the others``."""
    who, share = f"rank {slow.rank} on {slow.host}", round(100 * slow.last_share)
    line = f"slow: {who} is the last one in {share} % of the steps, {slow.lag_ms} ms after the others"
    return "; ".join((line, *slow.why))


def cause_line(cause: Cause) -> str:
    """Return ``node1 rank 3: exited: rank 3 exited with code 1: ValueError: boom``."""
    rank = "" if cause.rank is None else f" rank {cause.rank}"
    return f"{cause.host}{rank}: {cause.reason}: {' '.join(cause.message.split())}"


def duration_text(start: str | None, end: str | None, *, live: bool, now: datetime | None = None) -> str:
    """Return ``3m07s`` from start to end, or until now for a ``live`` run; ``-`` if a record lacks a time."""
    first = _moment(start)
    last = (now or datetime.now(timezone.utc)) if live else _moment(end)
    if first is None or last is None:
        return "-"
    seconds = max(0, round((last - first).total_seconds()))
    for unit, length, below, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= length:
            return f"{seconds // length}{unit}{seconds % length // part:02}{below}"
    return f"{seconds}s"


def fold_ranks(ranks: Sequence[int]) -> str:
    """Return ``0-3`` for (0, 1, 2, 3); the ranks of a node are consecutive."""
    if not ranks:
        return "-"
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def age_text(time: str | None, now: datetime | None = None) -> str:
    """Return ``2m ago`` for a time in ISO 8601 with its zone; ``-`` without a time, or if it is damaged."""
    then = _moment(time)
    return "-" if then is None else _age(((now or datetime.now(timezone.utc)) - then).total_seconds())


def _moment(time: str | None) -> datetime | None:
    """Return the time of a record, if there is a readable time."""
    try:
        then = datetime.fromisoformat((time or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return then if then.tzinfo is not None else None


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit} ago"
    return f"{max(0.0, seconds):.0f}s ago"  # a node's clock may be ahead of this machine's


def runs_table(
    runs: Sequence[RunStatus], project: str, others: Sequence[OtherRun] = (), claims: Sequence[Claim] = ()
) -> RenderableType:
    """Return the table of ``ddpctl ps``, newest first. ``project`` is the inventory's, ``others`` of other accounts.

    A narrow terminal gets shorter names of jobs and hosts, but whole run ids. Below the table are the arguments in
    which runs of a program differ.
    """
    rows = [(run.run, len(run.hosts), _cells(run, claims)) for run in runs]
    rows += [(other.first.run, len(other.hosts), _other_cells(other)) for other in others]
    rows.sort(key=lambda row: row[0], reverse=True)
    several = len({row["USER"].plain for _, _, row in rows}) > 1
    hidden = set() if {row["PROJECT"].plain for _, _, row in rows} - {project} else {"PROJECT"}
    hidden |= set() if any(row["SLOTS"].plain != "-" for _, _, row in rows) else {"SLOTS"}
    names = [name for name in _RUN_COLUMNS if name not in hidden]
    wide = columns(*names)
    no_room = {"CLUSTER", "SLOTS", *([] if several else ["USER"])}
    narrow = columns(*(name for name in names if name not in no_room))
    for column in narrow.columns:
        column.no_wrap = column.header not in ("JOB", "PROJECT")  # rich takes room from all other columns first
    for _, hosts, row in rows:
        wide.add_row(*(row[name] for name in names))
        short = _shortened(row, str(hosts), few=5 if several else 9)
        narrow.add_row(*(short[str(column.header)] for column in narrow.columns))
    stuck = [Text(f"{run.job}: {stuck_line(run)}", style="bold yellow") for run in runs if run.diagnosis]
    own = differing_arguments(runs)
    arguments = [Text(clean(f"{run.run} {run.job}: {one_line(own[run.run])}")) for run in runs if run.run in own]
    return Group(Fitted(wide, narrow, _NARROW), *stuck, *arguments[::-1])


def _cells(run: RunStatus, claims: Sequence[Claim]) -> dict[str, Text]:
    """Return a run's row, by column."""
    place = place_of_run(claims, run.run) if run.verdict.state == contract.QUEUED else None
    return {
        "JOB": Text(run.job),
        "PROJECT": Text(run.project),
        "RUN": Text(run.run),
        "STATE": placed_text(run.verdict.state, place),
        "STARTED": Text(age_text(run.verdict.started)),
        "TIME": Text(duration_text(run.verdict.started, run.verdict.ended, live=not run.verdict.terminal)),
        "HOSTS": Text(fold_names(run.hosts)),
        "SLOTS": Text(slots_by_host(slots_of_run(claims, run.run))),
        "USER": Text(run.user or "-"),
        "CLUSTER": Text(run.cluster),
    }


def _other_cells(other: OtherRun) -> dict[str, Text]:
    """Return the row of another account's run: what its claims show."""
    now = datetime.now(timezone.utc)
    run, started = other.first, other.started(now)
    return {
        "JOB": Text(run.job),
        "PROJECT": Text(run.project),
        "RUN": Text(run.run),
        "STATE": placed_text(other.state, place_of_run(other.claims, run.run)),
        "STARTED": Text(age_text(started, now)),
        "TIME": Text(duration_text(started, None, live=True, now=now)),
        "HOSTS": Text(fold_names(other.hosts)),
        "SLOTS": Text(slots_by_host(slots_of_run(other.claims, run.run))),
        "USER": Text(run.account),
        "CLUSTER": Text(run.cluster),
    }


def placed_text(state: str, place: int | None) -> Text:
    """Return the state, and the place of a run that waits in line: ``queued 2``."""
    return state_text(state) if place is None else Text.assemble(state_text(state), f" {place}")


def slots_by_host(by_host: Mapping[str, Sequence[int]]) -> str:
    """Return ``0-3``, or ``node0:0-3 node1:4-7`` where the hosts of a run differ."""
    texts = {host: fold_numbers(numbers) for host, numbers in by_host.items()}
    if len(set(texts.values())) <= 1:
        return next(iter(texts.values()), "-")
    return " ".join(f"{host}:{text}" for host, text in texts.items())


def _shortened(row: Mapping[str, Text], count: str, *, few: int) -> dict[str, Text]:
    """Return the row for a narrow terminal.

    The job's name is cut off at the end of its column. A list of hosts of more than ``few`` letters becomes their
    number.
    """
    job, project, hosts, user = (row[name].copy() for name in ("JOB", "PROJECT", "HOSTS", "USER"))
    for cell in (job, project):
        cell.no_wrap, cell.overflow = True, "ellipsis"
    if len(hosts.plain) > few:
        hosts = Text(count)
    user.truncate(_LONG_USER, overflow="ellipsis")
    return {**row, "JOB": job, "PROJECT": project, "HOSTS": hosts, "USER": user}


def kill_view(outcome: KillOutcome) -> RenderableType:
    """Return the result of a kill, host by host, with the proof."""
    table = columns("HOST", "SIGNALLED", "FORCED", "LEFT")
    for node in outcome.nodes:
        left = Text("none", style="green") if node.reachable else Text(_unknown(node), style="bold red")
        if node.survivors:
            left = Text(", ".join(f"pid {process.pid} ({process.cmd})" for process in node.survivors), style="bold red")
        table.add_row(Text(node.host), str(node.signalled), str(node.forced), left)
    head = Text.assemble(
        f"{outcome.job}  ", state_text(outcome.state), f"  run {outcome.run}  {outcome.duration_s:.1f}s"
    )
    if outcome.saved is not None:
        head.append(f"  saved {outcome.saved}")
    if outcome.state != contract.KILLED and not any(node.signalled for node in outcome.nodes):
        head.append("  it was over already")
    return Group(head, Whole(table))


def removal_view(runs: Sequence[RemovedRun]) -> RenderableType:
    """Return the lines of ``ddpctl rm``: a line for each run."""
    lines = []
    for run in runs:
        gone = [part.host for part in run.hosts if part.error is None]
        lines.append(Text(f"{run.job}  run {run.run}  removed from {fold_names(gone) if gone else 'no host'}"))
    return Group(*lines)


def saved_view(saved: SavedOutcome) -> RenderableType:
    """Return ``train  saved step_120 (step 120, 3.2 MB) on node0, node1  4.1s``."""
    step = "" if saved.step is None else f"step {saved.step}, "
    text = f"saved {saved.name} ({step}{size(saved.size)}) on {fold_names(saved.hosts)}  {saved.duration_s:.1f}s"
    return Text(f"{saved.job}  {text}")


def _unknown(node: StoppedNode) -> str:
    reached = node.error is not None and not isinstance(node.error, ConnectError)
    return "unknown: no proof" if reached else "unknown: not reachable"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
