"""The program of a job: a script on this machine, a program that ships with ddpctl, or ``-- SCRIPT ARGS``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import ddpctl
from ddpctl.errors import InventoryError, UsageError
from ddpctl.files.extends import jobs_of, merge_job
from ddpctl.files.limits import SCRIPT_BYTES
from ddpctl.files.tree import Node
from ddpctl.spec.inventory import nearest, suggestion
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import as_name
from ddpctl.spec.script import ScriptFacts, imported_modules, read_script
from ddpctl.spec.values import NAME_RULE, is_name, plural


def shipped_jobs() -> Path:
    """Return the folder of the shipped programs: beside the installed package, or in the source tree.

    Raises:
        FileNotFoundError: this ddpctl was installed without them.
    """
    package = Path(ddpctl.__file__).parent
    for folder in (package / "jobs", package.parents[1] / "worker" / "jobs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError("this ddpctl was installed without its training programs")


def script_file(job: JobSpec) -> Path | None:
    """Return the job's script on this machine; None for a module, or if the code is already on the nodes.

    Raises:
        InventoryError: the code folder or the script does not exist.
    """
    if job.code is None:
        return None
    folder = Path(job.code)
    if not os.path.isdir(folder):
        raise InventoryError("code folder not found", file=job.code, path=f"jobs.{job.name}.code")
    if job.script is None:
        return None
    path, key = folder / job.script, f"jobs.{job.name}.script"
    if ".." in Path(job.script).parts or not path.is_relative_to(folder):
        hint = "only that folder is sent to the nodes: set code to one that holds the script"
        raise InventoryError(f"{job.script!r} is outside of the code folder", file=job.code, path=key, hint=hint)
    if os.path.isfile(path):
        return path
    close = nearest(path.name, [item.name for item in path.parent.iterdir()]) if os.path.isdir(path.parent) else None
    hint = (
        f"did you mean {close}?"
        if close
        else "it is relative to that folder; after -- the script precedes its arguments"
    )
    raise InventoryError(f"script {job.script!r} not found in the code folder", file=job.code, path=key, hint=hint)


def inspect_script(job: JobSpec) -> ScriptFacts | None:
    """Return how the job's program expects to be launched; None if the program is not on this machine.

    Modules beside the program that it imports are read as well.

    Raises:
        InventoryError: the code folder or the script does not exist or cannot be read.
    """
    path = script_file(job) or _module_file(job)
    if path is None:
        return None
    try:
        text = _read(path)
        beside = [path.with_name(f"{name}.py") for name in sorted(imported_modules(text))]
        helpers = [_facts(module, _read(module)) for module in beside if os.path.isfile(module)]
    except OSError as error:
        raise InventoryError(f"the script cannot be read: {error.strerror}", file=str(path)) from None
    return _facts(path, text).with_modules(helpers)


def _module_file(job: JobSpec) -> Path | None:
    """Return the file of a job's module in its code folder, if it is there."""
    if job.code is None or job.module is None:
        return None
    place = Path(job.code, *job.module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__main__.py") if os.path.isfile(path)), None)


def _facts(path: Path, text: str) -> ScriptFacts:
    return read_script(text).named(path.name)


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(SCRIPT_BYTES).decode("utf-8", "replace")


ORIGIN = "--"  # stands for the file in an error


MODULE_OPTIONS = ("-m", "--module")


def put_program(root: Node, words: Sequence[str], *, job: str | None, here: Path, base: Path) -> str:
    """Put the job of ``words`` (``SCRIPT ARGS`` or ``-m MODULE ARGS``) into the document; return its name.

    - Words that begin with an option are further arguments of an existing job.
    - An existing ``job`` gets another program and arguments; the rest of it stays.
    - Otherwise the job is new, named ``job`` or after the script. Its code is the current folder ``here``, or the
      script's folder if the script is elsewhere. ``base`` is the inventory's folder.

    Raises:
        UsageError: there is no script, the name is not valid, or there is no job to add an option to.
    """
    if words and words[0].startswith("-") and words[0] not in MODULE_OPTIONS:
        return _add_arguments(root, words, job)
    program, module, args = _split(words)
    jobs = _jobs(root)
    old = jobs.get(job) if job is not None else None
    if old is not None and isinstance(old.value, dict):
        script = program if module else _from_code(program, merge_job(root, str(job), "code"), here, base)
        old.value.pop("args_extra", None)
        _put(old, {"script": None if module else script, "module": program if module else None, "args": args})
        return str(job)
    name = job if job is not None else as_name(program if module else Path(program).stem, "job")
    if not is_name(name):
        raise UsageError(f"{name!r} is not a valid name for a job", hint=NAME_RULE)
    node = _node({})
    if module:
        _put(node, {"module": program, "args": args, "code": str(here)})
    else:
        code, script = _place(program, here)
        _put(node, {"script": script, "args": args, "code": code})
    jobs[name] = node
    return name


def _add_arguments(root: Node, words: Sequence[str], job: str | None) -> str:
    """Append ``--OPTION ...`` to the arguments of the job, or of the only job if no job is named."""
    jobs = jobs_of(root)
    if job is None and len(jobs) != 1:
        what = f"{words[0]} after -- is an option of a job, but the file has {plural(len(jobs), 'job')}"
        hint = f"choose one with --job: {', '.join(jobs)}" if jobs else "name a script before it: -- SCRIPT ARGS"
        raise UsageError(what, hint=f"{hint}; a script whose name starts with '-': -- ./-name.py")
    name = job if job is not None else next(iter(jobs))
    if name not in jobs:
        raise UsageError(f"the file has no job {name!r} to add {words[0]} to", hint=suggestion(name, jobs))
    node = jobs[name]
    extra = node.child("args_extra")
    if isinstance(node.value, dict) and (extra is None or isinstance(extra.value, list)):
        before = extra.value if extra is not None and isinstance(extra.value, list) else []
        _put(node, {"args_extra": [*before, *(_node(word) for word in words)]})
    return name  # the reader of the file reports faults of the job itself


def _split(words: Sequence[str]) -> tuple[str, bool, list[Node]]:
    """Return the script or module, whether it is a module, and the arguments."""
    module = bool(words) and words[0] in MODULE_OPTIONS
    rest = list(words[1:] if module else words)
    if not rest or not rest[0]:
        raise UsageError("nothing follows --", hint="write -- SCRIPT ARGS")
    if rest[0].startswith("-"):
        raise UsageError(f"{rest[0]!r} after {words[0]} is not a module", hint="write -- -m MODULE ARGS")
    return rest[0], module, [_node(word) for word in rest[1:]]


def _place(program: str, here: Path) -> tuple[str, str]:
    """Return the code folder, and the script relative to it."""
    path = here / Path(program).expanduser()
    if path.is_relative_to(here) and ".." not in path.parts:
        return str(here), str(path.relative_to(here))
    return str(path.parent.resolve()), path.name


def _from_code(program: str, code: Node | None, here: Path, base: Path) -> str:
    """Return a script of the job's code folder relative to that folder; any other script as typed."""
    text = code.value if code is not None else "."
    if not isinstance(text, str):
        return program
    typed = (here / Path(program).expanduser()).resolve()
    folder = (base / Path(text).expanduser()).resolve()
    return str(typed.relative_to(folder)) if os.path.isfile(typed) and typed.is_relative_to(folder) else program


def _jobs(root: Node) -> dict[str, Node]:
    """Return the jobs of the document; add an empty mapping if there are no jobs."""
    assert isinstance(root.value, dict)
    node = root.value.get("jobs")
    if node is None or node.value is None:
        node = root.value["jobs"] = _node({})
    if not isinstance(node.value, dict):
        return {}  # the reader of the file reports the fault
    return node.value


def _put(node: Node, values: dict[str, str | list[Node] | None]) -> None:
    assert isinstance(node.value, dict)
    for key, value in values.items():
        node.value[key] = _node(value)
        node.key_at.setdefault(key, (None, None))


def _node(value: str | list[Node] | dict[str, Node] | None) -> Node:
    return Node(ORIGIN, None, None, value)
