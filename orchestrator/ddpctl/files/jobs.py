"""Jobs from the command line, and the script of a job where it lies here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddpctl.errors import InventoryError, UsageError
from ddpctl.spec.inventory import Inventory, nearest
from ddpctl.spec.job import JobSpec
from ddpctl.spec.script import ScriptFacts, read_script
from ddpctl.spec.values import is_name

MAX_SCRIPT_BYTES = 8 << 20


def script_job(
    inventory: Inventory, words: Sequence[str], *, job: str | None = None, folder: Path | None = None
) -> tuple[Inventory, JobSpec]:
    """The job that ``-- SCRIPT ARGS`` (or ``-- -m MODULE ARGS``) stands for, and the inventory with it in place.

    With ``job`` the words replace that job's program and arguments. Without, it is a job of its own, named after the
    script, on all hosts, with the current folder (or the script's, where it lies elsewhere) as its code.

    Raises:
        UsageError: no script, no such job, or a program that cannot be named so.
    """
    here = (folder or Path.cwd()).absolute()
    program, module, args = _program(words)
    if job is not None:
        spec = _replaced(inventory.job(job), program, module, args, here)
    else:
        spec = _new(program, module, args, here)
    return inventory.model_copy(update={"jobs": {**inventory.jobs, spec.name: spec}}), spec


def _program(words: Sequence[str]) -> tuple[str, bool, tuple[str, ...]]:
    """Script or module, whether it is a module, and the arguments."""
    module = bool(words) and words[0] in ("-m", "--module")
    rest = tuple(words[1:] if module else words)
    if not rest or not rest[0]:
        raise UsageError("nothing stands after --", hint="write -- SCRIPT ARGS")
    if rest[0].startswith("-"):
        raise UsageError(f"{rest[0]!r} after -- is not a script", hint="write -- SCRIPT ARGS, or -- ./-name.py")
    if any("\0" in word for word in rest):
        raise UsageError("an argument holds a NUL character, which no process can be given")
    return rest[0], module, rest[1:]


def _new(program: str, module: bool, args: tuple[str, ...], here: Path) -> JobSpec:
    name = _job_name(program if module else Path(program).stem)
    if module:
        return _job({"name": name, "module": program, "args": args, "code": str(here)})
    path = here / Path(program).expanduser()
    if not path.is_relative_to(here) or ".." in path.parts:
        here = path.parent.resolve()
        path = here / path.name
    return _job({"name": name, "script": str(path.relative_to(here)), "args": args, "code": str(here)})


def _replaced(old: JobSpec, program: str, module: bool, args: tuple[str, ...], here: Path) -> JobSpec:
    """The old job with another program; a script that lies here, inside the code folder, is named from there."""
    script = program
    if not module and old.code is not None:
        typed = (here / Path(program).expanduser()).resolve()
        code = Path(old.code).resolve()
        if typed.is_file() and typed.is_relative_to(code):
            script = str(typed.relative_to(code))
    update = {"module": program, "script": None} if module else {"script": script, "module": None}
    return _job({**dict(old), **update, "args": args})


def _job(keys: Mapping[str, Any]) -> JobSpec:
    try:
        return JobSpec.model_validate(dict(keys))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(f"what stands after --: {first['loc'][0] if first['loc'] else 'it'} {first['msg']}") from None


def _job_name(text: str) -> str:
    """``text`` with everything that a name cannot hold replaced."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:63]
    return name if is_name(name) else "job"


def script_file(job: JobSpec) -> Path | None:
    """Where the job's script lies on this machine; None for a module, or when the code is already on the nodes.

    Raises:
        InventoryError: the code folder or the script is not there.
    """
    if job.code is None:
        return None
    folder = Path(job.code)
    if not folder.is_dir():
        raise InventoryError("the code folder is not there", file=job.code, path=f"jobs.{job.name}.code")
    if job.script is None:
        return None
    path = folder / job.script
    if path.is_file():
        return path
    close = nearest(path.name, [item.name for item in path.parent.iterdir()]) if path.parent.is_dir() else None
    hint = f"did you mean {close}?" if close else "script is relative to the job's code folder"
    raise InventoryError(f"there is no script {job.script!r} in the code folder", file=job.code, hint=hint)


def inspect_script(job: JobSpec) -> ScriptFacts | None:
    """What the job's script says about how it wants to be launched; None when it does not lie here.

    Raises:
        InventoryError: the code folder or the script is not there or cannot be read.
    """
    path = script_file(job)
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            return read_script(stream.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace"))
    except OSError as error:
        raise InventoryError(f"the script cannot be read: {error.strerror}", file=str(path)) from None
