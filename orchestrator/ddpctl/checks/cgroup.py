"""What the control groups around a login leave to the job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import size
from ddpctl.checks.limits import MEMORY_A_RANK, ranks, targets_by_name
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity

CGROUP = Question("cgroup")
PIDS_A_RANK = 64


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (CGROUP,)


def _judge_cgroup(view: View) -> Iterable[Finding]:
    targets = targets_by_name(view)
    for host, value in view.values_of(CGROUP).items():
        many = ranks(targets[host])
        for message, limit, lift in _tight(value, many):
            unit = limit["folder"].rpartition("/")[2]
            yield Finding(
                "host.cgroup",
                Severity.WARNING,
                f"{message} ({limit['folder']})",
                host,
                fix="give the container more (`docker run --memory --cpus --pids-limit`), or fewer processes here",
                command=as_root(view, host, f"systemctl set-property {shlex.quote(unit)} {lift}")
                if unit.endswith(".slice")
                else None,
                evidence=value,
            )


def _tight(value: dict[str, Any], many: int) -> Iterable[tuple[str, dict[str, Any], str]]:
    """(what, the limit, the property that lifts it) for each that is too low. The page cache is given back when
    memory is asked for: it is not in use."""
    memory, cpus, pids = value["memory"], value["cpus"], value["pids"]
    used = memory["used"] - memory.get("cache", 0) if memory else 0
    if memory and memory["limit"] - used < MEMORY_A_RANK * many:
        message = (
            f"a control group allows {size(memory['limit'])} of memory, {size(used)} are in use: the kernel kills what "
            "goes beyond"
        )
        yield message, memory, "MemoryMax=infinity"
    if cpus and cpus["limit"] < many:
        yield f"a control group allows {cpus['limit']:g} processors for {many} process(es)", cpus, "CPUQuota="
    if pids and pids["limit"] - pids["used"] < PIDS_A_RANK * many:
        message = f"a control group allows {pids['limit']:.0f} processes and threads, {pids['used']:.0f} are in use"
        yield message, pids, "TasksMax=infinity"


CHECKS = (
    Check(
        "host.cgroup",
        "control groups leave room",
        _ask,
        _judge_cgroup,
        Doc(
            cause="The container or slice that the login lives in is limited in memory, processors or number of "
            "processes.",
            symptom="killed ranks while the machine has free memory; BlockingIOError at fork; slow start",
            fix="Raise the limits of the container or slice.",
            verified="recorded output only",
        ),
    ),
)
