"""The script of a job, where it lies on this machine."""

from __future__ import annotations

from pathlib import Path

from ddpctl.errors import InventoryError
from ddpctl.spec.inventory import nearest
from ddpctl.spec.job import JobSpec
from ddpctl.spec.script import ScriptFacts, read_script

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
