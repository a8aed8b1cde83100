"""What the job needs on its nodes: packages, script, data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ddpctl.checks import torch
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences, size
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.script import read_script

WALK_S = 12.0


# --- packages --------------------------------------------------------------------------------------------------------


def requirements(want: Want) -> dict[str, Requirement]:
    """Normalized name -> requirement; torch and torchvision have checks of their own."""
    found: dict[str, Requirement] = {}
    for text in want.packages:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # the inventory refused it already
        found[canonicalize_name(requirement.name)] = requirement
    return found


def _judge_packages(view: View) -> Iterable[Finding]:
    installed = torch.versions(view)
    for name, requirement in requirements(view.want).items():
        have = {host: value["packages"].get(name) for host, value in installed.items()}
        for host, version in have.items():
            if version is None or not requirement.specifier.contains(version.split("+")[0], prereleases=True):
                what = "is not installed" if version is None else f"is {version}"
                yield Finding(
                    "python.packages",
                    Severity.ERROR,
                    f"{name} {what}, the inventory asks for {requirement}",
                    host,
                    fix=f"install {requirement} there; {torch.MANAGED}",
                    evidence={"installed": version, "required": str(requirement)},
                )
        if name not in ("torch", "torchvision"):
            yield from differences(
                "python.packages",
                {host: version for host, version in have.items() if version},
                what=name,
                severity=Severity.ERROR,
                fix=f"install the same {name} everywhere; {torch.MANAGED}",
            )


# --- script and data -------------------------------------------------------------------------------------------------


def script_question(want: Want) -> Question | None:
    """The script where it lies on the nodes already: code that is sent is looked at before it is sent."""
    if want.script is None:
        return None
    params = {"path": want.script} | ({"workdir": want.workdir} if want.workdir else {})
    return Question("script", params)


def _ask_script(target: Target, want: Want) -> Iterable[Question]:
    question = script_question(want)
    return (question,) if question else ()


def _judge_script(view: View) -> Iterable[Finding]:
    question = script_question(view.want)
    if question is None:
        return
    found = view.values_of(question)
    for host, value in found.items():
        if value["sha256"] is None:
            what = "is a folder" if value["exists"] else "is not there"
            yield Finding(
                "job.script",
                Severity.ERROR,
                f"the script {value['path']} {what}",
                host,
                fix="copy it there, correct `script:` or `workdir:`, or let ddpctl send the code (`code: .`)",
                evidence={"path": value["path"]},
            )
    there = {host: value for host, value in found.items() if value["sha256"]}
    yield from differences(
        "job.script",
        {host: value["sha256"] for host, value in there.items()},
        what="a script with SHA-256",
        severity=Severity.ERROR,
        fix="copy one version to all of them, or let ddpctl send the code (`code: .`)",
        show=lambda value: str(value)[:12],
    )
    if there:
        yield from _style(next(iter(there.values())))


def _style(value: dict[str, Any]) -> Iterable[Finding]:
    facts = read_script(value["text"])
    if facts.local_rank_arg:
        yield Finding(
            "job.script",
            Severity.INFO,
            f"the script takes its local rank as {facts.local_rank_arg}: ddpctl appends it in that spelling",
            evidence={"path": value["path"]},
        )
    elif facts.parsed and not facts.initialises and not facts.reads_local_rank:
        yield Finding(
            "job.script",
            Severity.INFO,
            "nothing in the script calls init_process_group or reads LOCAL_RANK; if no module of it does either, every "
            "process trains alone",
            fix="call torch.distributed.init_process_group in it, or leave it to a library such as accelerate",
            evidence={"path": value["path"]},
        )


def _tree(want: Want) -> Question | None:
    if want.script is None or want.workdir is None:
        return None
    return Question("tree", {"path": want.workdir}, WALK_S)


def _ask_tree(target: Target, want: Want) -> Iterable[Question]:
    question = _tree(want)
    return (question,) if question else ()


def _judge_code(view: View) -> Iterable[Finding]:
    question = _tree(view.want)
    if question is None:
        return
    found = {host: value for host, value in view.values_of(question).items() if value["exists"]}
    hashes = {host: value["hash"] for host, value in found.items()}
    if None in hashes.values():
        message = f"{view.want.workdir} holds too much to compare in time; the script itself was compared"
        yield Finding("job.code", Severity.INFO, message)
        return
    by_hash = {value["hash"]: value for value in found.values()}
    yield from differences(
        "job.code",
        hashes,
        what=f"code in {view.want.workdir}",
        severity=Severity.WARNING,
        fix="bring all nodes to one version, or let ddpctl send the code (`code: .`)",
        show=lambda value: _version(by_hash[value]),
    )


def _version(value: dict[str, Any]) -> str:
    commit = f"commit {value['git'][:10]}, " if value["git"] else ""
    return f"{commit}{value['files']} files, hash {value['hash'][:10]}"


def _data(want: Want, path: str) -> Question:
    params = {"path": path} | ({"workdir": want.workdir} if want.workdir else {})
    return Question("path", params, WALK_S)


def _ask_data(target: Target, want: Want) -> Iterable[Question]:
    return tuple(_data(want, path) for path in want.data)


def _judge_data(view: View) -> Iterable[Finding]:
    for path in view.want.data:
        found = view.values_of(_data(view.want, path))
        for host, value in found.items():
            if not value["exists"] or not value["readable"]:
                what = "cannot be read" if value["exists"] else "is not there"
                dangling = f" (a link to {value['link']})" if value.get("link") else ""
                yield Finding(
                    "job.data",
                    Severity.ERROR,
                    f"{value['path']} {what}{dangling}, and the job requires it",
                    host,
                    fix=f"put it there, or correct `requires: {{data: [{path}]}}`",
                    evidence=value,
                )
        counted = {host: v for host, v in found.items() if v["readable"] and v["complete"]}
        yield from differences(
            "job.data",
            {host: f"{v['files']} files, {size(v['bytes'])}" for host, v in counted.items()},
            what=f"{path} with",
            severity=Severity.WARNING,
            fix="uneven data makes ranks wait for each other at the end: copy it again, or use drop_last=True",
        )


CHECKS = (
    Check(
        "python.packages",
        "required packages are installed and equal",
        torch.ask_versions,
        _judge_packages,
        Doc(
            cause="A package of the inventory's `environment.packages` is missing on a node or has another version "
            "there.",
            symptom="ImportError on one node while the others wait 30 minutes in init_process_group; results that "
            "differ",
            fix="Install the same everywhere, or `environment: {mode: managed}`.",
        ),
    ),
    Check(
        "job.script",
        "the script is there and equal",
        _ask_script,
        _judge_script,
        Doc(
            cause="With `code: null` the script must lie on every node. It is missing on one, or another version.",
            symptom="can't open file '/x.py': [Errno 2]; exitcode 2; DDP expects same model across all ranks",
            fix="Let ddpctl send the code (`code: .`), or copy it.",
        ),
    ),
    Check(
        "job.code",
        "the code is the same everywhere",
        _ask_tree,
        _judge_code,
        Doc(
            cause="With `code: null`, files of the workdir differ between nodes: another commit, a local edit.",
            symptom="params[0] in this process with sizes [9, 4] appears not to match sizes of the same param in "
            "process 0",
            fix="The same commit everywhere, or let ddpctl send the code.",
        ),
    ),
    Check(
        "job.data",
        "the data is there",
        _ask_data,
        _judge_data,
        Doc(
            cause="A path of `requires.data` is missing, unreadable or of another size on a node.",
            symptom="FileNotFoundError on one node while the others wait; ranks that run out of batches at different "
            "times",
            fix="Copy the data; mount the share.",
        ),
    ),
)
