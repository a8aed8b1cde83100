"""YAML files of other tools: Ansible's inventories, and the output of ``accelerate config``."""

from __future__ import annotations

from ddpctl.files.foreign.ansible import ALL, UNGROUPED, AnsibleGroup, Vars, as_imported, host_names
from ddpctl.files.foreign.place import Word
from ddpctl.files.limits import ANSIBLE_STEPS
from ddpctl.files.tree import Node, parse
from ddpctl.spec.draft import Imported
from ddpctl.spec.limits import MAX_COUNT, MAX_HOSTS, MAX_NODES

ACCELERATE = "accelerate configuration"
_OF_ACCELERATE = frozenset(
    {"compute_environment", "distributed_type", "num_machines", "num_processes", "main_process_ip", "machine_rank"}
)
_OF_A_GROUP = ("hosts", "children", "vars")
_EXPECTED = "expected: an Ansible inventory (`all:` with `hosts:`), or what `accelerate config` writes"


def read_document(text: str, file: str) -> Imported:
    """Return the content of another tool's YAML file.

    Raises:
        InventoryError: the file belongs to no known tool, or to two.
    """
    root = parse(text, file, foreign=True)
    if isinstance(root.value, list):
        playbook = any(item.child("tasks") or item.child("roles") or item.child("hosts") for item in root.value)
        what = "is a playbook, not an inventory" if playbook else "is a list"
        raise _word(root).fault(what, "give the inventory that it is run with" if playbook else _EXPECTED)
    if not isinstance(root.value, dict):
        raise _word(root).fault("is not a file with hosts", _EXPECTED)
    hosts = root.child("hosts")
    if hosts is not None and isinstance(hosts.value, list):
        raise _word(hosts).fault("is an inventory of ddpctl already", f"use it: ddpctl preflight {file}")
    ours = sorted(_OF_ACCELERATE & root.value.keys())
    groups = [name for name, node in root.value.items() if _is_group(node)]
    if ours and (other := [name for name in groups if root.value[name].value is not None]):
        where = Word(other[0], file, *_at(root.key_at.get(other[0], (None, None))))
        raise where.fault(
            f"{other[0]!r} is a group of an Ansible inventory, {ours[0]!r} a key of accelerate", "give one of the two"
        )
    if ours:
        return _accelerate(root)
    if not groups:
        first = next(iter(root.value), None)
        where = Word("", file, *_at(root.key_at.get(first, (None, None)))) if first is not None else _word(root)
        raise where.fault(f"{first[:40]!r} is not understood" if first else "it is empty", _EXPECTED)
    return _ansible(root)


def _word(node: Node, text: str = "") -> Word:
    return Word(text or (node.value if isinstance(node.value, str) else ""), node.file, *_at((node.line, node.column)))


def _at(place: tuple[int | None, int | None]) -> tuple[int, int]:
    return place[0] or 1, place[1] or 1


# --- Ansible ---------------------------------------------------------------------------------------------------------


def _is_group(node: Node) -> bool:
    return node.value is None or (isinstance(node.value, dict) and any(key in node.value for key in _OF_A_GROUP))


def _ansible(root: Node) -> Imported:
    groups = {ALL: AnsibleGroup(), UNGROUPED: AnsibleGroup()}
    assert isinstance(root.value, dict)
    waiting = [
        (name, Word(name, root.file, *_at(root.key_at.get(name, (None, None)))), node)
        for name, node in root.value.items()
    ]
    steps = 0
    while waiting:
        name, where, node = waiting.pop(0)
        steps += 1
        if steps > ANSIBLE_STEPS:
            raise where.fault("its groups are nested too deeply", "write aliases out")
        group = groups.setdefault(name, AnsibleGroup())
        for key, part in _mapping(node, where, "a group").items():
            at = Word(key, root.file, *_at(node.key_at.get(key, (node.line, node.column))))
            if key not in _OF_A_GROUP:
                raise at.fault(f"{key[:40]!r} is no key of a group", "a group has hosts, children and vars")
            if key == "vars":
                group.variables |= _variables(part, at)
            elif key == "hosts":
                _take_hosts(group, part, at)
            else:
                for child, below in _mapping(part, at, "children").items():
                    word = Word(child, root.file, *_at(part.key_at.get(child, (part.line, part.column))))
                    group.children.setdefault(child, word)
                    waiting.append((child, word, below))
        if sum(len(each.hosts) for each in groups.values()) > 4 * MAX_HOSTS:
            raise where.fault(f"more than {MAX_HOSTS} hosts")
    return as_imported(groups, Word("", root.file, 1, 1))


def _take_hosts(group: AnsibleGroup, node: Node, where: Word) -> None:
    if isinstance(node.value, str):  # a single host, as Ansible reads it
        node = Node(node.file, node.line, node.column, {node.value: Node(node.file, node.line, node.column)})
    for pattern, below in _mapping(node, where, "hosts").items():
        place = Word(pattern, node.file, *_at(node.key_at.get(pattern, (node.line, node.column))))
        variables = _variables(below, place)
        for name, port in host_names(place):
            own = {"": place, **({"ansible_port": port} if port else {}), **variables}
            group.hosts.setdefault(name, {}).update(own)


def _variables(node: Node, where: Word) -> Vars:
    """Return the variables that hold text; a login needs no lists and mappings."""
    found = _mapping(node, where, "variables")
    return {key: _word(value) for key, value in found.items() if isinstance(value.value, str)}


def _mapping(node: Node, where: Word, what: str) -> dict[str, Node]:
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise (_word(node) if node.line else where).fault(
            f"{what} must be a mapping", "write names with a colon behind them, indented"
        )
    return node.value


# --- accelerate ------------------------------------------------------------------------------------------------------


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
