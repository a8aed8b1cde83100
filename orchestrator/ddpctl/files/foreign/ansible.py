"""Ansible's inventories: groups of hosts with variables. Only variables for the login are taken over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.files.foreign.place import Word
from ddpctl.files.limits import ANSIBLE_STEPS
from ddpctl.spec.draft import Imported
from ddpctl.spec.host import HostEntry
from ddpctl.spec.limits import MAX_HOSTS

KIND = "Ansible inventory"
ALL, UNGROUPED = "all", "ungrouped"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]")
_PORT = re.compile(r"(?P<host>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<port>\d+)")  # a colon within a range does not match
_JUMP = re.compile(r"(?:ProxyJump[= ]|-J ?)[\"']?(?P<jump>[^\s\"']+)")
_AUTO = re.compile(r"auto(_legacy)?(_silent)?")
# Ansible's variable -> key of ddpctl. If a host has two variables of a key, the first in this table counts.
_KEYS = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "identity_file",
    "ansible_private_key_file": "identity_file",
    "ansible_python_interpreter": "python",
    "ansible_connection": "connection",
    "ansible_ssh_common_args": "jump",
    "ansible_ssh_extra_args": "jump",
}
_SECRETS = ("ansible_password", "ansible_ssh_pass", "ansible_become_password", "ansible_become_pass")

Vars = dict[str, Word]


@dataclass
class AnsibleGroup:
    """A group: hosts, child groups and variables, in the order of the file."""

    hosts: dict[str, Vars] = field(default_factory=dict)
    children: dict[str, Word] = field(default_factory=dict)
    variables: Vars = field(default_factory=dict)


def as_imported(groups: Mapping[str, AnsibleGroup], start: Word) -> Imported:
    """Return the hosts of all groups, each with its variables: its own count first, then those of the nearest groups.

    Raises:
        InventoryError: there is no host, a host is not possible, or groups contain each other.
    """
    members = _members(groups, start)
    where: dict[str, Word] = {}
    for group in groups.values():
        for name, variables in group.hosts.items():
            where.setdefault(name, variables.get("", start))
    if not where:
        raise start.fault("there is no host in it", "an Ansible inventory lists hosts below [group] or `hosts:`")
    held = {name: {host for group in below for host in groups[group].hosts} for name, below in members.items()}
    # A group that contains more groups is further away, and counts less.
    outward = sorted(members, key=lambda group: (group != ALL, -len(members[group]), group))
    hosts, notes = [], []
    for name, place in where.items():
        merged: Vars = {}
        for outer in outward:
            if name in held[outer]:
                merged |= groups[outer].variables
        for group in groups.values():
            merged |= group.hosts.get(name, {})
        hosts.append(_entry(name, place, merged))
        notes += [f"{key} is not taken over: ddpctl keeps no passwords" for key in _SECRETS if key in merged]
    shown = [group for group in members if group not in (ALL, UNGROUPED)]
    named = {group: tuple(host for host in where if host in held[group]) for group in shown}
    return Imported(KIND, tuple(hosts), groups=named, notes=tuple(dict.fromkeys(notes)))


def _members(groups: Mapping[str, AnsibleGroup], start: Word) -> dict[str, dict[str, None]]:
    """Return group -> itself and every group below it; "all" contains every group."""
    steps = 0
    found: dict[str, dict[str, None]] = {}
    for name in groups:
        below: dict[str, None] = {}
        waiting = [name]
        while waiting:
            steps += 1
            if steps > ANSIBLE_STEPS:
                raise start.fault("its groups are nested too deeply", "take out groups that hold each other")
            inner = waiting.pop()
            if inner in below:
                continue
            below[inner] = None
            waiting += groups[inner].children
        found[name] = dict.fromkeys(groups) if name == ALL else below
    for name, group in groups.items():
        for child, word in group.children.items():
            if name in found[child] and child != ALL:
                raise word.fault(f"the groups {name} and {child} contain each other", "take one out of the other")
    return found


def _entry(name: str, place: Word, variables: Mapping[str, Word]) -> HostEntry:
    place.host(name)
    keys: dict[str, Any] = {}
    last = place
    for variable, key in _KEYS.items():
        word = variables.get(variable)
        if word is None or key in keys:
            continue
        if (value := _value(variable, key, word)) is not None:
            keys[key], last = value, word
    return (last if keys else place).host(name, **keys)


def _value(variable: str, key: str, word: Word) -> Any:
    """Return the variable's value for ``key``, or None if it has no meaning for ddpctl."""
    if "{{" in word.text or "{%" in word.text:
        raise word.fault(f"{variable} is a template", "write its value, or leave it out")
    if not word.text:
        raise word.fault(f"{variable} has no value", "write one, or leave it out")
    if key == "port":
        return word.port()
    if key == "jump":
        match = _JUMP.search(word.text)
        return match["jump"] if match else None
    if key == "connection":
        if word.text not in ("ssh", "paramiko", "paramiko_ssh", "smart", "local", "ansible.builtin.ssh"):
            raise word.fault(f"ansible_connection {word.text[:40]!r} is not SSH", "ddpctl reaches hosts by SSH alone")
        return "local" if word.text == "local" else None
    if key == "python" and _AUTO.fullmatch(word.text):
        return None
    return word.text


def host_names(pattern: Word) -> Iterator[tuple[str, Word | None]]:
    """Yield the names that a host pattern stands for (``node[01:10].lan``, ``db-[a:f]``), and the port behind it.

    Raises:
        InventoryError: a range is not valid.
    """
    match = _PORT.fullmatch(pattern.text)
    port = pattern.part(match.start("port"), match.end("port")) if match else None
    host = pattern.part(0, match.end("host")) if match else pattern
    for count, name in enumerate(_spread(host)):
        if count >= MAX_HOSTS:
            raise pattern.fault(f"more than {MAX_HOSTS} hosts")
        yield name, port


def _spread(pattern: Word) -> Iterator[str]:
    match = _RANGE.search(pattern.text)
    if match is None or ":" in match[1]:
        if "[" in pattern.text or "]" in pattern.text:
            if re.fullmatch(r"\[[0-9A-Fa-f:.]+\]", pattern.text):
                yield pattern.text[1:-1]
                return
            raise pattern.fault(f"{pattern.text[:60]!r} is not a range of hosts", "Ansible's ranges are node[1:3]")
        yield pattern.text
        return
    before, after = pattern.text[: match.start()], pattern.part(match.end())
    ends = list(_spread(after)) if after.text else [""]
    for middle in _steps(match, pattern.part(match.start(), match.end())):
        for end in ends:
            yield f"{before}{middle}{end}"


def _steps(match: re.Match[str], word: Word) -> Iterator[str]:
    first, last, step = match[1] or "0", match[2], match[3] or "1"
    fault = word.fault(f"{match[0]} is not a range", "write [1:3], [01:10] or [a:f]")
    if not (step.isascii() and step.isdigit() and int(step[:6]) > 0):
        raise fault
    if first.isascii() and first.isdigit() and last.isascii() and last.isdigit() and len(last) < 8 and len(first) < 8:
        width = len(first) if first.startswith("0") and len(first) > 1 else 0
        if int(first) > int(last) or (width and len(first) != len(last)):
            raise fault
        numbers = range(int(first), int(last) + 1, int(step))
        if len(numbers) > MAX_HOSTS:
            raise word.fault(f"more than {MAX_HOSTS} hosts")
        yield from (f"{number:0{width}d}" for number in numbers)
    elif len(first) == len(last) == 1 and first in _LETTERS and last in _LETTERS and first <= last:
        yield from _LETTERS[_LETTERS.index(first) : _LETTERS.index(last) + 1 : int(step)]
    else:
        raise fault
