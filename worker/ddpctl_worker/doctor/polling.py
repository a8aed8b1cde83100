"""Which ranks sleep again and again on one line, from one look to the next. Pure.

Within one look (look.py) only sleeps shorter than the look itself are seen to end.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

Stack = Tuple[Tuple[Any, ...], ...]


class _Sleep(NamedTuple):
    """A sleep that was seen: where, and by when it was over at the latest, on the clock of its host."""

    stack: Stack
    until: float


class Polling:
    """Remembers the sleeps of all processes from look to look."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[str, int], _Sleep] = {}

    def mark(self, looks: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """The looks, with ``polls`` where a process sleeps on the line of a sleep that must be over by now."""
        before, self._known = self._known, {}
        return [self._marked(look, before) for look in looks]

    def _marked(self, look: Dict[str, Any], before: Dict[Tuple[str, int], _Sleep]) -> Dict[str, Any]:
        host, now = str(look.get("host")), float(look.get("now") or 0.0)
        made = dict(look, polls=self._polls(look, host, now, before))
        if look.get("children"):
            made["children"] = [dict(child, polls=self._polls(child, host, now, before)) for child in look["children"]]
        return made

    def _polls(self, one: Dict[str, Any], host: str, now: float, before: Dict[Tuple[str, int], _Sleep]) -> bool:
        if one.get("sleep_s") is None or one.get("pid") is None or not one.get("stack"):
            return bool(one.get("polls"))
        key, stack = (host, int(one["pid"])), tuple(tuple(frame) for frame in one["stack"])
        known: Optional[_Sleep] = before.get(key)
        same = known is not None and known.stack == stack
        polls = bool(one.get("polls")) or (known is not None and same and now > known.until)
        # Only the length of a sleep may be known while it lasts, so the first end that was seen counts.
        until = known.until if known is not None and same and not polls else now + float(one["sleep_s"])
        self._known[key] = _Sleep(stack, until)
        return polls
