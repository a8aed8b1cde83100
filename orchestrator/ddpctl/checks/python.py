"""The interpreter that runs the worker and, in existing mode, the job."""

from __future__ import annotations

from collections.abc import Iterable

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences
from ddpctl.checks.connection import judge_errors
from ddpctl.errors import PythonMissing
from ddpctl.spec.finding import Finding, Severity

PYTHON = Question("python")


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (PYTHON,)


def _judge(view: View) -> Iterable[Finding]:
    name_it = "name the interpreter's full path in the inventory (`python:`)"
    yield from judge_errors("python.version", lambda error: isinstance(error, PythonMissing), view, name_it)
    if view.want.managed:
        return  # the environment brings its own; the node's interpreter only runs the worker
    minors = {host: ".".join(str(part) for part in v["info"][:2]) for host, v in view.values_of(PYTHON).items()}
    yield from differences(
        "python.version",
        minors,
        what="Python",
        severity=Severity.WARNING,
        fix="name the same interpreter for every host (`python:` in the inventory), or `environment: {mode: managed}`",
    )


VERSION = Check(
    "python.version",
    "Python is there and equal",
    _ask,
    _judge,
    Doc(
        cause="The interpreter named by `python:` is not on the node, is older than 3.8, or its minor version is not "
        "that of the other nodes. A shell over SSH does not read the part of the profile that puts conda or pyenv on "
        "PATH.",
        symptom="python3: command not found / torchrun: command not found, though it works after an interactive login; "
        "with differing versions: ImportError on one node while the others wait in init_process_group",
        fix="Write the interpreter's full path as `python:` in the inventory.",
    ),
)

CHECKS = (VERSION,)
