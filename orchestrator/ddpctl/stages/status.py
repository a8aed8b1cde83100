"""Which runs there are and how they stand, as the nodes' own records tell.

An end that all nodes of a run have reported is remembered on this machine: a terminal state never changes, even when
one of them cannot be asked any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed, NoSuchJob, RemoteError, Unreachable, UsageError
from ddpctl.files.records import last_end, save_end
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.merge import current, merge_runs
from ddpctl.spec.names import ambiguous
from ddpctl.spec.origin import JobId
from ddpctl.spec.outcome import End, RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.limits import NAMED_OWNERS, STATUS_S
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl_worker.wire import contract


def ask_runs(
    fleet: Fleet, job: str | None = None, *, everything: bool = False, hosts: Collection[str] | None = None
) -> FleetOutcome[dict[str, Any]]:
    """What every host tells: its part of the ``runs``, and how many of the oldest it has ``left_out``.

    ``job`` (a name, a run id or the beginning of one) narrows them, ``everything`` takes in ended runs. ``hosts``: ask
    only these.
    """

    def ask(transport: Transport) -> dict[str, Any]:
        request = {"job": job, "all": everything or job is not None}
        return transport.call("status", request, timeout=STATUS_S)

    return fleet.map(ask, hosts)


def merged(outcome: FleetOutcome[dict[str, Any]]) -> list[RunStatus]:
    """The runs that the hosts report, oldest first."""
    return merge_runs({host: answer["runs"] for host, answer in outcome.results.items()}, outcome.errors)


def all_runs(fleet: Fleet, *, everything: bool = False) -> tuple[list[RunStatus], FleetOutcome[dict[str, Any]]]:
    """The runs found on the nodes, and the answers they were made from (for the hosts that gave none).

    Without ``everything``: those that are not over, and the newest of every job.
    """
    outcome = ask_runs(fleet, everything=everything)
    runs = [settled(run) for run in merged(outcome)]
    return runs if everything else current(runs), outcome


def find_run(fleet: Fleet, job: str, of: Inventory | None = None, *, hosts: Collection[str] | None = None) -> RunStatus:
    """The run that ``job`` means: the newest run of that name, a run id, or the beginning of just one.

    A name means a job of the project ``of`` an inventory; None: of any project. A run id needs none. ``hosts``: as
    these few know it.

    Raises:
        UsageError: it is the beginning of several ids, or the name of jobs of several projects.
        NoSuchJob: every host answered and none knows it; or only other projects have a job of that name.
        HostsFailed: no reachable host knows it, and some could not be asked.
    """
    found = _named(fleet, job, of, hosts)
    if len({run.job_id for run in found}) > 1:
        raise UsageError(f"{job} is a job of several projects: {owners(found)}", hint="name the run by its id")
    return settled(max(found, key=lambda run: run.run))  # run ids sort by time


def live_runs(fleet: Fleet, job: str, of: Inventory | None = None) -> list[RunStatus]:
    """Every run that ``job`` may mean and that may still run on a host of the fleet, oldest first; where there is none,
    the newest. ``of`` and what it raises: as ``find_run``, but several projects may be meant."""
    runs = [settled(run) for run in _named(fleet, job, of)]
    return [run for run in runs if _lives(run, fleet.hosts)] or runs[-1:]


def live_runs_of(fleet: Fleet, job: JobId) -> tuple[list[RunStatus], Mapping[str, DdpctlError]]:
    """The runs of this very job that are live on hosts that answered, and the hosts that did not."""
    outcome = ask_runs(fleet, job.job)
    runs = [settled(run) for run in merged(outcome) if run.job_id == job]
    return [run for run in runs if _lives(run, outcome.results)], outcome.errors


def owners(runs: Collection[RunStatus]) -> str:
    """``run R of project exp1, started from ann@laptop:/home/ann/exp1``: the newest run of each job."""
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
    """What became of it on a host that is in no inventory any more is not to be found out."""
    return not run.terminal and any(node.state not in contract.TERMINAL and node.host in hosts for node in run.nodes)


def _named(fleet: Fleet, job: str, of: Inventory | None, hosts: Collection[str] | None = None) -> list[RunStatus]:
    outcome = ask_runs(fleet, job, hosts=hosts)
    found = merged(outcome)
    if runs := [run for run in found if run.run == job]:
        return runs
    found = [replace(run, unheard=tuple(host for host in outcome.errors if host not in run.hosts)) for run in found]
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
        raise others_alone(job, of, alike)
    raise NoSuchJob(
        f"no job or run {job!r} on {plural(len(fleet.hosts), 'host')}", hint="`ddpctl ps --all` lists every run"
    )


def others_alone(job: str, of: Inventory, alike: Collection[RunStatus]) -> NoSuchJob:
    """Only other projects have a job of that name."""
    return NoSuchJob(
        f"project {of.project} on cluster {of.cluster} has no job {job!r}; others have: {owners(alike)}",
        hint="name the run by its id; kill, rm and restart also take --any-project",
    )


def read_run(fleet: Fleet, run: RunStatus, *, gone: Collection[str] = ()) -> RunStatus:
    """The same run, asked again; not of the hosts that are ``gone``, unless all are."""
    asked = [host for host in run.hosts if host in fleet.hosts]
    return find_run(fleet, run.run, hosts=[host for host in asked if host not in gone] or asked)


def not_listed(host: str) -> Unreachable:
    """The error of a host that a run was on, and that has left the inventory."""
    return Unreachable("it is not in the inventory", host=host)


def is_no_such_run(error: DdpctlError) -> bool:
    """Whether a node said that it has no such run (it was never started there)."""
    return isinstance(error, RemoteError) and error.kind == contract.NO_SUCH_RUN


def settled(run: RunStatus) -> RunStatus:
    """The run with the end that was seen before, where its nodes cannot all report it now."""
    if run.end is not None:
        with contextlib.suppress(OSError):  # no home that can be written: then only the nodes know
            save_end(run.run, asdict(run.end))
        return run
    seen = last_end(run.run)
    return replace(run, seen=End.from_json(seen)) if seen and "state" in seen else run
