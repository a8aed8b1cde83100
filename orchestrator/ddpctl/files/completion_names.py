"""The names of hosts and jobs in an inventory, for completion: the real reader takes too long.

A name that this reader cannot see is left out; only the offers of completion depend on it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ddpctl.files.limits import COMPLETED_HOSTS

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.,_\[\]-]*")
_TOP = re.compile(r"(?m)^(\w+)[ \t]*:")
_KEY = re.compile(r"(?m)^( +)[\"']?([A-Za-z0-9][\w.-]*)[\"']?[ \t]*:")
_HOST = r"[\"']?([A-Za-z0-9][\w.-]*(?:\[[\d,-]+\][\w.-]*)?)[\"']?[ \t]*"
_ITEM = re.compile(rf"(?m)^[ \t]*-[ \t]+{_HOST}$")
_NAME = re.compile(rf"(?m)(?:^[ \t]*(?:-[ \t]+)?|[{{,][ \t]*)[\"']?name[\"']?[ \t]*:[ \t]*{_HOST}")
_FLOW = re.compile(rf"{_HOST}(?:,|$)")
_FLOW_KEY = re.compile(r"[\"']?([A-Za-z0-9][\w.-]*)[\"']?\s*:")
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_RANGE = re.compile(r"([^\[\]]*)\[([\d,-]+)\]([^\[\]]*)")


class Names(NamedTuple):
    """The names of hosts and jobs in an inventory."""

    hosts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


def names_in(text: str) -> Names:
    """Return the plainly visible names in the text of an inventory.

    Some shells evaluate the offers of completion, so names with characters that a shell interprets are left out.
    """
    found = _seen_in(text)
    return Names(*(tuple(name for name in dict.fromkeys(names) if _SAFE.fullmatch(name)) for names in found))


def _seen_in(text: str) -> Names:
    if text.lstrip().startswith("{"):
        return _of_json(text)
    text = re.sub(r"(?m)(^|[ \t])#.*$", "", text)
    sections = {match[1]: text[match.end() : _next_top(text, match.end())] for match in _TOP.finditer(text)}
    hosts = _expanded(_hosts(sections.get("hosts", "")))
    return Names(tuple(hosts), tuple(_jobs(sections.get("jobs", ""))))


def _next_top(text: str, start: int) -> int:
    following = _TOP.search(text, start)
    return following.start() if following else len(text)


def _hosts(section: str) -> list[str]:
    line, _, rest = section.partition("\n")
    if line.strip().startswith("["):
        flow = section.strip()[1:].rpartition("]")[0]
        return _NAME.findall(flow) if "{" in flow else _FLOW.findall(flow.replace("\n", " ").strip())
    found = (*_ITEM.finditer(rest), *_NAME.finditer(rest))
    return [match[1] for match in sorted(found, key=lambda match: match.start(1))]


def _jobs(section: str) -> list[str]:
    line = section.strip()
    if line.startswith("{"):
        return _FLOW_KEY.findall(_shallow(line[1:]))
    keys = list(_KEY.finditer(section))
    least = min((len(match[1]) for match in keys), default=0)
    return [match[2] for match in keys if len(match[1]) == least]


def _shallow(flow: str) -> str:
    """Return a mapping in flow style without the contents of its brackets and braces."""
    depth, kept = 0, []
    for letter in flow:
        depth += (letter in "{[") - (letter in "}]")
        kept.append(letter if depth == 0 else "")
    return "".join(kept)


def _expanded(entries: Iterable[str]) -> list[str]:
    """Return ``node[01-03]`` as three names, and any other entry unchanged; COMPLETED_HOSTS names at most."""
    names = (name for entry in entries for name in _members(entry))
    return list(itertools.islice(names, COMPLETED_HOSTS))


def _members(entry: str) -> Iterator[str]:
    match = _RANGE.fullmatch(entry)
    parts = [_PART.fullmatch(part) for part in match[2].split(",")] if match else []
    if match is None or not all(parts):
        yield entry
        return
    for part in filter(None, parts):
        for number in range(int(part[1]), int(part[2] or part[1]) + 1):
            yield f"{match[1]}{number:0{len(part[1])}}{match[3]}"


def _of_json(text: str) -> Names:
    try:
        data: Any = json.loads(text)
        entries = [host if isinstance(host, str) else host["name"] for host in data.get("hosts") or ()]
        return Names(tuple(_expanded(entries)), tuple(data.get("jobs") or ()))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Names()
