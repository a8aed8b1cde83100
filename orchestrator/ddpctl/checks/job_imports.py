"""The imports of the job's script: whether its files can be parsed, and whether the imports work on every node."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import python, report
from ddpctl.checks.base import ON_HOSTS, Check, Requirements, Target, View
from ddpctl.checks.job import script_question
from ddpctl.checks.limits import IMPORTS_S
from ddpctl.checks.python import PYTHON, python_command
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.imports import Import, Imports, package_of, read_imports
from ddpctl.spec.question import Question
from ddpctl.spec.source import IF_IMPORTABLE, IF_THERE, NEEDED, SourceFault

# --- questions -------------------------------------------------------------------------------------------------------


def modules_question(target: Target, want: Requirements) -> Question | None:
    """Return the question that runs the script's import statements on the node.

    No question if there are no imports, if they are not known, or if the environment is not there yet.
    """
    if want.imports is None or not want.imports.tried or (want.managed and target.environment is None):
        return None
    params: dict[str, Any] = {"statements": [imported.statement for imported in want.imports.tried]}
    if guards := {imported.statement: imported.guard for imported in want.imports.tried if imported.guard}:
        params["guards"] = guards
    if target.env:
        params["env"] = dict(sorted(target.env.items()))  # any variable may decide whether an import works
    if want.script:
        params["beside"] = _own_folders(target, want.script, want.workdir or "~")
    if want.managed:
        params["python"] = target.environment
    return Question("modules", params, deadline=IMPORTS_S)


def _own_folders(target: Target, script: str, workdir: str) -> list[str]:
    """Return where a script on the nodes finds modules of its own: beside it, and on a relative PYTHONPATH."""
    parts = [part for part in target.env.get("PYTHONPATH", "/").split(":") if not part.startswith(("/", "~"))]
    return [posixpath.dirname(posixpath.join(workdir, script)), *(posixpath.join(workdir, part) for part in parts)]


def modules(view: View) -> dict[str, dict[str, Any]]:
    """Return host -> result of the script's imports."""
    return view.values(modules_question)


def script_imports(view: View) -> Imports | None:
    """Return the imports of a script that is on the nodes, from the first whole text that a host sent."""
    for value in view.values(script_question).values():
        text = (value["text"] or "").encode("utf-8", "surrogatepass")
        if value["sha256"] == hashlib.sha256(text).hexdigest():
            script = posixpath.normpath(str(view.requirements.script))
            return read_imports({script: text}.get, None, script=script)
    return None


# --- syntax ----------------------------------------------------------------------------------------------------------


def _judge_syntax(view: View) -> Iterable[Finding]:
    pythons = {host: (v["info"][0], v["info"][1]) for host, v in view.values(PYTHON).items()}
    for fault in view.requirements.imports.faults if view.requirements.imports else ():
        refused = [host for host, python in pythons.items() if fault.below is None or python < fault.below]
        yield from (_syntax(fault, host, pythons) for host in _one_for_all(refused, pythons))
        if fault.newer_unknown:
            unseen = [host for host in pythons if host not in refused]
            yield from (_unseen(fault, host, pythons) for host in _one_for_all(unseen, pythons))


def _one_for_all(hosts: list[str], of: Mapping[str, Any]) -> list[str] | list[None]:
    """Return [None], for a single finding, if the fault is on every host; else the hosts."""
    return [None] if hosts and len(hosts) == len(of) else hosts


def _syntax(fault: SourceFault, host: str | None, pythons: Mapping[str, tuple[int, int]]) -> Finding:
    own = fault.below is not None and not fault.newer_unknown  # the node's Python is the cause
    where = f", and {_has(host, pythons)}" if own else ""
    newer = ", or name a newer interpreter (`python:`)" if own else ""
    return report.finding(
        Severity.ERROR if fault.certain else Severity.WARNING,
        host,
        f"{fault.where} {fault.message}{where}",
        fix=fault.fix or f"correct line {fault.line} of {fault.file}{newer}",
        evidence={"file": fault.file, "line": fault.line},
    )


def _unseen(fault: SourceFault, host: str | None, pythons: Mapping[str, tuple[int, int]]) -> Finding:
    message = f"not checked: {fault.where} {fault.message}, and {_has(host, pythons)}, which may accept it"
    evidence = {"file": fault.file, "line": fault.line, **({} if host else {"hosts": list(pythons)})}
    return report.unknown(host, message, evidence=evidence)


def _has(host: str | None, pythons: Mapping[str, tuple[int, int]]) -> str:
    python = pythons[host] if host else max(pythons.values())
    return f"{host or 'the newest node'} has {python[0]}.{python[1]}"


# --- imports ---------------------------------------------------------------------------------------------------------


def failures(value: Mapping[str, Any], imports: Imports) -> list[tuple[Import, dict[str, Any]]]:
    """Return the failures that the script does not survive, each cause once."""
    by_statement = {each.statement: each for each in imports.tried}
    found: list[tuple[Import, dict[str, Any]]] = []
    for failed in value["failed"]:
        imported = by_statement[failed["statement"]]
        survived = {NEEDED: (), IF_THERE: ("missing",), IF_IMPORTABLE: ("missing", "import")}[imported.guard]
        if failed["kind"] not in survived and failed["error"] not in [other["error"] for _, other in found]:
            found.append((imported, failed))
    return found


def _judge_imports(view: View) -> Iterable[Finding]:
    imports = view.requirements.imports
    if imports is None:
        return
    if imports.unread:
        why = f"not checked: what {', '.join(imports.unread[:3])} imports, which could not be read here"
        evidence = {"hosts": list(view.answers), "files": list(imports.unread[:100])}
        yield report.unknown(None, why, evidence=evidence)
    if not imports.tried:
        return
    if view.requirements.managed and not any(target.environment for target in view.targets):
        why = "not checked: `ddpctl up` does it once the managed environment is on the nodes"
        yield from (report.unknown(host, why) for host in view.answers)
        return
    told, torches = modules(view), python.imports(view)
    for target in view.targets:
        value = told.get(target.name)
        if value is None:
            continue
        if value["error"]:
            yield _unended(target, imports, value)
        for imported, failed in failures(value, imports):
            check = _check_of_torch(imported, failed, torches.get(target.name) or {})
            if check:
                message = f"{imported.where}: `{imported.statement}` fails with the error of {check}"
                yield report.info(target.name, message)
            else:
                yield _failed(view.requirements, target, imported, failed)


def _check_of_torch(imported: Import, failed: Mapping[str, Any], tried: Mapping[str, Any]) -> str | None:
    """Return the check that reports why torch or torchvision itself fails, if that is the cause."""
    if is_error(failed, tried.get("torchvision_error")):
        return "torch.vision"
    by_torch = imported.module.split(".")[0] == "torch" or failed["missing"] in (None, "torch")
    return "torch.import" if tried.get("error") and by_torch else None


def is_error(failed: Mapping[str, Any], error: str | None) -> bool:
    """Return whether an import failed with this error, perhaps quoted by the package that it went through."""
    return bool(error) and (str(error).partition(": ")[2] or str(error)) in failed["error"]


def _unended(target: Target, imports: Imports, value: Mapping[str, Any]) -> Finding:
    """Return the finding for a process that did not finish the imports: it hangs, or it crashed."""
    imported = next((imported for imported in imports.tried if imported.statement == value.get("at")), imports.tried[0])
    late = value.get("timed_out")
    slow = "run it once: the next import finds the files in memory; if it never ends, find out what it waits for"
    return report.finding(
        Severity.WARNING if late else Severity.ERROR,
        target.name,
        f"{imported.where}: `{imported.statement}`{'' if late else ':'} {value['error']}",
        fix=slow if late else "the command shows how it ends; install a build that fits this machine",
        command=_command(target, imported),
        evidence=value,
    )


def _failed(want: Requirements, target: Target, imported: Import, failed: dict[str, Any]) -> Finding:
    missing, own = failed["missing"], imported.module.split(".")[0]
    through = next((name for name in reversed(failed["through"]) if name != own), None)
    if missing and missing.split(".")[0] == own:
        message = (
            f"{imported.where} imports {missing}, which is not installed for {target.environment or target.python}"
        )
    else:
        message = (
            f"{imported.where}: `{imported.statement}` fails{f' in {through}' if through else ''}: {failed['error']}"
        )
    unsure = failed["kind"] == "missing" and want.imports is not None and not want.imports.certain
    return report.finding(
        Severity.WARNING if unsure else Severity.ERROR,
        target.name,
        message + ("; the script changes its search path and may find it there" if unsure else ""),
        fix=_remedy(want, missing, through or own),
        command=_command(target, imported),
        evidence=failed,
    )


def _remedy(want: Requirements, missing: str | None, package: str) -> str:
    if missing is None:
        where = "name one in `environment.packages`" if want.managed else "install one there"
        return (
            f"the command shows the whole error; where {package} is of a version that does not fit, {where} that does"
        )
    name = package_of(missing)
    if want.managed:
        return f"add {name} to `environment.packages`"
    return f"install {name} there, or let ddpctl do it: `environment: {{mode: managed, packages: [..., {name}]}}`"


def _command(target: Target, imported: Import) -> str:
    """Return the command that runs the import by hand with the job's variables, to show the whole error."""
    return python_command(target.environment or target.python, dict(sorted(target.env.items())), imported.statement)


IMPORTS = Check(
    "job.imports",
    "what the script imports can be imported",
    _judge_imports,
    ask=(modules_question,),
    cause="A module that the script imports, itself or by a file of the code folder, is not installed on a node, "
    "or its import fails there, perhaps only through another package. Imports in a function, under a condition or "
    "in `try: ... except ImportError:` are optional. The modules are really imported, in one process, once for "
    "each environment of a node; files of the code folder are not. In managed mode `ddpctl up` does it once the "
    "environment is there. For a script that is on the nodes already (`code: null`), only its own imports are tried.",
    symptom="ModuleNotFoundError: No module named 'timm' on every rank, minutes after the launch; RuntimeError: "
    "operator torchvision::nms does not exist from `import lightning`",
    fix="Install the named package, or add it to `environment.packages`.",
    seen=ON_HOSTS,
)


CHECKS = (
    Check(
        "job.syntax",
        "the script is valid for the nodes' Python",
        _judge_syntax,
        ask=(lambda target, want: None if want.imports is None else PYTHON,),
        cause="The script, or a file of the code folder that it imports, has a syntax error or needs a newer Python "
        "than a node has, or it imports a file that is not sent. Other files of the folder do not matter. ddpctl reads "
        "it with its own Python, so syntax that only a newer Python accepts cannot be checked.",
        symptom="SyntaxError: invalid syntax; every rank ends with exit code 1 after the imports",
        fix="Correct the line that is named, or name a newer interpreter with `python:`.",
        seen=ON_HOSTS,
    ),
    IMPORTS,
)
