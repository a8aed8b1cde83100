"""Who is on the nodes already: ranks of launches that are over, and of jobs that run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.spec.finding import Finding, Severity

LEFTOVERS = Question("leftovers", deadline=8.0)


def _ask_leftovers(target: Target, want: Want) -> Iterable[Question]:
    return (LEFTOVERS,)


def _judge_leftovers(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(LEFTOVERS).items():
        whole = len(value["processes"]) >= value.get("total", 0)
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for process, kind in _kinds(value["processes"]):
            groups.setdefault((kind, process["variables"].get("DDPCTL_JOB", "")), []).append(process)
        for (kind, job), processes in groups.items():
            yield _present(host, kind, job, processes, view.want.job, whole)


def _kinds(processes: list[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], str]]:
    """Each process with whose it is: a helper that left its parents (a logger's service) lives with its run."""
    alive: dict[tuple[str | None, ...], str] = {}
    for process in processes:
        if process["supervised"] or process["launched"]:
            alive[_run(process)] = "ours" if process["supervised"] else "torchrun"
    for process in processes:
        own = "ours" if process["supervised"] else "torchrun" if process["launched"] else None
        yield process, own or alive.get(_run(process), "left")


def _run(process: dict[str, Any]) -> tuple[str | None, ...]:
    """What the processes of one run on one host have in common; torchrun's id alone is often "none"."""
    variables = process["variables"]
    if "DDPCTL_RUN" in variables:
        return (variables["DDPCTL_RUN"],)
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return (process["user"], *(variables.get(name) for name in names))


def _present(
    host: str, kind: str, job: str, processes: list[dict[str, Any]], wanted: str | None, whole: bool
) -> Finding:
    pids = [process["pid"] for process in processes]
    first = processes[0]
    listed = f"pid {', '.join(map(str, pids[:6]))}{', ...' if len(pids) > 6 else ''}"
    who = f"{listed}: {first['command'][:80]}, user {first['user']}"
    evidence = {"processes": processes[:20]}
    if kind == "left":
        named = f" of the ddpctl job {job}" if job else ""
        what = "process" if len(pids) == 1 else "processes"
        # Where there are more than were listed, the rest of their run may be among those that were not.
        command = (
            f"kill -9 {' '.join(map(str, pids))}" if whole else f"ps -o pid,ppid,etime,user,args -p {_joined(pids)}"
        )
        return Finding(
            "job.leftovers",
            Severity.WARNING,
            f"{len(pids)} {what}{named} left over from a launch whose launcher is gone ({who})",
            host,
            command=command,
            fix="make sure that nobody needs them: the command ends them at once"
            if whole
            else "this host runs too many ranks to be sure that none of their runs is alive: end them by hand",
            evidence=evidence,
        )
    if kind == "ours" and job and job == wanted:
        # Started twice, the name would mean the newer run only, and the older one be forgotten.
        message = f"the job {job} is running here already ({who})"
        fix = f"follow it with `ddpctl attach {job}`, or end it with `ddpctl kill {job}`"
        return Finding("job.leftovers", Severity.ERROR, message, host, fix=fix, evidence=evidence)
    what = f"the ddpctl job {job}" if kind == "ours" else "a job of torchrun"
    return Finding(
        "job.leftovers",
        Severity.INFO,
        f"{what} is running here too ({who}); slower for both, not wrong",
        host,
        fix=f"end it with `ddpctl kill {job}`" if kind == "ours" else None,
        evidence=evidence,
    )


def _joined(pids: list[int]) -> str:
    return ",".join(map(str, pids))


CHECKS = (
    Check(
        "job.leftovers",
        "nobody is there already",
        _ask_leftovers,
        _judge_leftovers,
        Doc(
            cause="Ranks of an earlier launch live on though their launcher is gone, or the same job is running "
            "already.",
            symptom="out of memory at once; address already in use; a machine that is slow for no reason",
            fix="`ddpctl kill JOB`, or end the processes that the finding names. A helper that left its parents "
            "belongs to its run for as long as a rank of that lives.",
        ),
    ),
)
