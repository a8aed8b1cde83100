"""The job's needs on its nodes (script, code, data), and processes that already run there. Imports: job_imports.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, Requirements, Target, View
from ddpctl.checks.limits import LEFTOVERS_S, TREE_S
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_by
from ddpctl.spec.origin import JobId
from ddpctl.spec.question import Question
from ddpctl.spec.script import read_script
from ddpctl.spec.self_spawning import ALONE
from ddpctl.spec.values import plural

# --- script and data -------------------------------------------------------------------------------------------------


def script_question(target: Target, want: Requirements) -> Question | None:
    """Ask for a script that is on the nodes already. Code that ddpctl sends is examined before it is sent."""
    if want.script is None:
        return None
    params = {"path": want.script} | ({"workdir": want.workdir} if want.workdir else {})
    return Question("script", params)


def _judge_script(view: View) -> Iterable[Finding]:
    found = view.values(script_question)
    for host, value in found.items():
        if value["sha256"] is None:
            what = "is a folder" if value["exists"] else "is not there"
            yield report.error(
                host,
                f"the script {value['path']} {what}",
                fix="copy it there, correct `script:` or `workdir:`, or let ddpctl send the code (`code: .`)",
                evidence={"path": value["path"]},
            )
    there = {host: value for host, value in found.items() if value["sha256"]}
    yield from report.differences(
        Severity.ERROR,
        {host: value["sha256"] for host, value in there.items()},
        what="a script with SHA-256",
        fix="copy one version to all of them, or let ddpctl send the code (`code: .`)",
        show=lambda value: str(value)[:12],
    )
    yield from _processes(view)
    if there:
        yield from _style(next(iter(there.values())))


def _processes(view: View) -> Iterable[Finding]:
    """Report how the job's processes start, if torch's launcher does not start them."""
    text = view.requirements.processes
    if text is not None and text.endswith(ALONE):
        fix = "to train on all hosts together, take the spawn out, and read RANK, WORLD_SIZE and LOCAL_RANK"
        yield report.warning(None, text, fix=fix)
    elif text is not None:
        yield report.info(None, text)


def _style(value: dict[str, Any]) -> Iterable[Finding]:
    facts = read_script(value["text"])
    if facts.local_rank_arg:
        yield report.info(
            None,
            f"the script takes its local rank as {facts.local_rank_arg}: ddpctl appends it in that spelling",
            evidence={"path": value["path"]},
        )
    elif facts.parsed and not facts.initialises and not facts.reads_local_rank:
        yield report.info(
            None,
            "nothing in the script calls init_process_group or reads LOCAL_RANK; if no module of it does either, every "
            "process trains alone",
            fix="call torch.distributed.init_process_group in it, or leave it to a library such as accelerate",
            evidence={"path": value["path"]},
        )


def _tree(target: Target, want: Requirements) -> Question | None:
    if want.script is None or want.workdir is None:
        return None
    return Question("tree", {"path": want.workdir}, TREE_S)


def _judge_code(view: View) -> Iterable[Finding]:
    found = {host: value for host, value in view.values(_tree).items() if value["exists"]}
    hashes = {host: value["hash"] for host, value in found.items()}
    if None in hashes.values():
        message = f"{view.requirements.workdir} has too many files to compare in time; the script itself was compared"
        yield report.info(None, message)
        return
    by_hash = {value["hash"]: value for value in found.values()}
    yield from report.differences(
        Severity.WARNING,
        hashes,
        what=f"code in {view.requirements.workdir}",
        fix="put the same version on all nodes, or let ddpctl send the code (`code: .`)",
        show=lambda value: _version(by_hash[value]),
    )


def _version(value: dict[str, Any]) -> str:
    commit = f"commit {value['git'][:10]}, " if value["git"] else ""
    return f"{commit}{value['files']} files, hash {value['hash'][:10]}"


def _data(want: Requirements, path: str) -> Question:
    params = {"path": path} | ({"workdir": want.workdir} if want.workdir else {})
    return Question("path", params, TREE_S)


def _judge_data(view: View) -> Iterable[Finding]:
    for path in view.requirements.data:
        found = view.values(_data(view.requirements, path))
        for host, value in found.items():
            if not value["exists"] or not value["readable"]:
                what = "cannot be read" if value["exists"] else "is not there"
                dangling = f" (a link to {value['link']})" if value.get("link") else ""
                yield report.error(
                    host,
                    f"{value['path']} {what}{dangling}, and the job requires it",
                    fix=f"put it there, or correct {path} in the job's `requires.data` or `links`",
                    evidence=value,
                )
        counted = {host: v for host, v in found.items() if v["readable"] and v["complete"]}
        yield from report.differences(
            Severity.WARNING,
            {host: f"{v['files']} files, {report.size(v['bytes'])}" for host, v in counted.items()},
            what=f"{path} with",
            fix="uneven data makes ranks wait for each other at the end: copy it again, or use drop_last=True",
        )


LEFTOVERS = Question("leftovers", deadline=LEFTOVERS_S)


def _judge_leftovers(view: View) -> Iterable[Finding]:
    for host, value in view.values(LEFTOVERS).items():
        whole = len(value["processes"]) >= value.get("total", 0)
        groups = group_by(lambda pair: (pair[1], _job_of(pair[0])), _kinds(value["processes"]))
        for (kind, _), pairs in groups.items():
            yield _present(host, kind, [process for process, _ in pairs], view.requirements.job, whole)


def _kinds(processes: list[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], str]]:
    """Yield each process with its kind: "ours", "torchrun" or "left".

    A helper process that left its parents (a logger's service) belongs to its run as long as a rank of the run lives.
    """
    alive: dict[tuple[str | None, ...], str] = {}
    for process in processes:
        if process["supervised"] or process["launched"]:
            alive[_run(process)] = "ours" if process["supervised"] else "torchrun"
    for process in processes:
        own = "ours" if process["supervised"] else "torchrun" if process["launched"] else None
        yield process, own or alive.get(_run(process), "left")


def _job_of(process: dict[str, Any]) -> str:
    """Return CLUSTER/PROJECT/JOB of a process that ddpctl started."""
    return str(process["variables"].get("DDPCTL_JOB_ID", ""))


def _run(process: dict[str, Any]) -> tuple[str | None, ...]:
    """Return the key that the processes of a run share on a host. torchrun's id alone is often "none"."""
    variables = process["variables"]
    if "DDPCTL_RUN" in variables:
        return (variables["DDPCTL_RUN"],)
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return (process["user"], *(variables.get(name) for name in names))


def _present(host: str, kind: str, processes: list[dict[str, Any]], own: JobId | None, whole: bool) -> Finding:
    pids = [process["pid"] for process in processes]
    first = processes[0]
    job, run = (first["variables"].get(name, "") for name in ("DDPCTL_JOB", "DDPCTL_RUN"))
    project = _job_of(first).rpartition("/")[0].rpartition("/")[2]
    listed = f"pid {', '.join(map(str, pids[:6]))}{', ...' if len(pids) > 6 else ''}"
    who = f"{listed}: {first['command'][:80]}, user {first['user']}"
    evidence = {"processes": processes[:20]}
    if kind == "left":
        named = f" of the ddpctl job {job}" if job else ""
        # If the host reported only a part of the processes, live ranks of this run may be missing from the list.
        ps = f"ps -o pid,ppid,etime,user,args -p {','.join(map(str, pids))}"
        return report.warning(
            host,
            f"{plural(len(pids), 'process')}{named} left over from a launch whose launcher is gone ({who})",
            fix="make sure that nobody needs them: the command kills them at once"
            if whole
            else "this host runs too many ranks to be sure that none of their runs is alive: kill them by hand",
            command=f"kill -9 {' '.join(map(str, pids))}" if whole else ps,
            evidence=evidence,
        )
    if kind == "ours" and job and own is not None and _job_of(first) == str(own):
        # After a second start the job's name would mean only the newer run, and the older run would be forgotten.
        message = f"the job {job} is running here already ({who})"
        fix = (
            f"follow it with `ddpctl attach {job}`, end it with `ddpctl kill {job}`, "
            "or start a second run under another name: `ddpctl up --name NAME`, with `--wait` if its slots are in use"
        )
        return report.error(host, message, fix=fix, evidence=evidence)
    what = f"the ddpctl job {job} of project {project}" if kind == "ours" else "a job of torchrun"
    return report.info(
        host,
        f"{what} is running here too ({who}); slower for both, not wrong",
        fix=f"end it with `ddpctl kill {run}`" if kind == "ours" else None,
        evidence=evidence,
    )


CHECKS = (
    Check(
        "job.script",
        "every host has the same script",
        _judge_script,
        ask=(script_question,),
        cause="With `code: null` the script must be on every node. It is missing on a node, or differs between nodes.",
        symptom="can't open file '/x.py': [Errno 2]; exitcode 2; DDP expects same model across all ranks",
        fix="Let ddpctl send the code (`code: .`), or copy it.",
        seen=ON_HOSTS,
    ),
    Check(
        "job.code",
        "the code is the same everywhere",
        _judge_code,
        ask=(_tree,),
        cause="With `code: null`, files of the workdir differ between nodes: another commit, a local edit.",
        symptom="params[0] in this process with sizes [9, 4] appears not to match sizes of the same param in process 0",
        fix="The same commit everywhere, or let ddpctl send the code.",
        seen=ON_HOSTS,
    ),
    Check(
        "job.data",
        "every host has the data",
        _judge_data,
        ask=(lambda target, want: tuple(_data(want, path) for path in want.data),),
        cause="A path of `requires.data` is missing, unreadable or of another size on a node.",
        symptom="FileNotFoundError on one node while the other nodes wait; ranks that run out of batches at different "
        "times",
        fix="Copy the data; mount the share.",
        seen=ON_HOSTS,
    ),
    Check(
        "job.leftovers",
        "nothing else is running there",
        _judge_leftovers,
        ask=(LEFTOVERS,),
        cause="Ranks of an earlier launch are still running though their launcher is gone, or the same job is running "
        "already.",
        symptom="out of memory at once; address already in use; a machine that is slow for no reason",
        fix="`ddpctl kill JOB`, or end the processes that the finding names. A helper process without its parent "
        "belongs to its run for as long as a rank of that run lives.",
        seen=ON_HOSTS,
    ),
)
