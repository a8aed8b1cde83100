"""Which runs there are and how they stand, as the nodes' own records tell.

An end that all nodes of a run have told of is remembered on this machine: a terminal state never changes, also not when
one of them cannot be asked any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ddpctl import files
from ddpctl.errors import HostsFailed, NoSuchJob
from ddpctl.spec.outcome import End, RunStatus, current, merge_runs, newest
from ddpctl.transport.base import Fleet, FleetOutcome, Transport

STATUS_TIMEOUT_S = 20.0


def ask_runs(
    fleet: Fleet, job: str | None = None, *, everything: bool = False, hosts: Collection[str] | None = None
) -> FleetOutcome[list[dict[str, Any]]]:
    """Every host's node statuses; ``job`` (a name or a run id) narrows them, ``everything`` takes in ended runs.

    ``hosts``: ask only these.
    """

    def ask(transport: Transport) -> list[dict[str, Any]]:
        request = {"job": job, "all": everything or job is not None}
        runs: list[dict[str, Any]] = transport.call("status", request, timeout=STATUS_TIMEOUT_S)["runs"]
        return runs

    return fleet.map(ask, hosts)


def all_runs(fleet: Fleet, *, everything: bool = False) -> tuple[list[RunStatus], FleetOutcome[list[dict[str, Any]]]]:
    """The runs found on the nodes, and the answers they were made from (for the hosts that gave none).

    Without ``everything``: those that are not over, and the newest of every job.
    """
    outcome = ask_runs(fleet, everything=everything)
    runs = [_settled(run) for run in merge_runs(outcome.results, outcome.errors)]
    return runs if everything else current(runs), outcome


def find_run(fleet: Fleet, job: str, hosts: Collection[str] | None = None) -> RunStatus:
    """The run that ``job`` means: a run id, or the newest run of that name. ``hosts``: as these few know it.

    Raises:
        NoSuchJob: every host answered and none knows it.
        HostsFailed: no reachable host knows it, and some could not be asked.
    """
    outcome = ask_runs(fleet, job, hosts=hosts)
    run = newest(merge_runs(outcome.results, outcome.errors), job)
    if run is not None:
        return _settled(run)
    if outcome.errors:
        raise HostsFailed(f"no host that answered knows {job!r}, and {len(outcome.errors)} did not", outcome.errors)
    raise NoSuchJob(f"no job or run {job!r} on {len(fleet.hosts)} hosts", hint="`ddpctl ps --all` lists what there is")


def read_run(fleet: Fleet, run: RunStatus, *, gone: Collection[str] = ()) -> RunStatus:
    """The same run, asked again; not of the hosts that are ``gone``, unless all are."""
    return find_run(fleet, run.run, [host for host in fleet.hosts if host not in gone] or None)


def _settled(run: RunStatus) -> RunStatus:
    """The run with the end that was seen before, where its nodes cannot all tell of it now."""
    if run.end is not None:
        with contextlib.suppress(OSError):  # no home that can be written: then only the nodes know
            files.save_end(run.run, run.end.to_json())
        return run
    seen = files.last_end(run.run)
    return replace(run, seen=End.from_json(seen)) if seen and "state" in seen else run
