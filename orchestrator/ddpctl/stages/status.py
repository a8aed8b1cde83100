"""Which runs there are and how they stand, as the nodes' own records tell."""

from __future__ import annotations

from typing import Any

from ddpctl.errors import HostsFailed, NoSuchJob
from ddpctl.spec.outcome import RunStatus, current, merge_runs, newest
from ddpctl.transport.base import Fleet, FleetOutcome, Transport

STATUS_TIMEOUT_S = 20.0


def ask_runs(fleet: Fleet, job: str | None = None, *, everything: bool = False) -> FleetOutcome[list[dict[str, Any]]]:
    """Every host's node statuses; ``job`` (a name or a run id) narrows them, ``everything`` takes in ended runs."""

    def ask(transport: Transport) -> list[dict[str, Any]]:
        request = {"job": job, "all": everything or job is not None}
        runs: list[dict[str, Any]] = transport.call("status", request, timeout=STATUS_TIMEOUT_S)["runs"]
        return runs

    return fleet.map(ask)


def all_runs(fleet: Fleet, *, everything: bool = False) -> tuple[list[RunStatus], FleetOutcome[list[dict[str, Any]]]]:
    """The runs found on the nodes, and the answers they were made from (for the hosts that gave none).

    Without ``everything``: those that are not over, and the newest of every job.
    """
    outcome = ask_runs(fleet, everything=everything)
    runs = merge_runs(outcome.results)
    return runs if everything else current(runs), outcome


def find_run(fleet: Fleet, job: str) -> RunStatus:
    """The run that ``job`` means: a run id, or the newest run of that name.

    Raises:
        NoSuchJob: every host answered and none knows it.
        HostsFailed: no reachable host knows it, and some could not be asked.
    """
    outcome = ask_runs(fleet, job)
    run = newest(merge_runs(outcome.results), job)
    if run is not None:
        return run
    if outcome.errors:
        raise HostsFailed(f"no host that answered knows {job!r}, and {len(outcome.errors)} did not", outcome.errors)
    raise NoSuchJob(f"no job or run {job!r} on {len(fleet.hosts)} hosts", hint="`ddpctl ps --all` lists what there is")


def read_run(fleet: Fleet, run: RunStatus) -> RunStatus:
    """The same run, asked again."""
    return find_run(fleet, run.run)
