"""Compares the collectives that NCCL timed out on the nodes of a run. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddpctl_worker.record.outcome import Outcome

# The words of run/cause.py. A collective of a subgroup has the group's name in them, and is not compared: each group
# counts by itself.
_LATE = re.compile(r"collective operation timeout in (?P<kind>\w+) #(?P<number>\d+) \(a peer failed or hung first\)$")
_ALL_EQUAL = (
    "collective operation timeout in %s #%s, as on all other nodes: no node was behind, so the data did not get "
    "through; check the network between the nodes"
)
_BEHIND = "collective operation timeout in %s #%s, while the other nodes had come to #%s"
_NO_MATCH = "collective operation timeout in %s #%s, and rank %s on %s in %s #%s: they do not match"
_WAITED_FOR = "all ranks but rank %d on %s timed out in %s #%s: rank %d came last, or not at all"


def compare_timeouts(failures: Sequence[Outcome], hosts: Sequence[str]) -> Optional[Dict[str, Any]]:
    """Return the cause of a run in which a collective timed out on every node.

    The node that was the furthest behind is the cause. Different collectives of the same number do not match. If all
    nodes timed out in the same collective, the cause is the rank without a time-out, if there is exactly one such rank.
    ``failures``: the reported failures, the likeliest first; ``hosts``: the nodes of the run, at least two. ``None``: a
    node has reported another failure, or none.
    """
    causes = [failure.cause or {} for failure in failures]
    found = [_LATE.search(str(cause.get("message"))) for cause in causes]
    late: List["re.Match[str]"] = [match for match in found if match is not None]
    if len(hosts) < 2 or len(late) < len(causes) or {cause["host"] for cause in causes} != set(hosts):
        return None
    numbers = [int(match["number"]) for match in late]
    first = numbers.index(min(numbers))
    kind, number = late[first]["kind"], late[first]["number"]
    waited_for = _find_waited_for(failures)
    if waited_for is not None and len({match.group() for match in late}) == 1:
        host, rank = waited_for
        text = _WAITED_FOR % (rank, host, kind, number, rank)
        return dict(causes[first], host=host, rank=rank, exit_code=None, signal=None, message=text, traceback=None)
    other = next((at for at, match in enumerate(late) if match["kind"] != kind), None)
    words = _ALL_EQUAL % (kind, number)
    if max(numbers) > min(numbers):
        words = _BEHIND % (kind, number, max(numbers))
    elif other is not None:
        rank, host = causes[other]["rank"], causes[other]["host"]
        words = _NO_MATCH % (kind, number, rank, host, late[other]["kind"], number)
    return dict(causes[first], message=_LATE.sub(words, str(causes[first]["message"])))


def _find_waited_for(failures: Sequence[Outcome]) -> Optional[Tuple[str, int]]:
    """Return host and number of the only rank of the run without a time-out."""
    if any(failure.in_time is None for failure in failures):
        return None
    in_time = {(str((failure.cause or {})["host"]), rank) for failure in failures for rank in failure.in_time or ()}
    return in_time.pop() if len(in_time) == 1 else None
