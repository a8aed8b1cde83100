"""Reads an inventory file: every fault becomes an InventoryError with its place and a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ddpctl.errors import InventoryError, UsageError
from ddpctl.files.document import apply_set, error_at, model_at
from ddpctl.files.extends import resolve_extends, written_at
from ddpctl.files.limits import YAML_BYTES
from ddpctl.files.program import put_program
from ddpctl.files.records import all_recorded_runs, recorded_runs
from ddpctl.files.resolve import resolve
from ddpctl.files.tree import Node, decode, parse
from ddpctl.spec.inventory import Inventory, InventoryFile, build, meant_key, nearest
from ddpctl.spec.job import JobSpec
from ddpctl.spec.names import ambiguous
from ddpctl.spec.ranges import expand
from ddpctl.spec.values import Fault

DEFAULT_FILE = "inventory.yaml"
VARIABLE = "DDPCTL_INVENTORY"

# Message and hint for a value of the wrong type, by pydantic's name of the error.
_MAPPING = ("must be a mapping", "write its keys below it, indented")
_TYPES = {
    "bool_type": ("must be true or false", None),
    "tuple_type": ("must be a list", "write [one, two], or one item per line after '- '"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type", "mapping_type"), _MAPPING),
}


def find_inventory(
    argument: Path | None = None, option: Path | None = None, *, job: str | None = None, recorded: bool = False
) -> Path:
    """Return the inventory file to use.

    In order: the argument, ``-i``, ``$DDPCTL_INVENTORY``, ``./inventory.yaml``, then a file from the records of this
    machine. With ``job`` this is the file of the last ``up`` of that name. With ``recorded`` it is the file of all runs
    that were started here, if they came from a single file.

    Raises:
        UsageError: two different files are named, there is no file, or the records name several files.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"two inventories given: {argument} and {option}", hint="give one")
    chosen = argument or option or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if chosen is not None:
        return chosen.expanduser()
    here = Path(DEFAULT_FILE)
    if os.path.exists(here):
        return here
    found = None
    if job is not None:
        found = _recorded_inventory(job)
    elif recorded:
        found = _only_recorded_inventory()
    if found is not None:
        return found
    raise UsageError(
        "no inventory given, and there is no ./inventory.yaml",
        hint=f"`ddpctl init` writes one; or name a file, or set ${VARIABLE}",
    )


def _recorded_inventory(job: str) -> Path | None:
    """Return the file of the runs that ``job`` may mean. The nodes decide later which run it is.

    Raises:
        UsageError: these runs came from different files, because a job of that name is in several folders.
    """
    runs = _with_inventory(recorded_runs(job))
    files = {run["inventory"] for run in runs}
    if len(files) > 1 and all(run["job"] == job for run in runs):
        places = ", ".join(sorted(str(home_of(file)) for file in files))
        raise UsageError(
            f"there is no ./inventory.yaml, and {job} was started from {len(files)} folders: {places}",
            hint="go to one of them, name its inventory with -i, or give a run id",
        )
    if len(files) > 1:
        raise ambiguous(job, [run["run"] for run in runs])
    return Path(files.pop()) if files else None


def _only_recorded_inventory() -> Path | None:
    """Return the file that all recorded runs came from.

    Raises:
        UsageError: they came from several files.
    """
    files = sorted({run["inventory"] for run in _with_inventory(all_recorded_runs())})
    if len(files) > 1:
        raise UsageError(
            f"there is no ./inventory.yaml, and runs were started with {len(files)} inventories: {', '.join(files)}",
            hint=f"name one with -i: ddpctl -i {files[0]} ...",
        )
    return Path(files[0]) if files else None


def _with_inventory(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that name an inventory file which still exists."""
    return [run for run in runs if isinstance(run.get("inventory"), str) and os.path.exists(run["inventory"])]


def load_inventory(path: Path | str, *, sets: Sequence[str] = (), job: str | None = None) -> Inventory:
    """Return the complete inventory in a file, with absolute paths of this machine.

    ``sets`` are ``KEY=VALUE`` texts of ``--set``, for the chosen ``job`` unless KEY starts at the file's root.

    Raises:
        InventoryError: a fault in the file: the first, with the number of further faults.
        UsageError: a fault in ``sets``.
    """
    file = str(path)
    return load_text(_read(Path(path), file), file, sets=sets, job=job)


def load_text(data: bytes, file: str, *, sets: Sequence[str] = (), job: str | None = None) -> Inventory:
    """Do ``load_inventory`` for the bytes of a file with the name ``file``."""
    root = _root(data, file)
    for text in sets:
        apply_set(root, text, job)
    return _finish(root, file)


def load_script(
    path: Path | str,
    words: Sequence[str],
    *,
    sets: Sequence[str] = (),
    job: str | None = None,
    folder: Path | None = None,
) -> tuple[Inventory, JobSpec]:
    """Return the inventory with the job of ``-- SCRIPT ARGS`` (or ``-- -m MODULE ARGS``), and that job.

    If ``job`` is a job of the file, the words replace its program and arguments; ``-- --OPTIONS`` are appended to its
    arguments. Otherwise the words are a new job on all hosts (see put_program). ``sets`` go into this job; ``folder``
    is the current folder.

    Raises:
        InventoryError, UsageError: as ``load_inventory``; or there is no script, or the job cannot have this name.
    """
    file = str(path)
    root = _root(_read(Path(path), file), file)
    here = (folder or Path.cwd()).absolute()
    name = put_program(root, words, job=job, here=here, base=Path(path).absolute().parent)
    for text in sets:
        apply_set(root, text, name)
    inventory = _finish(root, file)
    return inventory, inventory.job(name)


def _root(data: bytes, file: str) -> Node:
    root = parse(decode(data, file), file)
    if not isinstance(root.value, dict):
        raise InventoryError("is not a mapping with hosts", file=file, line=root.line, column=root.column)
    return root


def _finish(root: Node, file: str) -> Inventory:
    """Return the document as an inventory."""
    document = _validate(root)
    inventory, faults = build(document, os.path.abspath(file), home_of(file).name)  # noqa: PTH100 (resolve() would follow links)
    if inventory is not None:
        inventory, faults = resolve(inventory, _sources(document))
    if inventory is None:
        raise _report(root, faults)
    return inventory


def home_of(file: str) -> Path:
    """Return the real folder of an inventory file, which is the same however the user came there."""
    return Path(file).absolute().parent.resolve()


def _read(path: Path, file: str) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(YAML_BYTES + 1)
    except FileNotFoundError:
        raise InventoryError("file not found", file=file, hint=_other_file(path)) from None
    except OSError as error:
        raise InventoryError(f"cannot be read: {error.strerror}", file=file) from None


def _other_file(path: Path) -> str | None:
    folder = path.parent
    names = sorted(item.name for item in folder.glob("*.y*ml")) if os.path.isdir(folder) else []
    close = nearest(path.name, names)
    return f"did you mean {folder / close}?" if close else None


def _validate(root: Node) -> InventoryFile:
    complete, faults = resolve_extends(root)
    if faults:
        raise _report(root, faults)
    try:
        return InventoryFile.model_validate(complete.plain())
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
    raise _report(root, [_fault(root, detail) for detail in details])


def _report(root: Node, faults: Sequence[Fault]) -> InventoryError:
    """Return all faults in the order of the file, after misspelt keys, from which other faults may follow.

    An inherited fault counts once, as a fault of the job that it comes from.
    """
    placed = (replace(fault, path=written_at(root, fault.path)) for fault in faults)
    different = {(fault.path, fault.message): fault for fault in placed}.values()
    found = [(not _is_misspelt(fault), error_at(root, fault)) for fault in different]
    first, *rest = (
        error for _, error in sorted(found, key=lambda each: (each[0], each[1].line or 0, each[1].column or 0))
    )
    first.further = tuple(rest)
    return first


def _is_misspelt(fault: Fault) -> bool:
    return fault.at_key and (fault.hint or "").startswith("did you mean")


def _fault(root: Node, detail: ErrorDetails) -> Fault:
    """Return pydantic's error as a fault; the bad value is shown only where it cannot be a secret."""
    path = detail["loc"]
    context: Mapping[str, Any] = detail.get("ctx", {})
    at_key = bool(path) and path[-1] == "[key]"
    path = written_at(root, path[:-1] if at_key else path)
    match detail["type"]:
        case "extra_forbidden":
            model = model_at(path[:-1])
            hint = meant_key(str(path[-1]), model) if model else None
            return Fault(path, "is not a known key", hint, at_key=True)
        case "missing":
            return Fault(path, "is missing", "add it")
        case "fault":
            return _with_value(root, Fault(path, context["message"], context["hint"], at_key))
        case "literal_error" | "string_unicode":  # half a surrogate pair is not in the list either
            return _choice(root, path, _words_at(path))
        case kind if kind in _TYPES:
            return _with_value(root, Fault(path, *_TYPES[kind]))
    return Fault(path, detail["msg"][:1].lower() + detail["msg"][1:], at_key=at_key)


def _words_at(path: Sequence[str | int]) -> list[str]:
    """Return the words that the model allows at ``path``."""
    model = model_at(path[:-1])
    kind = model.model_fields[str(path[-1])].annotation if model else None
    return [word for part in (kind, *get_args(kind)) if get_origin(part) is Literal for word in get_args(part)]


def _with_value(root: Node, fault: Fault) -> Fault:
    """Report a key without any value as such."""
    if not fault.at_key and _value_at(root, fault.path) is None:
        return Fault(fault.path, "has no value", "give it one, or remove the key")
    return fault


def _choice(root: Node, path: tuple[str | int, ...], words: list[str]) -> Fault:
    value = _value_at(root, path)
    close = nearest(value, words) if isinstance(value, str) else None
    hint = f"did you mean {close}?" if close else None
    return _with_value(root, Fault(path, f"must be one of: {', '.join(words)}", hint))


def _value_at(root: Node, path: Sequence[str | int]) -> Any:
    """Return the value at ``path``: None for an empty value, and ``...`` if the path is not in the file itself."""
    node = root
    for part in path:
        child = node.child(part)
        if child is None:
            return ...
        node = child
    return node.value


def _sources(document: InventoryFile) -> Iterator[int]:
    """Yield, for every expanded host, the index of its item in ``hosts``."""
    for index, entry in enumerate(document.hosts):
        yield from (index for _ in expand(entry.name))
