"""Compares the collectives that NCCL timed out on the nodes of a run. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence

# The words of run/cause.py. A collective of a subgroup has the group's name in them, and is not compared: each group
# counts by itself.
_LATE = re.compile(r"collective operation timeout in (?P<kind>\w+) #(?P<number>\d+) \(a peer failed or hung first\)$")
_ALL_EQUAL = (
    "collective operation timeout in %s #%s, as on all other nodes: no node was behind, so the data did not get "
    "through; check the network between the nodes"
)
_BEHIND = "collective operation timeout in %s #%s, while the other nodes had come to #%s"


def compare_timeouts(causes: Sequence[Dict[str, Any]], hosts: Sequence[str]) -> Optional[Dict[str, Any]]:
    """Return the cause of a run in which a collective timed out on every node.

    The node that was the furthest behind is the cause. ``causes``: the reported causes, the likeliest first; ``hosts``:
    the nodes of the run, at least two. ``None``: a node has reported another failure, or none.
    """
    found = [_LATE.search(str(cause["message"])) for cause in causes]
    late: List["re.Match[str]"] = [match for match in found if match is not None]
    if len(hosts) < 2 or len(late) < len(causes) or {cause["host"] for cause in causes} != set(hosts):
        return None
    numbers = [int(match["number"]) for match in late]
    first = numbers.index(min(numbers))
    kind, number = late[first]["kind"], late[first]["number"]
    words = _BEHIND % (kind, number, max(numbers)) if max(numbers) > min(numbers) else _ALL_EQUAL % (kind, number)
    return dict(causes[first], message=_LATE.sub(words, str(causes[first]["message"])))
