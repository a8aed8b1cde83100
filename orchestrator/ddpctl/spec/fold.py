"""Folds facts about many hosts into few: names, equal values, messages and next steps, and the host at fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ddpctl.spec.ranges import fold_names

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_COMMAND = re.compile(r"`[^`]*`")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def group_by(key: Callable[[T], K], items: Iterable[T]) -> dict[K, list[T]]:
    """Group items by key; keys and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group_hosts_by_value(values: Mapping[str, T]) -> list[tuple[T, list[str]]]:
    """Group hosts by value: (value, its hosts), the group with most hosts first, equal groups by their first host."""
    groups: list[tuple[T, list[str]]] = []
    for host, value in values.items():  # a value need not be hashable
        hosts = next((hosts for seen, hosts in groups if seen == value), None)
        if hosts is None:
            groups.append((value, [host]))
        else:
            hosts.append(host)
    return sorted(groups, key=lambda group: -len(group[1]))


def group_pairs_by_culprit(pairs: Iterable[tuple[K, K]]) -> dict[K, list[tuple[K, K]]]:
    """Group pairs of hosts by a shared host, the host with most pairs first: a bad port damages all links of its host.

    Between hosts with equally many pairs, the host that is first in a pair wins.
    """
    left = list(pairs)
    groups: dict[K, list[tuple[K, K]]] = {}
    while left:
        counts = Counter(end for pair in left for end in pair)
        most = max(counts.values())
        ends = (*(first for first, _ in left), *(second for _, second in left))
        culprit = next(end for end in ends if counts[end] == most)
        groups[culprit] = [pair for pair in left if culprit in pair]
        left = [pair for pair in left if culprit not in pair]
    return groups


# --- names in texts ---------------------------------------------------------------------------------------------------


def name_hosts(hosts: Sequence[str]) -> str:
    """Return the names as text: ``node3``, ``node[1-3] (3 hosts)``; an empty text without hosts."""
    return "".join(hosts) if len(hosts) < 2 else f"{fold_names(hosts)} ({len(hosts)} hosts)"


def one_line(text: str) -> str:
    """Return ``text`` without line ends."""
    return " ".join(text.split())


def nameless(text: str, name: str | None, mark: str) -> str:
    """Return ``text`` with ``mark`` for a host's name, wherever the name is a word of its own."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", mark, text) if name else text


def numberless(text: str) -> str:
    """Return ``text`` with # for every number."""
    return _NUMBER.sub("#", text)


# --- next steps ------------------------------------------------------------------------------------------------------


def blank_numbers(text: str) -> str:
    """Return a next step with empty commands: steps with equal results can be joined."""
    return _COMMAND.sub("``", text)


def hosts_outside(text: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to ``text`` except to its commands."""
    parts = re.split(f"({_COMMAND.pattern})", text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def join_steps(texts: Sequence[str]) -> str | None:
    """Join next steps to one step that has all their commands.

    ``None``: the steps differ in more than their commands.
    """
    if len({blank_numbers(text) for text in texts}) != 1:
        return None
    columns = zip(*(_COMMAND.findall(text) for text in texts), strict=True)
    commands = iter([", ".join(dict.fromkeys(column)) for column in columns])
    return _COMMAND.sub(lambda _found: next(commands), texts[0])
