"""The interpreter that runs the worker and, in existing mode, the job: its version, its packages, and its torch.

torch.py and gpu/ judge the answers about torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, Requirements, Target, View
from ddpctl.checks.limits import DEVICES_S, TORCH_IMPORT_S
from ddpctl.checks.ssh import judge_errors
from ddpctl.errors import PythonMissing
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.question import Question

PYTHON = Question("python")
MANAGED = "`environment: {mode: managed, packages: [torch==...]}` makes ddpctl install the same one on every node"
# Variables of the job that change which libraries or devices an import finds.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_IMPORT_ENV = ("LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD", *_VISIBLE)


def versions_question(target: Target, want: Requirements) -> Question:
    path = target.env.get("PYTHONPATH")
    return Question("versions", {"python_path": path} if path else {})


def installed(target: Target, want: Requirements) -> Question | None:
    """Ask for the versions if the node's own interpreter runs the job."""
    return None if want.managed else versions_question(target, want)


def torch_import(target: Target, want: Requirements) -> Question | None:
    return None if want.managed else Question("torch_import", _import_params(target), deadline=TORCH_IMPORT_S)


# The import, and the versions: only these distinguish a broken torch from a missing torch.
ASK_TORCH = (torch_import, installed)


def live_question(target: Target, want: Requirements) -> Question:
    """Ask for the devices that the driver's library sees. The import of torch reports them too, if there is a torch."""
    return torch_import(target, want) or Question("gpu_devices", _import_params(target), deadline=DEVICES_S)


def _import_params(target: Target) -> dict[str, Any]:
    env = _import_env(target)
    return {"env": env} if env else {}


def _import_env(target: Target) -> dict[str, str]:
    return {name: target.env[name] for name in _IMPORT_ENV if name in target.env}


@lru_cache(maxsize=2)
def versions(view: View) -> Mapping[str, dict[str, Any]]:
    """Return host -> installed versions; empty if ddpctl brings the environment."""
    return view.values(installed)


@lru_cache(maxsize=2)
def imports(view: View) -> Mapping[str, dict[str, Any]]:
    """Return host -> result of importing torch; empty if ddpctl brings the environment."""
    return view.values(torch_import)


def torch_of(view: View, host: str) -> Mapping[str, Any] | None:
    """Return the torch of a host's interpreter: from its version.py if it was found, else from the import."""
    found: Mapping[str, Any] | None = (versions(view).get(host) or {}).get("torch")
    real = imports(view).get(host) or {}
    if found is None and real.get("torch"):
        return {"version": real["torch"], "cuda": real.get("cuda"), "hip": real.get("hip")}
    return found


def live_environment(view: View, host: str) -> dict[str, Any] | None:
    """Return the driver library's report on the host, if it was asked and torch is not a CPU build."""
    if view.requirements.managed:
        return _drivers(view).get(host)
    found: dict[str, Any] | None = (imports(view).get(host) or {}).get("live")
    return found


@lru_cache(maxsize=2)
def _drivers(view: View) -> Mapping[str, dict[str, Any]]:
    return view.values(live_question)


def run_python(view: View, host: str, program: str) -> str:
    """Return a command that runs a program in the host's interpreter, with the job's search paths."""
    target = view.target(host)
    return python_command(target.python, _import_env(target), program)


def python_command(python: str, env: Mapping[str, str], program: str) -> str:
    """Return shell text that runs a program in an interpreter, which may be below ``~``."""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
    quoted = f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)
    return f"{variables}{quoted} -c {shlex.quote(program)}"


# --- the interpreter -------------------------------------------------------------------------------------------------


def _judge_version(view: View) -> Iterable[Finding]:
    name_it = "name the interpreter's full path in the inventory (`python:`)"
    yield from judge_errors(view, lambda error: isinstance(error, PythonMissing), name_it)
    if view.requirements.managed:
        return  # the environment brings its own Python; the node's interpreter only runs the worker
    minors = {host: ".".join(str(part) for part in v["info"][:2]) for host, v in view.values(PYTHON).items()}
    yield from report.differences(
        Severity.WARNING,
        minors,
        what="Python",
        fix="name the same interpreter for every host (`python:` in the inventory), or `environment: {mode: managed}`",
    )


# --- packages --------------------------------------------------------------------------------------------------------


def requirements(want: Requirements) -> dict[str, Requirement]:
    """Return normalized name -> requirement. torch and torchvision have their own checks."""
    found: dict[str, Requirement] = {}
    for text in want.packages:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # the inventory has refused it already
        found[canonicalize_name(requirement.name)] = requirement
    return found


def _judge_packages(view: View) -> Iterable[Finding]:
    installed = versions(view)
    for name, requirement in requirements(view.requirements).items():
        have = {host: value["packages"].get(name) for host, value in installed.items()}
        if name == "torch":  # some builds of torch have no distribution metadata
            have = {host: have[host] or (torch_of(view, host) or {}).get("version") for host in have}
        for host, version in have.items():
            if version is None or not requirement.specifier.contains(version.split("+")[0], prereleases=True):
                what = "is not installed" if version is None else f"is {version}"
                yield report.error(
                    host,
                    f"{name} {what}, the inventory asks for {requirement}",
                    fix=f"install {requirement} there; {MANAGED}",
                    evidence={"installed": version, "required": str(requirement)},
                )
        if name not in ("torch", "torchvision"):
            yield from report.differences(
                Severity.ERROR,
                {host: version for host, version in have.items() if version},
                what=name,
                fix=f"install the same {name} everywhere; {MANAGED}",
            )


CHECKS = (
    Check(
        "python.version",
        "Python is there, and the same everywhere",
        _judge_version,
        ask=(PYTHON,),
        cause="The interpreter named by `python:` is not on the node, is older than 3.8, or its minor version is not "
        "that of the other nodes. A shell over SSH does not read the part of the profile that puts conda or pyenv on "
        "PATH.",
        symptom="python3: command not found / torchrun: command not found, though it works after an interactive login; "
        "with differing versions: ImportError on one node while the other nodes wait in init_process_group",
        fix="Write the interpreter's full path as `python:` in the inventory.",
        seen=ON_HOSTS,
    ),
    Check(
        "python.packages",
        "required packages are installed, and the same everywhere",
        _judge_packages,
        ask=(installed,),
        cause="A package of the inventory's `environment.packages` is missing on a node or has another version there.",
        symptom="ImportError on one node while the other nodes wait 30 minutes in init_process_group; results that "
        "differ",
        fix="Install the same everywhere, or `environment: {mode: managed}`.",
        seen=ON_HOSTS,
    ),
)
