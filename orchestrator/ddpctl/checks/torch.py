"""torch on every node: installed, importable, and the same build everywhere; and torchvision beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import python, report
from ddpctl.checks.base import ON_HOSTS, Check, View
from ddpctl.checks.job_imports import failures, is_error, modules, modules_question
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.source import OPTIONAL


def _judge_versions(view: View) -> Iterable[Finding]:
    found = python.versions(view)
    for host in found:
        if python.torch_of(view, host) is None:
            yield report.error(
                host,
                f"torch is not installed for {view.target(host).python}",
                fix=f"install torch there, name the right interpreter with `python:`, or {python.MANAGED}",
                evidence={"folders": found[host]["folders"]},
            )
    here = {host: torch for host in found if (torch := python.torch_of(view, host)) is not None}
    by_version = _differ({host: build.get("version") for host, build in here.items()}, "torch", "torch")
    yield from by_version
    if not by_version:  # builds without a local version (+cu126, +cpu) have equal version numbers
        yield from _differ({host: build.get("cuda") for host, build in here.items()}, "a CUDA build of torch:", "torch")
        nccl = {host: value["nccl"] for host, value in found.items() if value["torch"] and value["nccl"]}
        yield from _differ(nccl, "NCCL", "nvidia-nccl package")
    vision = {host: value["torchvision"] for host, value in found.items() if value["torchvision"]}
    if vision:
        everyone = {host: vision[host].get("version") if host in vision else None for host in here}
        yield from _differ(everyone, "torchvision", "torchvision", Severity.WARNING)


def _differ(values: Mapping[str, Any], what: str, package: str, severity: Severity = Severity.ERROR) -> list[Finding]:
    return report.differences(
        severity,
        values,
        what=what,
        fix=f"install the same {package} everywhere; {python.MANAGED}",
        show=lambda value: "none" if value is None else str(value),
    )


def _judge_import(view: View) -> Iterable[Finding]:
    missing = {host for host, value in python.versions(view).items() if value["torch"] is None}
    for host, value in python.imports(view).items():
        if value["error"] and host not in missing:  # a missing torch has its own finding
            late = value.get("timed_out", False)
            yield report.finding(
                Severity.WARNING if late else Severity.ERROR,
                host,
                f"{value['error']}: the cause is a cold environment on a network disk, or a library that hangs"
                if late
                else f"import torch fails: {value['error']}",
                fix="run it once: the next import finds the files in memory; if it never ends, look for the library"
                if late
                else None,
                command=python.run_python(view, host, "import torch"),
                evidence=value,
            )


def _judge(view: View) -> Iterable[Finding]:
    installed = python.versions(view)
    for host, value in python.imports(view).items():
        error = value.get("torchvision_error")
        if not error:
            continue
        severity, what_for = _need(view, host, error)
        version = ((installed.get(host) or {}).get("torchvision") or {}).get("version") or "torchvision"
        yield report.finding(
            severity,
            host,
            f"torchvision {version} cannot be imported beside torch {value['torch']}: {error}{what_for}",
            fix=f"install the torchvision build that belongs to this torch, from the same index; {python.MANAGED}",
            evidence=value,
        )


def _need(view: View, host: str, error: str) -> tuple[Severity, str]:
    """Return the severity, by the script's imports, and the reason."""
    imports = view.requirements.imports
    if imports is None:
        return Severity.WARNING, "; a job that imports it will fail"
    result = modules(view).get(host)
    for statement, failed in failures(result, imports) if result else ():
        if is_error(failed, error):
            return Severity.ERROR, f"; {statement.where} needs it: `{statement.statement}`"
    for statement in imports.statements:
        if statement.module.split(".")[0] == "torchvision" and (statement.guard == OPTIONAL or not result):
            return Severity.WARNING, f"; {statement.where} may import it"
    asked = any(modules_question(target, view.requirements) for target in view.targets)
    if imports.unread or (asked and (not result or result["error"])):
        return Severity.WARNING, "; whether the script needs it is unknown"
    return Severity.INFO, "; harmless, nothing that the script imports needs it"


CHECKS = (
    Check(
        "torch.versions",
        "torch is installed, and the same everywhere",
        _judge_versions,
        ask=(python.installed,),
        cause="torch is missing on a node, or two nodes have different versions or builds. torch itself never compares "
        "versions between nodes: the processes meet and then wait for each other forever.",
        symptom="Timed out after 901 seconds waiting for clients. 1/2 clients joined. / Connection reset by peer / "
        "failed to format addr, unknown family=0 / no output at all",
        fix="The same version, CUDA build and NCCL everywhere. `environment: {mode: managed}` does all of this.",
        seen=ON_HOSTS,
    ),
    Check(
        "torch.import",
        "torch can be imported",
        _judge_import,
        ask=python.ASK_TORCH,
        cause="torch is installed but its import fails: a system library is missing, LD_LIBRARY_PATH holds another "
        "CUDA or NCCL. Or it takes more than a minute (a warning): the environment is on a slow network disk.",
        symptom="ImportError: libcudart.so.12: cannot open shared object file; OSError: ... undefined symbol; ranks "
        "that start minutes apart",
        fix="Run the import by hand on that node; the last line of its error names the library.",
        seen=ON_HOSTS,
    ),
    Check(
        "torch.vision",
        "torchvision fits its torch",
        _judge,
        ask=(*python.ASK_TORCH, modules_question),
        cause="torchvision's compiled operators belong to one build of torch. A torchvision from the package index "
        "beside a CPU-only torch, or after torch alone was upgraded, cannot be imported.",
        symptom="RuntimeError: operator torchvision::nms does not exist",
        fix="Install torch and torchvision together, from the same index. A job that imports torchvision neither "
        "itself nor through another package (lightning, timm) is not harmed.",
        seen=ON_HOSTS,
    ),
)
