"""Looks at every rank of a run, on all nodes at the same time, and finds the cause of a hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.doctor import DoctorReport
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.status import RunStatus
from ddpctl.stages.limits import DOCTOR_LOOK_S
from ddpctl.stages.status import find_run
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.rules import verdict
from ddpctl_worker.rules.limits import STALL_S
from ddpctl_worker.rules.verdict import Diagnosis
from ddpctl_worker.wire import contract


def ask_doctor(fleet: Fleet, job: str | None, of: Inventory | None = None) -> DoctorReport:
    """Return the state of every rank, with the diagnosis. A host that does not answer is in ``missing``.

    ``job`` and ``of``: as for ``find_run``.

    Raises:
        UsageError, NoSuchJob, HostsFailed: as ``find_run``.
    """
    run = find_run(fleet, job, of)

    def look(transport: Transport) -> Any:
        return transport.call("doctor", {"run": run.run}, timeout=DOCTOR_LOOK_S)

    at_work = [node.host for node in run.verdict.active_nodes]
    hosts = [host for host in at_work if host in fleet.hosts]
    answers = fleet.together(look, hosts)  # the looks are compared as a single moment
    looks = [found for answer in answers.results.values() for found in _looks(answer, run)]
    first = answers.results.get(at_work[0])  # node rank 0 judges which rank is slow
    slow = first["slow"] if first is not None else run.slow
    absent = [host for host in at_work if host not in answers.results]
    found = verdict.diagnose(looks, absent=absent, expected=_expected(run, absent), stall=_stall(run, looks))
    if run.verdict.terminal:
        found = _after_the_end(run, found)
    found = found._replace(missing=[_why(line, answers.errors) for line in found.missing])
    return DoctorReport(
        run.job,
        run.run,
        run.verdict.state,
        found,
        looks,
        tuple(slow),
        ended=run.verdict.terminal,
        errors=answers.errors,
    )


def _why(line: str, errors: Mapping[str, DdpctlError]) -> str:
    """Return a line such as ``node3 did not answer`` with the reason."""
    error = errors.get(line.partition(" ")[0])
    return line if error is None else f"{line}: {' '.join(error.message.split())}"


def _looks(answer: dict[str, Any], run: RunStatus) -> list[dict[str, Any]]:
    """Return the looks of a node. A node that ended before the rest of the run has only looks from before its end."""
    over = answer["ended"] and not run.verdict.terminal
    return [{**look, "state": "ended", "dumped": False} if over else look for look in answer["looks"]]


def _expected(run: RunStatus, absent: Sequence[str]) -> dict[int, str]:
    """Return each rank with its host. Before all nodes have started their ranks, and after the end, return no rank."""
    if run.verdict.terminal or any(node.state in contract.COMING for node in run.verdict.active_nodes):
        return {}
    hosts = {rank: node.host for node in run.verdict.active_nodes for rank in node.ranks}
    return {**dict.fromkeys(range(run.world_size), absent[0]), **hosts} if absent else hosts


def _stall(run: RunStatus, looks: list[dict[str, Any]]) -> float:
    """Return the seconds that a pause may take: the job's setting, or this run's longest pause where it is longer."""
    longest = max((float(look.get("pause_s") or 0.0) for look in looks), default=0.0)
    return max(run.record.doctor.stall if run.record.doctor else STALL_S, longest)


def _after_the_end(run: RunStatus, found: Diagnosis) -> Diagnosis:
    """Return the diagnosis of an ended run: its recorded cause counts, and the last looks are the evidence."""
    cause = run.verdict.cause
    if run.verdict.state == contract.SUCCEEDED or cause is None:
        return found._replace(verdict=f"the run is over: {run.verdict.state}", suspects=[], stuck=False)
    who = f"rank {cause.rank} on {cause.host}" if cause.rank is not None else cause.host
    text = f"the run is over ({run.verdict.state}): {who}: {' '.join(cause.message.split())}"
    suspects = [] if cause.rank is None else [{"host": cause.host, "rank": cause.rank}]
    return found._replace(verdict=text, suspects=suspects)
