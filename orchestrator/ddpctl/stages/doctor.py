"""Look at every rank of a run, on all nodes at once, and judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.doctor import Consultation
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.outcome import RunStatus
from ddpctl.stages.status import find_run
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.rules import verdict
from ddpctl_worker.rules.limits import STALL_S
from ddpctl_worker.rules.verdict import Diagnosis
from ddpctl_worker.wire import contract

LOOK_TIMEOUT_S = 15.0  # a look takes a second; an overloaded node may need longer to begin


def consult(fleet: Fleet, job: str, of: Inventory | None = None) -> Consultation:
    """Where every rank of ``job`` stands, and what that says. A host that does not answer is named in ``missing``.
    ``of``: as for ``find_run``.

    Raises:
        NoSuchJob, HostsFailed: as ``find_run``.
    """
    run = find_run(fleet, job, of)

    def look(transport: Transport) -> dict[str, Any]:
        return transport.call("doctor", {"run": run.run}, timeout=LOOK_TIMEOUT_S)

    at_work = [node.host for node in run.nodes_at_work]
    hosts = [host for host in at_work if host in fleet.hosts]
    answers = fleet.together(look, hosts)  # what they saw is compared as one moment
    looks = [one for answer in answers.results.values() for one in _looks(answer, run)]
    first = answers.results.get(at_work[0])  # it decides who is slow
    slow = first["slow"] if first is not None else run.slow
    absent = [host for host in at_work if host not in answers.results]
    found = verdict.diagnose(looks, absent=absent, expected=_expected(run, absent), stall=_stall(run, looks))
    if run.terminal:
        found = _after_the_end(run, found)
    found = found._replace(missing=[_why(line, answers.errors) for line in found.missing])
    return Consultation(
        run.job, run.run, run.state, found, looks, tuple(slow), ended=run.terminal, errors=answers.errors
    )


def _why(line: str, errors: Mapping[str, DdpctlError]) -> str:
    """``node3 did not answer``, with the reason."""
    error = errors.get(line.partition(" ")[0])
    return line if error is None else f"{line}: {' '.join(error.message.split())}"


def _looks(answer: dict[str, Any], run: RunStatus) -> list[dict[str, Any]]:
    """The last looks of a node that has ended before the others say where its ranks were, not where they are."""
    over = answer["ended"] and not run.terminal
    return [{**one, "state": "ended", "dumped": False} if over else one for one in answer["looks"]]


def _expected(run: RunStatus, absent: Sequence[str]) -> dict[int, str]:
    """Every rank, with its host. None before all nodes have started theirs, and none after the end."""
    if run.terminal or any(node.state in (contract.PENDING, contract.STARTING) for node in run.nodes_at_work):
        return {}
    known = {rank: node.host for node in run.nodes_at_work for rank in node.ranks}
    return {**dict.fromkeys(range(run.world_size), absent[0]), **known} if absent else known


def _stall(run: RunStatus, looks: list[dict[str, Any]]) -> float:
    """Seconds that a pause may take: what the job says, or what this run has done before."""
    longest = max((float(one.get("pause_s") or 0.0) for one in looks), default=0.0)
    settings = run.record.get("doctor") or {}
    return max(float(settings.get("stall") or STALL_S), longest)


def _after_the_end(run: RunStatus, found: Diagnosis) -> Diagnosis:
    """A run that is over: its own cause counts, and where the others stood is the evidence."""
    cause = run.cause
    if run.state == contract.SUCCEEDED or cause is None:
        return found._replace(verdict=f"the run is over: {run.state}", suspects=[], stuck=False)
    who = f"rank {cause.rank} on {cause.host}" if cause.rank is not None else cause.host
    text = f"the run is over ({run.state}): {who}: {' '.join(cause.message.split())}"
    suspects = [] if cause.rank is None else [{"host": cause.host, "rank": cause.rank}]
    return found._replace(verdict=text, suspects=suspects)
