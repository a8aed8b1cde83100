"""Ansible's INI inventories: ``[group]``, ``[group:vars]``, ``[group:children]``."""

from __future__ import annotations

import re

from ddpctl.files.foreign.ansible import ALL, UNGROUPED, AnsibleGroup, Vars, as_imported, host_names
from ddpctl.files.foreign.place import Word, rows
from ddpctl.spec.draft import Imported
from ddpctl.spec.limits import MAX_HOSTS

_SECTION = re.compile(r"\[(?P<name>[^:\]\s]+)(?::(?P<kind>\w+))?\]\s*(?:#.*)?")
_TOKEN = re.compile(r"(?:[^\s'\"#\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+")
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)")


def read_ini(text: str, file: str) -> Imported:
    """Return the hosts of an INI inventory.

    Raises:
        InventoryError: a line does not belong to an INI inventory.
    """
    groups = {ALL: AnsibleGroup(), UNGROUPED: AnsibleGroup()}
    started: dict[str, Word] = {}  # groups that so far only [name:vars] or the children of a group have named
    declared = {ALL, UNGROUPED}
    name, kind = UNGROUPED, "hosts"
    total = 0
    for row in rows(text, file, "#;"):
        if row.text.startswith("[") and (section := _SECTION.fullmatch(row.text)):
            name, kind = section["name"], section["kind"] or "hosts"
            if kind not in ("hosts", "vars", "children"):
                raise row.part(section.start("kind")).fault(
                    f"section [{name}:{kind}] is not understood", f"write [{name}], [{name}:vars] or [{name}:children]"
                )
            groups.setdefault(name, AnsibleGroup())
            if kind == "vars":
                started.setdefault(name, row)
            else:
                declared.add(name)
        elif kind == "hosts":
            total += _hosts(groups[name], row)
            if total > MAX_HOSTS:
                raise row.fault(f"more than {MAX_HOSTS} hosts")
        elif kind == "vars":
            key, value = (part and part.strip() for part in row.split("="))
            if not key or not key.text or value is None:
                raise row.fault(f"a line of [{name}:vars] is NAME=value", "add the value")
            groups[name].variables[key.text] = _unquoted(value)
        else:
            child = row.part(0, len(row.text.partition("#")[0].rstrip()))
            if re.search(r"[\s=:\[\]]", child.text):
                raise child.fault(f"a line of [{name}:children] is the name of a group", "hosts go below [group]")
            groups.setdefault(child.text, AnsibleGroup())
            groups[name].children.setdefault(child.text, child)
            started.setdefault(child.text, child)
    for group, word in started.items():
        if group not in declared:
            raise word.fault(f"there is no group {group}", f"add [{group}] with its hosts, or take it out")
    return as_imported(groups, Word("", file, 1, 1))


def _hosts(group: AnsibleGroup, row: Word) -> int:
    """Put the hosts of a line into the group; return their number."""
    if row.text.startswith("[") and not re.match(r"\[[^\]]*:[^\]]*\]", row.text):
        raise row.fault("is not a section", "write [group], [group:vars] or [group:children]")
    pattern, *rest = _tokens(row)
    variables: Vars = {}
    for token in rest:
        key, value = token.split("=")
        if value is None or not key.text:
            raise token.fault(f"{token.text[:40]!r} is not NAME=value", "quote a value that holds blanks")
        variables[key.text] = _unquoted(value)
    count = 0
    for name, port in host_names(_unquoted(pattern)):
        own = {"": pattern, **({"ansible_port": port} if port else {}), **variables}
        group.hosts.setdefault(name, {}).update(own)
        count += 1
    return count


def _tokens(row: Word) -> list[Word]:
    """Return the words of a line as a shell splits it; ``#`` outside quotes ends the line.

    Raises:
        InventoryError: quotes do not close.
    """
    found, position = [], 0
    while position < len(row.text):
        if row.text[position].isspace():
            position += 1
            continue
        if row.text[position] == "#":
            break
        match = _TOKEN.match(row.text, position)
        if match is None or (match.end() < len(row.text) and row.text[match.end()] in "'\"\\"):
            raise row.part(match.end() if match else position).fault("the quotes do not close")
        found.append(row.part(position, match.end()))
        position = match.end()
    return found


def _unquoted(word: Word) -> Word:
    text = _QUOTED.sub(
        lambda match: re.sub(r"\\(.)", r"\1", match[2]) if match[2] else match[1] or match[3] or "", word.text
    )
    return Word(text, word.file, word.line, word.column)
