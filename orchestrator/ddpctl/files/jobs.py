"""The script of a job, where it lies on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddpctl.errors import InventoryError
from ddpctl.spec.inventory import nearest
from ddpctl.spec.job import JobSpec
from ddpctl.spec.script import ScriptFacts, imported_modules, read_script

MAX_SCRIPT_BYTES = 8 << 20


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
    path, key = folder / job.script, f"jobs.{job.name}.script"
    if ".." in Path(job.script).parts or not path.is_relative_to(folder):
        hint = "only that folder is sent to the nodes: set code to one that holds the script"
        raise InventoryError(f"{job.script!r} lies outside of the code folder", file=job.code, path=key, hint=hint)
    if path.is_file():
        return path
    close = nearest(path.name, [item.name for item in path.parent.iterdir()]) if path.parent.is_dir() else None
    hint = f"did you mean {close}?" if close else "script is relative to the job's code folder"
    raise InventoryError(f"there is no script {job.script!r} in the code folder", file=job.code, path=key, hint=hint)


def inspect_script(job: JobSpec) -> ScriptFacts | None:
    """What the job's script says about how it wants to be launched; None when it does not lie here.

    That it joins the process group may also stand in a module beside it that it imports.

    Raises:
        InventoryError: the code folder or the script is not there or cannot be read.
    """
    path = script_file(job)
    if path is None:
        return None
    try:
        text = _read(path)
        beside = [path.with_name(f"{name}.py") for name in imported_modules(text)]
        helpers = [read_script(_read(module)) for module in beside if module.is_file()]
    except OSError as error:
        raise InventoryError(f"the script cannot be read: {error.strerror}", file=str(path)) from None
    facts = read_script(text)
    return replace(
        facts,
        initialises=facts.initialises or any(helper.initialises for helper in helpers),
        reads_local_rank=facts.reads_local_rank or any(helper.reads_local_rank for helper in helpers),
    )


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
