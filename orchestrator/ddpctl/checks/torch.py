"""torch on every node: there, importable, and the very same build everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences
from ddpctl.spec.finding import Finding, Severity

MANAGED = "`environment: {mode: managed, packages: [torch==...]}` makes ddpctl put the same one on every node"
IMPORT_DEADLINE_S = 60.0
# Variables of the job that change which libraries an import finds.
_IMPORT_ENV = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


def versions_question(target: Target) -> Question:
    path = target.env.get("PYTHONPATH")
    return Question("versions", {"python_path": path} if path else {})


def import_question(target: Target) -> Question:
    env = {name: target.env[name] for name in _IMPORT_ENV if name in target.env}
    return Question("torch_import", {"env": env} if env else {}, deadline=IMPORT_DEADLINE_S)


def ask_versions(target: Target, want: Want) -> Iterable[Question]:
    return () if want.managed else (versions_question(target),)


def ask_import(target: Target, want: Want) -> Iterable[Question]:
    """The import, and the versions, which tell a torch that fails from one that is not there."""
    return () if want.managed else (import_question(target), versions_question(target))


def versions(view: View) -> dict[str, dict[str, Any]]:
    """host -> what is installed there; empty when ddpctl brings the environment."""
    return {} if view.want.managed else view.values(lambda target, want: versions_question(target))


def imports(view: View) -> dict[str, dict[str, Any]]:
    """host -> what its import of torch said; empty when ddpctl brings the environment."""
    return {} if view.want.managed else view.values(lambda target, want: import_question(target))


def _judge_versions(view: View) -> Iterable[Finding]:
    found = versions(view)
    for host in found:
        if found[host]["torch"] is None:
            yield Finding(
                "torch.versions",
                Severity.ERROR,
                f"torch is not installed for {_python(view, host)}",
                host=host,
                fix=f"install torch there, name the right interpreter with `python:`, or {MANAGED}",
                evidence={"folders": found[host]["folders"]},
            )
    here = {host: value["torch"] for host, value in found.items() if value["torch"]}
    by_version = _compare(here, "torch", "version", "torch")
    yield from by_version
    if not by_version:  # builds without a local version (+cu126, +cpu) look equal by name alone
        yield from _compare(here, "a CUDA build of torch:", "cuda", "torch")
        yield from _nccl(found)
    vision = {host: value["torchvision"] for host, value in found.items() if value["torchvision"]}
    if vision:
        everyone = {host: vision.get(host, {"version": None}) for host in here}
        yield from _compare(everyone, "torchvision", "version", "torchvision")


def _compare(values: Mapping[str, Mapping[str, Any]], what: str, key: str, package: str) -> list[Finding]:
    severity = Severity.ERROR if package == "torch" else Severity.WARNING
    return differences(
        "torch.versions",
        {host: value.get(key) for host, value in values.items()},
        what=what,
        severity=severity,
        fix=f"install the same {package} everywhere; {MANAGED}",
        show=lambda value: "none" if value is None else str(value),
    )


def _nccl(found: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    return differences(
        "torch.versions",
        {host: value["nccl"] for host, value in found.items() if value["torch"] and value["nccl"]},
        what="NCCL",
        severity=Severity.ERROR,
        fix=f"install the same nvidia-nccl package everywhere; {MANAGED}",
    )


def _python(view: View, host: str) -> str:
    return next(target.python for target in view.targets if target.name == host)


def _judge_import(view: View) -> Iterable[Finding]:
    missing = {host for host, value in versions(view).items() if value["torch"] is None}
    for host, value in imports(view).items():
        if value["error"] and host not in missing:  # a torch that is not there has its own finding
            late = value.get("timed_out", False)
            yield Finding(
                "torch.import",
                Severity.ERROR,
                value["error"] if late else f"import torch fails: {value['error']}",
                host=host,
                fix=f"ssh {host} {_python(view, host)} -c 'import torch'",
                evidence=value,
            )


VERSIONS = Check(
    "torch.versions",
    "torch is installed and equal",
    ask_versions,
    _judge_versions,
    Doc(
        cause="torch is missing on a node, or two nodes have different versions or builds. torch itself never compares "
        "versions between nodes: the processes meet and then wait for each other for ever.",
        symptom="Timed out after 901 seconds waiting for clients. 1/2 clients joined. / Connection reset by peer / "
        "failed to format addr, unknown family=0 / no output at all",
        fix="The same version, CUDA build and NCCL everywhere. `environment: {mode: managed}` does it in one go.",
    ),
)

IMPORT = Check(
    "torch.import",
    "torch can be imported",
    ask_import,
    _judge_import,
    Doc(
        cause="torch is installed but its import fails or takes minutes: a system library is missing, LD_LIBRARY_PATH "
        "holds another CUDA or NCCL, the environment lies on a slow network disk.",
        symptom="ImportError: libcudart.so.12: cannot open shared object file; OSError: ... undefined symbol; ranks "
        "that start minutes apart",
        fix="Run the import by hand on that node; the last line of its error names the library.",
    ),
)

CHECKS = (VERSIONS, IMPORT)
