"""Finds runs and their state in the records of the nodes.

Once all nodes of a run have reported its end, this machine remembers that end. A terminal state never changes, so it
stays known when a node cannot be asked any more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import ValidationError

from ddpctl.errors import DdpctlError, HostsFailed, NoSuchJob, RemoteError, Unreachable, UsageError
from ddpctl.files.records import all_recorded_runs, last_end, save_end
from ddpctl.spec.inventory import Inventory, nearest
from ddpctl.spec.merge import current_runs, merge_runs
from ddpctl.spec.names import ambiguous
from ddpctl.spec.origin import JobId
from ddpctl.spec.outcome import End
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.limits import END_PAUSE_S, END_S, NAMED_OWNERS, STATUS_S
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl.transport.shapes.adapters import adapter
from ddpctl_worker.wire import contract


def ask_runs(
    fleet: Fleet, job: str | None = None, *, everything: bool = False, hosts: Collection[str] | None = None
) -> FleetOutcome[dict[str, Any]]:
    """Ask every host for its part of the ``runs``, and for the number of old runs that it has ``left_out``.

    ``job``: only runs of this name, of this run id, or of an id that begins so. ``everything``: also ended runs.
    ``hosts``: ask only these.
    """

    def ask(transport: Transport) -> Any:
        request = {"job": job, "all": everything or job is not None}
        return transport.call("status", request, timeout=STATUS_S)

    return fleet.map(ask, hosts)


def merge_statuses(outcome: FleetOutcome[dict[str, Any]]) -> list[RunStatus]:
    """Return the runs that the hosts report, oldest first."""
    return merge_runs({host: answer["runs"] for host, answer in outcome.results.items()}, outcome.errors)


def all_runs(fleet: Fleet, *, everything: bool = False) -> tuple[list[RunStatus], FleetOutcome[dict[str, Any]]]:
    """Return the runs on the nodes, and the outcome with the errors of silent hosts.

    Without ``everything``: the runs that are not over, and the newest run of every job.
    """
    outcome = ask_runs(fleet, everything=everything)
    runs = [with_remembered_end(run) for run in merge_statuses(outcome)]
    return runs if everything else current_runs(runs), outcome


def find_run(
    fleet: Fleet, job: str | None, of: Inventory | None = None, *, hosts: Collection[str] | None = None
) -> RunStatus:
    """Return the run that ``job`` means.

    ``job`` is a run id, the beginning of a single run id, or a job's name, which means its newest run; ``None`` is the
    only live run of the project. ``of``: the name is a job of this inventory's project; without it, of any project.
    ``hosts``: ask only these.

    Raises:
        UsageError: several run ids begin so, several projects have a job of that name, or no name is given and the
            project has no live run or several.
        NoSuchJob: every host answered and no host knows it, or only other projects have a job of that name.
        HostsFailed: no host that answered knows it, and further hosts did not answer.
    """
    if job is None:
        live, ended = runs_of_project(fleet, of)
        if len(live) != 1:
            raise name_missing(live, ended)
        return live[0]
    found = _named(fleet, job, of, hosts)
    if len({run.job_id for run in found}) > 1:
        raise UsageError(f"{job} is a job of several projects: {find_owners(found)}", hint="name the run by its id")
    return with_remembered_end(max(found, key=lambda run: run.run))  # run ids sort by time


def live_runs(fleet: Fleet, job: str, of: Inventory | None = None) -> list[RunStatus]:
    """Return every run that ``job`` may mean and that may still run on a host of the fleet, oldest first.

    Without a live run, return the newest run. Arguments and errors are as for ``find_run``, but ``job`` may mean jobs
    of several projects.
    """
    runs = [with_remembered_end(run) for run in _named(fleet, job, of)]
    return [run for run in runs if _lives(run, fleet.hosts)] or runs[-1:]


def runs_of_project(fleet: Fleet, of: Inventory | None) -> tuple[list[RunStatus], list[RunStatus]]:
    """Return the live runs of the inventory's project, and the newest run of each of its jobs without a live run.

    Raises:
        HostsFailed: no run is live on the hosts that answered, and further hosts did not answer.
    """
    runs, outcome = all_runs(fleet)
    runs = [run for run in runs if of is None or run.job_id == of.job_id(run.job)]
    live = [run for run in runs if _lives(run, fleet.hosts)]
    if outcome.errors and not live:
        silent = plural(len(outcome.errors), "host")
        raise HostsFailed(f"no run is live on the hosts that answered, and {silent} did not answer", outcome.errors)
    busy = {run.job for run in live}
    return [_with_silent_hosts(run, outcome) for run in live], [run for run in runs if run.job not in busy]


def name_missing(live: Collection[RunStatus], ended: Collection[RunStatus]) -> UsageError:
    """Return the error for a command without a name; it lists the names of the live runs, else of the ended runs."""
    names = ", ".join(f"{run.job} ({run.run}, {run.verdict.state})" for run in live or ended)
    count = f"{plural(len(live), 'run')} {'is' if len(live) == 1 else 'are'} live" if live else "no run is live"
    if not names:
        return UsageError(f"no run is named, and {count}", hint="`ddpctl up` starts a run")
    ended_words = "" if live else "; ended"
    return UsageError(f"no run is named, and {count}{ended_words}: {names}", hint="name the run, or give its id")


def live_runs_of(fleet: Fleet, job: JobId) -> tuple[list[RunStatus], Mapping[str, DdpctlError]]:
    """Return the job's runs that are live on hosts that answered, and the errors of the hosts that did not."""
    outcome = ask_runs(fleet, job.job)
    runs = [with_remembered_end(run) for run in merge_statuses(outcome) if run.job_id == job]
    return [run for run in runs if _lives(run, outcome.results)], outcome.errors


def find_owners(runs: Collection[RunStatus]) -> str:
    """Return the newest run of each job in words: ``run R of project exp1, started from ann@laptop:/home/ann/exp1``."""
    newest = {run.job_id: run for run in sorted(runs, key=lambda run: run.run)}
    clusters = len({job.cluster for job in newest}) > 1
    texts = [
        f"run {run.run} of project {run.project}{f' on cluster {run.cluster}' if clusters else ''}, started from "
        f"{run.origin or 'an unknown folder'}"
        for run in list(newest.values())[-NAMED_OWNERS:]
    ]
    return "; ".join(
        [*texts[::-1], *([f"and {len(newest) - NAMED_OWNERS} more"] if len(newest) > NAMED_OWNERS else [])]
    )


def _lives(run: RunStatus, hosts: Collection[str]) -> bool:
    """Whether the run may be live on ``hosts``. A host outside the inventory cannot be asked, and does not count."""
    return not run.verdict.terminal and any(
        node.state not in contract.TERMINAL and node.host in hosts for node in run.nodes
    )


def _named(fleet: Fleet, job: str, of: Inventory | None, hosts: Collection[str] | None = None) -> list[RunStatus]:
    outcome = ask_runs(fleet, job, hosts=hosts)
    found = merge_statuses(outcome)
    if runs := [run for run in found if run.run == job]:
        return runs
    found = [_with_silent_hosts(run, outcome) for run in found]
    alike = [run for run in found if run.job == job]
    if runs := [run for run in alike if of is None or run.job_id == of.job_id(job)]:
        return runs
    begun = [run for run in found if contract.begins(run.run, job)]
    if len(begun) > 1:
        raise ambiguous(job, [run.run for run in begun])
    if begun:
        return begun
    if outcome.errors:
        raise HostsFailed(
            f"no host that answered knows {job!r}, and {plural(len(outcome.errors), 'host')} did not answer",
            outcome.errors,
        )
    if alike:
        assert of is not None
        raise only_other_projects(job, of, alike)
    raise NoSuchJob(f"no job or run {job!r} on {plural(len(fleet.hosts), 'host')}", hint=hint_for_name(job, of))


def hint_for_name(word: str, of: Inventory | None) -> str:
    """Return the hint for a name that no run has: a similar name of a job, or of a run that was started here."""
    every = "`ddpctl ps --all` lists every run"
    if of is None:
        return every
    started = {str(run.get("job")) for run in all_recorded_runs() if run.get("inventory") == of.file}
    close = nearest(word, sorted({*of.jobs, *started} - {word}))
    return every if close is None else f"did you mean {close}? {every}"


def _with_silent_hosts(run: RunStatus, outcome: FleetOutcome[dict[str, Any]]) -> RunStatus:
    return replace(run, silent_hosts=tuple(host for host in outcome.errors if host not in run.hosts))


def only_other_projects(job: str, of: Inventory, alike: Collection[RunStatus]) -> NoSuchJob:
    """Return the error for a job name that only other projects have."""
    return NoSuchJob(
        f"project {of.project} on cluster {of.cluster} has no job {job!r}; others have: {find_owners(alike)}",
        hint="name the run by its id; kill, rm and restart also take --any-project",
    )


def read_run(fleet: Fleet, run: RunStatus, *, gone: Collection[str] = ()) -> RunStatus:
    """Ask the run's hosts for its state again, without the hosts in ``gone`` unless every host is gone."""
    asked = [host for host in run.hosts if host in fleet.hosts]
    return find_run(fleet, run.run, hosts=[host for host in asked if host not in gone] or asked)


def is_in_line(fleet: Fleet, run: RunStatus) -> bool:
    """Return whether the run waits in line for its slots. Only a run that was in line needs a question to its hosts."""
    if run.verdict.state != contract.QUEUED:
        return False
    with contextlib.suppress(DdpctlError):  # without an answer the last known state counts
        run = read_run(fleet, run)
    return run.verdict.state == contract.QUEUED


def read_end(
    fleet: Fleet,
    run: RunStatus,
    *,
    gone: Collection[str] = (),
    unread: Collection[str] = (),
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> RunStatus:
    """Read the state of a run whose output has ended on every host but ``unread``; do not ask the hosts in ``gone``.

    The connection to a host may break at that very moment. Such a host is asked again, for END_S seconds.

    Raises:
        HostsFailed: a host stayed silent, and the other hosts do not know how the run ended.
    """
    until = now() + END_S
    while True:
        end = read_run(fleet, run, gone=gone)
        silent = [node for node in end.nodes if node.state == contract.UNREACHABLE and node.host not in unread]
        known = end.verdict.terminal or (end.verdict.cause is not None and end.record.restart is None)
        if known or not any(node.host in fleet.hosts for node in silent):
            return end
        if now() >= until:
            errors = {node.host: Unreachable(node.note or "it does not answer", host=node.host) for node in silent}
            raise HostsFailed(f"{run.job} has ended, and {plural(len(silent), 'host')} did not say how", errors)
        sleep(END_PAUSE_S)


def not_listed(host: str) -> Unreachable:
    """Return the error for a host of a run that is no longer in the inventory."""
    return Unreachable("it is not in the inventory", host=host)


def is_no_such_run(error: DdpctlError) -> bool:
    """Return whether the error says that the node has no such run, because it was never started there."""
    return isinstance(error, RemoteError) and error.kind == contract.NO_SUCH_RUN


def with_remembered_end(run: RunStatus) -> RunStatus:
    """Return the run with its remembered end where not all nodes can report the end now."""
    if run.verdict.end is not None:
        with contextlib.suppress(OSError):  # without a writable home only the nodes remember the end
            save_end(run.run, asdict(run.verdict.end))
        return run
    seen = last_end(run.run)
    if seen is not None:
        with contextlib.suppress(ValidationError):
            return replace(run, remembered_end=adapter(End).validate_python(seen))
    return run
