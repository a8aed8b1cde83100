"""The facts that a line of a command's output names: the cause, the host, the rank."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.bench.peers.training import MESSAGE

KILLED = r"\bSIGKILL\b|signal 9\b|\bkilled\b|(?<!\d)-9\b"
LAUNCHER = r"launcher|torchrun\b|torch\.distributed\.(run|launch)|\bagent|elastic"
LOST = r"\blost\b|silent|no answer|not answer|unreachable|not reach|heartbeat|timed? ?out|no contact|connection closed"
# What the line must say to name the cause, by the fault's key. All words, in any order.
CAUSES = {
    "raise": (re.escape(MESSAGE),),
    "kill-rank": (KILLED,),
    "kill-launcher": (LAUNCHER, rf"{KILLED}|died|fail|\bended\b|is gone"),
    "power": (LOST,),
    "cable": (LOST,),
}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def best_line(text: str, fault: str, host: Iterable[str], rank: int) -> tuple[str, list[str]]:
    """Return the line that names the most facts, and these facts: a line without the cause names nothing."""
    found: tuple[str, list[str]] = ("", [])
    for line in ESCAPES.sub("", text).splitlines():
        named = names(line, fault, host, rank)
        if len(named) > len(found[1]):
            found = line.strip(), named
    return found


def names(line: str, fault: str, host: Iterable[str], rank: int) -> list[str]:
    """``host``: its name and address. The rank counts by its number in the whole job, not on its host."""
    causes = CAUSES.get(fault, ())
    if not causes or not all(re.search(cause, line, re.IGNORECASE) for cause in causes):
        return []
    found = ["cause"]
    if any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-]*\w)", line) for name in host):
        found.append("host")
    if re.search(rf"(?<![a-z_])rank\W{{0,3}}{rank}\b|(?<![\w.-])node\d+:{rank}\b", line, re.IGNORECASE):
        found.append("rank")
    return found
