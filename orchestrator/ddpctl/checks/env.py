"""The job's final variables and NCCL library: from the login, the inventory, ddpctl and NCCL's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import python, report
from ddpctl.checks.base import NO_HARDWARE, ON_HOSTS, Check, Requirements, Target, View
from ddpctl.checks.gpu.in_use import uses_gloo
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.question import Question
from ddpctl_worker.wire.contract import SCRUB_NAMES, SCRUB_PREFIXES

OWN = frozenset({"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"})  # set by spec.planning
PER_HOST = frozenset({"NCCL_IB_HCA", "NCCL_IB_GID_INDEX"})  # may differ by host; ib.* judge them


def question(target: Target, want: Requirements) -> Question:
    asked = {"library_path": target.env.get("LD_LIBRARY_PATH"), "conf_file": target.env.get("NCCL_CONF_FILE")}
    return Question("environment", {name: value for name, value in asked.items() if value})


def _login(view: View, target: Target) -> dict[str, Any]:
    return view.value(target.name, question(target, view.requirements)) or {}


def scrub_value(name: str) -> bool:
    """Return whether ddpctl removes the variable from the job's environment."""
    return name in SCRUB_NAMES or name.startswith(SCRUB_PREFIXES)


def final_value(view: View, target: Target) -> dict[str, str]:
    """Return the job's variables on a host, without ddpctl's own variables: the inventory overrides the login."""
    login = _login(view, target).get("variables", {})
    kept = {name: text for name, text in login.items() if not scrub_value(name) and name not in OWN}
    return {**kept, **target.env}


def nccl_settings(view: View, target: Target) -> dict[str, str]:
    """Return NCCL's settings on a host: /etc/nccl.conf, overridden by the user's file, overridden by variables."""
    files = _login(view, target).get("nccl_conf", {})
    lines = [line for name in sorted(files, key=lambda name: name != "/etc/nccl.conf") for line in files[name]]
    settings = {key.strip(): text.strip() for key, mark, text in (line.partition("=") for line in lines) if mark}
    return {**settings, **final_value(view, target)}


def without_nccl(view: View) -> dict[str, str]:
    """Return every host, with the reason, if the job does not use NCCL."""
    return {target.name: "the job uses gloo" for target in view.targets} if uses_gloo(view) else {}


# --- variables -------------------------------------------------------------------------------------------------------


def _judge_variables(view: View) -> Iterable[Finding]:
    found = view.values(question)
    for target in view.targets:
        login = found.get(target.name, {}).get("variables", {})
        gone = {name: text for name, text in login.items() if scrub_value(name) or (name in OWN - set(target.env))}
        if gone:
            listed = ", ".join(f"{name}={text}" for name, text in sorted(gone.items()))
            yield report.info(
                target.name,
                f"the login sets {listed}; harmless: ddpctl overrides or removes them for the job",
                fix="remove them from the profile: other launchers use them",
                evidence=gone,
            )
    ends = {target.name: final_value(view, target) for target in view.targets if target.name in found}
    for name in sorted(_from_logins(view, found)):
        values = {host: variables.get(name) for host, variables in ends.items()}
        yield from report.differences(
            _severity(view, name, values),
            values,
            what=f"{name}:",
            fix=f"set {name} in the inventory (`env:`), or in the profile of every host",
            show=lambda value: "not set" if value is None else repr(value),
        )


def _from_logins(view: View, found: Mapping[str, dict[str, Any]]) -> set[str]:
    """Return the variables that a process of the job has from its login. A value of the inventory is intended."""
    return {
        name
        for target in view.targets
        for name in found.get(target.name, {}).get("variables", {})
        if not scrub_value(name) and name not in OWN and name not in target.env
    }


def _severity(view: View, name: str, values: Mapping[str, str | None]) -> Severity:
    unused = name.startswith("NCCL_") and uses_gloo(view)
    meant = name in PER_HOST and None not in values.values()
    return Severity.WARNING if is_steering(name) and not (unused or meant) else Severity.INFO


def is_steering(name: str) -> bool:
    """Return whether a difference can change how nodes communicate or which libraries they load, not only the speed."""
    families = ("NCCL_", "GLOO_", "TORCH", "CUDA_VISIBLE", "UCX_", "FI_")
    return name.startswith(families) or name in ("LD_PRELOAD", "PYTHONPATH")


# --- NCCL ------------------------------------------------------------------------------------------------------------


def _judge_nccl(view: View) -> Iterable[Finding]:
    if uses_gloo(view):
        return
    found = view.values(question)
    yield from report.differences(
        Severity.WARNING,
        {target.name: _file_settings(view, target) for target in view.targets if target.name in found},
        what="NCCL's own settings file:",
        fix="make /etc/nccl.conf and ~/.nccl.conf equal, or set the variables in the inventory (`env:`)",
        show=lambda value: "; ".join(f"{name}={text}" for name, text in value.items()) or "none",
    )
    yield from _other_nccl(view)
    yield from report.differences(
        Severity.ERROR,
        _loaded(view),
        what="NCCL that torch loads:",
        fix=f"LD_LIBRARY_PATH and LD_PRELOAD may put another one first; {python.MANAGED}",
    )


def _loaded(view: View) -> dict[str, str]:
    """Return host -> version of the NCCL that torch loads; empty if python.versions already reports a difference."""
    builds = {((value["torch"] or {}).get("version"), value["nccl"]) for value in python.versions(view).values()}
    if len(builds) > 1:
        return {}
    return {host: value["nccl_runtime"] for host, value in python.imports(view).items() if value.get("nccl_runtime")}


def _file_settings(view: View, target: Target) -> dict[str, str]:
    """Return the settings of NCCL's files that must be equal: no variable, and not ddpctl, overrides them."""
    variables = final_value(view, target)
    settings = nccl_settings(view, target)
    return {name: settings[name] for name in sorted(settings) if name not in OWN | PER_HOST | set(variables)}


def _other_nccl(view: View) -> Iterable[Finding]:
    """Find each libnccl on LD_LIBRARY_PATH. torch's wheels find their own first, through their RPATH."""
    imports, versions = python.imports(view), python.versions(view)
    for host, value in view.values(question).items():
        loaded = imports.get(host, {}).get("nccl_path")
        wheel = versions.get(host, {}).get("nccl")
        if not value["libnccl"] or view.requirements.managed or wheel or (loaded and loaded not in value["libnccl"]):
            continue
        taken = loaded or ", ".join(value["libnccl"])
        yield report.warning(
            host,
            f"torch loads {taken}, from LD_LIBRARY_PATH"
            if loaded
            else f"LD_LIBRARY_PATH may put {taken} before the NCCL that comes with torch",
            fix="remove that folder from LD_LIBRARY_PATH, unless torch was built against it",
            evidence={"libnccl": value["libnccl"], "loaded": loaded},
        )


CHECKS = (
    Check(
        "env.variables",
        "no conflicting variables",
        _judge_variables,
        ask=(question,),
        cause="A profile on one node sets NCCL_*, GLOO_*, CUDA_VISIBLE_DEVICES, or PET_*, RANK, MASTER_ADDR, which "
        "torch's launcher takes for its defaults. The check reads the job's final environment: the inventory overrides "
        "the login, and ddpctl sets NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and OMP_NUM_THREADS itself.",
        symptom="one node uses another interface, sees other GPUs, or waits for another master",
        fix="ddpctl removes PET_*, RANK, WORLD_SIZE, MASTER_* and the like; set all other variables in the inventory.",
        seen=ON_HOSTS,
    ),
    Check(
        "env.nccl",
        "torch loads its own NCCL",
        _judge_nccl,
        ask=(question, *python.ASK_TORCH),
        cause="The NCCL that torch really loads is not the same on every node: a system libnccl, a module or an MPI "
        "comes first through LD_LIBRARY_PATH or LD_PRELOAD (torch's wheels find their own despite LD_LIBRARY_PATH). "
        "Or /etc/nccl.conf differs between hosts.",
        symptom="Mismatched NCCL version detected; Message truncated: received N bytes instead of M",
        fix="Unset LD_LIBRARY_PATH for the job.",
        seen=NO_HARDWARE,
        exempt=without_nccl,
    ),
)
