"""Runs, made of what every host says of its own part. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.origin import JobId
from ddpctl.spec.outcome import NodeStatus, RunStatus
from ddpctl_worker.wire import contract


def merge_runs(
    answers: Mapping[str, Iterable[Mapping[str, Any]]], errors: Mapping[str, DdpctlError] | None = None
) -> list[RunStatus]:
    """Runs from every host's node statuses (each with its run.json under ``record``), oldest first.

    A host that a record names but that did not answer (or that is not in the inventory any more) is `unreachable`, and
    its entry in ``errors`` says why; one that answered without knowing the run was never started, or its disk is new:
    `lost`.
    """
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {}
    for host, statuses in answers.items():
        for status in statuses:
            by_run.setdefault(status["run"], {})[host] = status
    return [_merge(by_run[run], set(answers), errors or {}) for run in sorted(by_run)]


def _merge(parts: Mapping[str, Mapping[str, Any]], answered: set[str], errors: Mapping[str, DdpctlError]) -> RunStatus:
    first = _most_told(parts)
    record = first["record"]
    # A host that reports the run takes part in it, whatever the record of another leaves out.
    hosts = list(dict.fromkeys((*(record.get("hosts") or ()), *parts)))
    nodes = []
    for node_rank, host in enumerate(hosts):
        if host in parts:
            nodes.append(NodeStatus.from_json(parts[host]))
        else:
            state = contract.LOST if host in answered else contract.UNREACHABLE
            note = " ".join(errors[host].message.split()) if host in errors else None
            nodes.append(NodeStatus(host=host, node_rank=node_rank, state=state, note=note))
    return RunStatus(first["job"], first["run"], first["cluster"], tuple(nodes), record)


def _most_told(parts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The part whose job and hosts most others confirm: one damaged record decides nothing."""

    def told(part: Mapping[str, Any]) -> tuple[Any, ...]:
        return (part["job"], part["cluster"], part["record"]["project"], *(part["record"].get("hosts") or ()))

    count = Counter(map(told, parts.values()))
    return max(parts.values(), key=lambda part: count[told(part)])


def current(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """The runs that are not over, and the newest of every job.

    Of the others a host tells only when it took part in no newer run of the job: what was merged of those is in parts.
    """
    last: dict[JobId, str] = {}
    for run in runs:
        last[run.job_id] = max(run.run, last.get(run.job_id, ""))
    return [run for run in runs if not run.terminal or run.run == last[run.job_id]]
