"""The output of ``accelerate config``."""

from __future__ import annotations

from ddpctl.files.foreign.place import Word
from ddpctl.files.tree import Node, parse
from ddpctl.spec.draft import Imported
from ddpctl.spec.limits import MAX_COUNT, MAX_NODES

ACCELERATE = "accelerate configuration"
_OF_ACCELERATE = frozenset(
    {"compute_environment", "distributed_type", "num_machines", "num_processes", "main_process_ip", "machine_rank"}
)
_EXPECTED = "expected: what `accelerate config` writes; name other hosts with --host, such as gpu[1-8]"


def read_document(text: str, file: str) -> Imported:
    """Return the content of accelerate's YAML file.

    Raises:
        InventoryError: the file is of another tool.
    """
    root = parse(text, file, foreign=True)
    if not isinstance(root.value, dict):
        raise _word(root).fault("is not a file with hosts", _EXPECTED)
    hosts = root.child("hosts")
    if hosts is not None and isinstance(hosts.value, list):
        raise _word(hosts).fault("is an inventory of ddpctl already", f"use it: ddpctl preflight {file}")
    if not _OF_ACCELERATE & root.value.keys():
        first = next(iter(root.value), None)
        where = Word("", file, *_at(root.key_at.get(first, (None, None)))) if first is not None else _word(root)
        raise where.fault(f"{first[:40]!r} is not understood" if first else "it is empty", _EXPECTED)
    return _accelerate(root)


def _word(node: Node, text: str = "") -> Word:
    return Word(text or (node.value if isinstance(node.value, str) else ""), node.file, *_at((node.line, node.column)))


def _at(place: tuple[int | None, int | None]) -> tuple[int, int]:
    return place[0] or 1, place[1] or 1


def _accelerate(root: Node) -> Imported:
    """Return the main host and the number of hosts: no file of accelerate lists all hosts."""
    environment = _text(root, "compute_environment")
    if environment is not None and environment.text != "LOCAL_MACHINE":
        raise environment.fault(f"compute_environment {environment.text[:40]!r} are no machines of yours", _EXPECTED)
    nodes = _number(root, "num_machines", MAX_NODES) or 1
    total = _number(root, "num_processes", MAX_NODES * MAX_COUNT)
    if total is not None and total % nodes:
        raise _must(root, "num_processes").fault(
            f"num_processes {total} cannot be divided among {nodes} machines", "write the number for all machines"
        )
    nproc = total // nodes if total else None
    if nproc is not None and nproc > MAX_COUNT:
        raise _must(root, "num_processes").fault(f"more than {MAX_COUNT} processes for a machine")
    main = _text(root, "main_process_ip")
    if main is not None:
        main.host()
    deepspeed = root.child("deepspeed_config")
    return Imported(
        ACCELERATE,
        master=main.text if main else None,
        port=_number(root, "main_process_port", 65535, least=0) or None,
        nodes=nodes,
        nproc=nproc,
        hostfile=_value(deepspeed, "deepspeed_hostfile"),
        include=_value(deepspeed, "deepspeed_inclusion_filter"),
        exclude=_value(deepspeed, "deepspeed_exclusion_filter"),
    )


def _value(node: Node | None, key: str) -> str | None:
    found = _text(node, key) if node is not None else None
    return found.text if found else None


def _text(node: Node, key: str) -> Word | None:
    """Return the text of a key, or None if it is missing, null or empty.

    Raises:
        InventoryError: the value is a list or a mapping.
    """
    child = node.child(key)
    if child is None or child.value in (None, "", "null"):
        return None
    if not isinstance(child.value, str):
        raise _word(child).fault(f"{key} must be one value", "write it as `accelerate config` does")
    return _word(child)


def _must(node: Node, key: str) -> Word:
    found = _text(node, key)
    assert found is not None
    return found


def _number(node: Node, key: str, most: int, least: int = 1) -> int | None:
    found = _text(node, key)
    return found.number(key, most, least) if found else None
