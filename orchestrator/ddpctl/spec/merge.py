"""Merges the records of the hosts into runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddpctl.errors import DdpctlError
from ddpctl.spec.fold import group_hosts_by_value
from ddpctl.spec.origin import JobId
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.record import NodeReport
from ddpctl.spec.status import RunStatus
from ddpctl_worker.wire import contract


def merge_runs(
    answers: Mapping[str, Iterable[NodeReport]], errors: Mapping[str, DdpctlError] | None = None
) -> list[RunStatus]:
    """Return the runs, the oldest first. ``answers``: host -> its reports.

    A run has every host that a record of it names:

    - A host that did not answer, or is no longer in the inventory, is `unreachable`. ``errors`` may say why.
    - A host that answered without the run is `lost`: the run was never started there, or the disk is new.
    """
    by_run: dict[str, dict[str, NodeReport]] = {}
    for host, reports in answers.items():
        for report in reports:
            by_run.setdefault(report.run, {})[host] = report
    return [_merge(by_run[run], set(answers), errors or {}) for run in sorted(by_run)]


def _merge(parts: Mapping[str, NodeReport], answered: set[str], errors: Mapping[str, DdpctlError]) -> RunStatus:
    first = _most_confirmed(parts)
    # A host that reports the run takes part in it, even if the chosen record does not name that host.
    hosts = list(dict.fromkeys((*(first.record.hosts or ()), *parts)))
    nodes: list[NodeStatus] = []
    for node_rank, host in enumerate(hosts):
        if host in parts:
            nodes.append(parts[host])
        else:
            state = contract.LOST if host in answered else contract.UNREACHABLE
            note = " ".join(errors[host].message.split()) if host in errors else None
            nodes.append(NodeStatus(host=host, node_rank=node_rank, state=state, note=note))
    return RunStatus(first.job, first.run, first.cluster, tuple(nodes), first.record)


def _most_confirmed(parts: Mapping[str, NodeReport]) -> NodeReport:
    """Return a part with the job and the record that most hosts report: a single host decides nothing for the rest.

    Every field of ``RecordedRun`` is equal on all hosts of a run: ``Plan.record`` makes it, and the record of the run,
    not of an attempt, is reported.
    """
    shared = {host: (part.job, part.cluster, part.record) for host, part in parts.items()}
    _, hosts = group_hosts_by_value(shared)[0]
    return parts[hosts[0]]


def current_runs(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """Return the runs that are not over, and the newest run of every job.

    An older ended run is dropped because it may be incomplete: a host reports an ended run only if it is the newest
    run of the job there.
    """
    last: dict[JobId, str] = {}
    for run in runs:
        last[run.job_id] = max(run.run, last.get(run.job_id, ""))
    return [run for run in runs if not run.verdict.terminal or run.run == last[run.job_id]]
