"""What torch's launcher itself reports of the ranks that have failed. Pure."""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

ROOT = re.compile(r"Root Cause \(first observed failure\):(?P<block>.*?)(?:^=+\s*$|\Z)", re.S | re.M)
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)", re.M)
_EXITCODE = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.M)
_OLD_EXIT = re.compile(r"CalledProcessError: Command .* returned non-zero exit status (\d+)")
_OLD_DIED = re.compile(r"CalledProcessError: Command .* died with <Signals\.(SIG[A-Z0-9]+): (\d+)>")


def failures(text: str) -> List[Tuple[int, int, Optional[int], bool]]:
    """(rank, local rank, exit code, root cause?) of every failure in torch's own report."""
    root = None
    for root in ROOT.finditer(text):  # noqa: B007  the last one counts: elastic jobs restart
        pass
    if root is None:
        return []
    before = text.rfind("\nFailures:", 0, root.start())
    others = text[before : root.start()] if before >= 0 else ""
    found = []
    for part, is_root in ((others, False), (root.group("block"), True)):
        for block in re.split(r"^\[\d+\]:", part, flags=re.M):
            rank, code = _RANK.search(block), _EXITCODE.search(block)
            if rank:
                found.append((int(rank.group(1)), int(rank.group(2)), int(code.group(1)) if code else None, is_root))
    return found


def old_exit_code(text: str) -> Optional[int]:
    """The exit code (negative for a signal) that a launcher before torch 1.9 reports; None where it does not."""
    old = _OLD_EXIT.search(text)
    if old:
        return int(old.group(1))
    died = _OLD_DIED.search(text)
    return -int(died.group(2)) if died else None
