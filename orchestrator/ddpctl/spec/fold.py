"""What many hosts have in common, said once: their names, values, messages and next steps, and the host at fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ddpctl.spec.ranges import fold

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_COMMAND = re.compile(r"`[^`]*`")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def by(key: Callable[[T], K], items: Iterable[T]) -> dict[K, list[T]]:
    """key -> its items, in the order in which they come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_value(values: Mapping[str, T]) -> list[tuple[T, list[str]]]:
    """(value, its hosts), most hosts first; among equals the one whose first host comes first."""
    found: list[tuple[T, list[str]]] = []
    for host, value in values.items():  # a value need not be hashable
        hosts = next((hosts for known, hosts in found if known == value), None)
        if hosts is None:
            found.append((value, [host]))
        else:
            hosts.append(host)
    return sorted(found, key=lambda group: -len(group[1]))


def by_culprit(pairs: Iterable[tuple[K, K]]) -> dict[K, list[tuple[K, K]]]:
    """The pairs by an end that they have in common, the one with most of them first: a bad port damages every link of
    its host. Among equals it is a first end."""
    left = list(pairs)
    found: dict[K, list[tuple[K, K]]] = {}
    while left:
        counts = Counter(end for pair in left for end in pair)
        most = max(counts.values())
        ends = (*(first for first, _ in left), *(second for _, second in left))
        culprit = next(end for end in ends if counts[end] == most)
        found[culprit] = [pair for pair in left if culprit in pair]
        left = [pair for pair in left if culprit not in pair]
    return found


# --- words -----------------------------------------------------------------------------------------------------------


def named(hosts: Sequence[str]) -> str:
    """``node3``, ``node[1-3] (3 hosts)``; empty for none."""
    return "".join(hosts) if len(hosts) < 2 else f"{fold(hosts)} ({len(hosts)} hosts)"


def one_line(text: str) -> str:
    """Without line ends."""
    return " ".join(text.split())


def nameless(text: str, name: str | None, mark: str) -> str:
    """``text`` with ``mark`` for a host's name, where it stands as a word of its own."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", mark, text) if name else text


def numberless(text: str) -> str:
    """``text`` with # for every number."""
    return _NUMBER.sub("#", text)


# --- next steps ------------------------------------------------------------------------------------------------------


def blank(text: str) -> str:
    """``text`` without what is in its commands: by this two steps are alike."""
    return _COMMAND.sub("``", text)


def outside(text: str, change: Callable[[str], str]) -> str:
    """``text`` changed, and its commands as they are."""
    parts = re.split(f"({_COMMAND.pattern})", text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def together(texts: Sequence[str]) -> str | None:
    """One step for all, with every command that one of them has; None where they differ in more than commands."""
    if len({blank(text) for text in texts}) != 1:
        return None
    columns = zip(*(_COMMAND.findall(text) for text in texts), strict=True)
    commands = iter([", ".join(dict.fromkeys(column)) for column in columns])
    return _COMMAND.sub(lambda _found: next(commands), texts[0])
