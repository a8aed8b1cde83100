"""Host ranges such as ``node[01-16]`` and ``node[1-3,7]``.

ClusterShell expands them; its groups, operators and wildcards are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from ddpctl.spec.limits import MAX_HOSTS

_ALLOWED = re.compile(r"[A-Za-z0-9._,/\[\]:-]+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")


class RangeFault(ValueError):
    """A range that cannot be expanded; the message says why."""


def is_range(text: str) -> bool:
    """Return whether ``text`` is a range."""
    return "[" in text or "]" in text


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a range, in order; a plain name stands for itself.

    A comma outside brackets is refused: several ranges are written as a list in the file.

    Raises:
        RangeFault: the range is invalid, has more than MAX_HOSTS names, or has a name twice.
    """
    if not is_range(text):
        return (text,)
    if not _ALLOWED.fullmatch(text):
        raise RangeFault(
            "a range holds letters, digits, '.', '_', '-' and brackets only; groups and wildcards do not work"
        )
    if "," in _BRACKETS.sub("", text) or "/" in _BRACKETS.sub("", text):
        raise RangeFault("',' and '/' belong inside the brackets; write several ranges as several list items")
    _check_size(text)
    try:
        nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise RangeFault(str(error).replace('"', "'")) from None
    return tuple(nodes)


def split(text: str) -> list[str]:
    """Split a list at its commas, except the commas inside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[\]]*\])", text) if part.strip()]


def _check_size(text: str) -> None:
    """Refuse a range with too many names or with a name twice, before its expansion takes memory and time."""
    total = 1
    for inside in _BRACKETS.findall(text):
        seen: set[int] = set()
        for part in inside.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None:
                raise RangeFault(f"[{inside}] is not a range; write [1-3], [01-16] or [1-3,7]")
            first, last = int(match[1]), int(match[2] or match[1])
            step = int(match[3] or 1)
            if last < first or step < 1:
                raise RangeFault(f"[{inside}] runs backwards; write the smaller number first")
            if (last - first) // step >= MAX_HOSTS:
                raise RangeFault(f"more than {MAX_HOSTS} hosts in one range")
            numbers = set(range(first, last + 1, step))
            if seen & numbers:
                raise RangeFault(f"[{inside}] names a host twice")
            seen |= numbers
        total *= len(seen)
        if total > MAX_HOSTS:
            raise RangeFault(f"more than {MAX_HOSTS} hosts in one range")


def fold_names(names: Iterable[str], least: int = 3) -> str:
    """Return the shortest text for these names: ``node[0-2,7]`` for node0 node1 node2 node7.

    Fewer than ``least`` names become a plain list.
    """
    listed = list(dict.fromkeys(names))
    if len(listed) < least:
        return ",".join(listed)
    try:
        return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(listed)
