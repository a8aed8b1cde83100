"""The metrics verb: what the ranks of a run wrote to their DDPCTL_METRICS, one JSON object of numbers a line.

The files are the job's own. What is in them is taken for what it may be: a line that is no object, a value that is no
finite number, and a file that is no plain file are passed over.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import stat
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.record import named_by
from ddpctl_worker.wire.channel import Channel

LAST_BYTES = 16 << 10  # of a file: enough for the last value of everything
CALL_BYTES = 1 << 20  # of all files in one call
LEAST_BYTES = 8 << 10  # of one of them
MOST_NAMES = 64  # in a line
MOST_LETTERS = 64  # in a name
_RANK = re.compile(r"rank-(\d{1,9})\.jsonl\Z")

Values = Dict[str, float]


def metrics(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"ranks": {rank: {"offset", "lines"}}} with the lines from each rank's ``offsets`` on.

    What one call leaves out for its size the next one gives: it is asked again until no line comes.
    """
    paths = named_by(request)[0].newest()
    offsets = request.get("offsets") or {}
    ranks = {}
    files = files_of(paths)
    share = max(LEAST_BYTES, CALL_BYTES // max(1, len(files)))
    for rank, path in files.items():
        offset, lines = read_from(path, int(offsets.get(rank, 0)), share)
        ranks[rank] = {"offset": offset, "lines": lines}
    return {"ranks": ranks}


def last_values(paths: RunPaths) -> Dict[str, Values]:
    """The last value of every name, by rank ("" where the ranks of this node share a file)."""
    found = {}
    for rank, path in files_of(paths).items():
        values: Values = {}
        for line in read_from(path, -LAST_BYTES, LAST_BYTES)[1]:
            values.update(line)
        if values:
            found[rank] = dict(list(values.items())[:MOST_NAMES])
    return found


def read_from(path: str, offset: int, most: int) -> Tuple[int, List[Values]]:
    """The whole lines from ``offset`` on (below 0: from the end) and where the next one begins; ``most`` bytes of them.

    A line longer than ``most`` is passed over.
    """
    file = opened(path)
    if file is None:
        return max(0, offset), []
    with file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size + offset) if offset < 0 else offset if offset <= size else 0  # of another attempt
        file.seek(start)
        data = file.read(most)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == most:
        end = len(data)
    lines = data[:end].split(b"\n")
    return start + end, [values for values in map(_values, lines) if values]


def opened(path: str) -> Optional[BinaryIO]:
    """None where it is no plain file."""
    try:
        # Looked at first: a FIFO or a device could hold up the reader.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError:
        return None


def _values(line: bytes) -> Values:
    """The finite numbers of one line."""
    return {name: value for name, value in numbers_of(line).items() if is_finite(value)}


def numbers_of(line: bytes) -> Values:
    """All numbers of one line, by their names; also those that are not finite."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    some = list(found.items())[:MOST_NAMES]
    return {name: value for name, value in some if len(name) <= MOST_LETTERS and _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: float) -> bool:
    # A whole number may be too large for any float.
    return abs(value) < 1e300 and math.isfinite(value)


def files_of(paths: RunPaths) -> Dict[str, str]:
    """The files by rank; where the launcher could not give each rank its own, the node's one file is under ""."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(paths.metrics), "*.jsonl"))):
        match = _RANK.match(os.path.basename(path))
        if match or os.path.basename(path) == "node.jsonl":
            found[match.group(1) if match else ""] = path
    return found
