"""An inventory file in memory: the position of every value, and the values of ``--set``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpctl.errors import InventoryError, UsageError
from ddpctl.files.extends import jobs_of
from ddpctl.files.tree import LookAlike, Node, Path, parse, plain_scalar, shown_path
from ddpctl.spec.inventory import Environment, HostEntry, HostKeys, InventoryFile, meant_key, suggestion
from ddpctl.spec.job import Checkpoint, Doctor, Elastic, JobEntry, Requires, Timeouts
from ddpctl.spec.values import Fault, Strict

_QUOTED = ("[", "{", '"', "'")
_SECTIONS: Mapping[str, type[Strict]] = {
    "checkpoint": Checkpoint,
    "doctor": Doctor,
    "elastic": Elastic,
    "requires": Requires,
    "timeouts": Timeouts,
}


def model_at(path: Sequence[str | int]) -> type[Strict] | None:
    """Return the model of the mapping at ``path``, or None if its keys are free (env, labels, jobs)."""
    match tuple(path):
        case ():
            return InventoryFile
        case ("defaults",):
            return HostKeys
        case ("hosts", int()):
            return HostEntry
        case ("environment",):
            return Environment
        case ("jobs", str()):
            return JobEntry
        case ("jobs", str(), section):
            return _SECTIONS.get(str(section))
    return None


def error_at(root: Node, fault: Fault) -> InventoryError:
    """Return a fault as an error with file, line and column: of the key, of the value, or of the mapping around it."""
    node, place = root, (root.line, root.column)
    for part in fault.path:
        child, key_place = node.child(part), node.key_at.get(str(part))
        if child is None:
            break  # something is missing: point at the mapping that lacks it
        node = child
        at_key = fault.at_key or node.value is None or isinstance(node.value, (dict, list))
        place = key_place if at_key and key_place is not None else (node.line, node.column)
    line, column = place
    shown = shown_path(fault.path) or None
    return InventoryError(fault.message, file=node.file, line=line, column=column, path=shown, hint=fault.hint)


def apply_set(root: Node, text: str, job: str | None) -> None:
    """Put ``KEY=VALUE`` into the document.

    KEY is a dotted path. It starts at the file's root if its first part is a key there, otherwise inside the chosen job
    (or the only job). A VALUE that starts with a bracket, brace or quote is read as YAML; any other VALUE is taken
    unchanged.

    Raises:
        UsageError: no '=', no job to put it into, or a path that leads nowhere.
        InventoryError: a bad VALUE.
    """
    key, equals, value = text.partition("=")
    if not equals or not key or not all(key.split(".")):
        raise UsageError(f"--set {key!r}: KEY=VALUE is needed", hint="for instance --set timeouts.stop=30")
    path = _set_path(root, key, job)
    _put(root, path, _value(f"--set {key}", value, path), key)


def _set_path(root: Node, key: str, job: str | None) -> Path:
    parts = tuple(key.split("."))
    if parts[0] not in InventoryFile.model_fields:
        if parts[0] not in JobEntry.model_fields:
            hint = meant_key(parts[0], JobEntry, InventoryFile)
            raise UsageError(f"--set {key}: unknown key {parts[0]!r}", hint=hint)
        return ("jobs", _chosen(root, key, job), *parts)
    jobs = jobs_of(root)
    if parts[0] == "jobs":  # a job's name may hold dots itself
        for count in range(len(parts), 1, -1):
            name = ".".join(parts[1:count])
            if name in jobs:
                return ("jobs", name, *parts[count:])
    return parts


def _chosen(root: Node, key: str, job: str | None) -> str:
    jobs = jobs_of(root)
    if job is None and len(jobs) != 1:
        raise UsageError(
            f"--set {key}: the file has {len(jobs)} jobs", hint=f"choose one with --job, or jobs.NAME.{key}"
        )
    name = job if job is not None else next(iter(jobs))
    if name not in jobs:
        raise UsageError(f"--set {key}: unknown job {name!r}", hint=suggestion(name, jobs))
    return name


def _value(origin: str, text: str, path: Path) -> Node:
    if text.lstrip().startswith(_QUOTED):
        return parse(text, origin, placed=False)
    try:
        return Node(origin, None, None, plain_scalar(text, path))
    except LookAlike as error:
        raise InventoryError(
            str(error), file=origin, hint=f"quote it: {origin.removeprefix('--set ')}='\"...\"'"
        ) from None


def _put(root: Node, path: Path, value: Node, key: str) -> None:
    node = root
    for depth, part in enumerate(path):
        if node.value is None:
            node.value = {}
        if not isinstance(node.value, dict) or not isinstance(part, str):
            where = shown_path(path[:depth])
            raise UsageError(f"--set {key}: {where or 'the file'} is not a mapping", hint="set the whole value instead")
        node.key_at.setdefault(part, (node.line, node.column))
        if depth == len(path) - 1:
            node.key_at[part] = (None, None)
            node.value[part] = value
            return
        node = node.value.setdefault(part, Node(value.file, None, None, {}))
