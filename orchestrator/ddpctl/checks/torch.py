"""torch on every node: there, importable, and the very same build everywhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences
from ddpctl.spec.finding import Finding, Severity

MANAGED = "`environment: {mode: managed, packages: [torch==...]}` makes ddpctl put the same one on every node"
IMPORT_DEADLINE_S = 60.0
LIVE_DEADLINE_S = 20.0
# Variables of the job that change which libraries an import finds, and which devices.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_IMPORT_ENV = ("LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD", *_VISIBLE)


def versions_question(target: Target) -> Question:
    path = target.env.get("PYTHONPATH")
    return Question("versions", {"python_path": path} if path else {})


def _import_params(target: Target) -> dict[str, Any]:
    env = {name: target.env[name] for name in _IMPORT_ENV if name in target.env}
    return {"env": env} if env else {}


def import_question(target: Target) -> Question:
    return Question("torch_import", _import_params(target), deadline=IMPORT_DEADLINE_S)


def live_question(target: Target, want: Want) -> Question:
    """What the driver's library sees now: the import of torch tells it too, where there is a torch to import."""
    if want.managed:
        return Question("gpu_devices", _import_params(target), deadline=LIVE_DEADLINE_S)
    return import_question(target)


def ask_versions(target: Target, want: Want) -> Iterable[Question]:
    return () if want.managed else (versions_question(target),)


def ask_import(target: Target, want: Want) -> Iterable[Question]:
    """The import, and the versions, which tell a torch that fails from one that is not there."""
    return () if want.managed else (import_question(target), versions_question(target))


@lru_cache(maxsize=2)
def versions(view: View) -> Mapping[str, dict[str, Any]]:
    """host -> what is installed there; empty when ddpctl brings the environment."""
    return {} if view.want.managed else view.values(lambda target, want: versions_question(target))


@lru_cache(maxsize=2)
def imports(view: View) -> Mapping[str, dict[str, Any]]:
    """host -> what its import of torch said; empty when ddpctl brings the environment."""
    return {} if view.want.managed else view.values(lambda target, want: import_question(target))


def live(view: View, host: str) -> dict[str, Any] | None:
    """What the driver's library said on the host; None: not asked, or a torch for processors."""
    if view.want.managed:
        return _drivers(view).get(host)
    found: dict[str, Any] | None = (imports(view).get(host) or {}).get("live")
    return found


@lru_cache(maxsize=2)
def _drivers(view: View) -> Mapping[str, dict[str, Any]]:
    return view.values(live_question)


def run_python(view: View, host: str, program: str) -> str:
    """A command that runs a program in the host's interpreter, with the job's search paths."""
    target = next(one for one in view.targets if one.name == host)
    env = "".join(f"{name}={shlex.quote(target.env[name])} " for name in _IMPORT_ENV if name in target.env)
    home, _, rest = target.python.partition("/")
    python = f"~/{shlex.quote(rest)}" if home == "~" else shlex.quote(target.python)
    return f"{env}{python} -c {shlex.quote(program)}"


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
                Severity.WARNING if late else Severity.ERROR,
                f"{value['error']}: a cold environment on a network disk does that, and a library that hangs"
                if late
                else f"import torch fails: {value['error']}",
                host=host,
                command=run_python(view, host, "import torch"),
                fix="run it once: the next import finds the files in memory; if it never ends, look for the library"
                if late
                else None,
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
        cause="torch is installed but its import fails: a system library is missing, LD_LIBRARY_PATH holds another "
        "CUDA or NCCL. Or it takes more than a minute (a warning): the environment lies on a slow network disk.",
        symptom="ImportError: libcudart.so.12: cannot open shared object file; OSError: ... undefined symbol; ranks "
        "that start minutes apart",
        fix="Run the import by hand on that node; the last line of its error names the library.",
    ),
)

CHECKS = (VERSIONS, IMPORT)
