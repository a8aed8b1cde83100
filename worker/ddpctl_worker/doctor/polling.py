"""Finds ranks that sleep again and again on the same source line. Pure.

A single look (look.py) sees the end of a sleep only if the sleep is shorter than the look. So the sleeps are compared
from look to look.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

Stack = Tuple[Tuple[Any, ...], ...]


class _Sleep(NamedTuple):
    """A sleep that was seen: its stack, and its latest end by the clock of its host."""

    stack: Stack
    until: float


class Polling:
    """Remembers the sleeps of all processes from look to look."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[str, int], _Sleep] = {}

    def mark_polls(self, looks: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """Return the looks, with ``polls`` for a process that sleeps on the line of a sleep that is over."""
        before, self._known = self._known, {}
        return [self._marked(look, before) for look in looks]

    def _marked(self, look: Dict[str, Any], before: Dict[Tuple[str, int], _Sleep]) -> Dict[str, Any]:
        host, now = str(look.get("host")), float(look.get("now") or 0.0)
        made = dict(look, polls=self._polls(look, host, now, before))
        if look.get("children"):
            made["children"] = [dict(child, polls=self._polls(child, host, now, before)) for child in look["children"]]
        return made

    def _polls(self, process: Dict[str, Any], host: str, now: float, before: Dict[Tuple[str, int], _Sleep]) -> bool:
        if process.get("sleep_s") is None or process.get("pid") is None or not process.get("stack"):
            return bool(process.get("polls"))
        key, stack = (host, int(process["pid"])), tuple(tuple(frame) for frame in process["stack"])
        known: Optional[_Sleep] = before.get(key)
        same = known is not None and known.stack == stack
        polls = bool(process.get("polls")) or (known is not None and same and now > known.until)
        # The rest of a sleep may be unknown, only its whole length: so the end computed first counts.
        until = known.until if known is not None and same and not polls else now + float(process["sleep_s"])
        self._known[key] = _Sleep(stack, until)
        return polls
