"""The metrics verb: DDPCTL_METRICS of the ranks of a run, one JSON object of numbers per line.

The job writes these files, so their content is not trusted. The reader passes over:

- a line that is not an object,
- a value that is not a finite number,
- a file that is not a plain file.
"""

from __future__ import annotations

import glob
import itertools
import json
import math
import os
import re
import stat
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from ddpctl_worker.record.limits import (
    LAST_METRICS_BYTES,
    METRIC_LETTERS,
    METRIC_NAMES,
    METRICS_CALL_BYTES,
    METRICS_FILE_BYTES,
    PROGRESS_LINES,
)
from ddpctl_worker.record.lines import decode
from ddpctl_worker.record.logs import backwards, segments
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.record import named_by
from ddpctl_worker.rules.progress import NAMES, find_progress
from ddpctl_worker.wire.channel import Channel

_RANK = re.compile(r"rank-([0-9]{1,9})\.jsonl\Z")

Values = Dict[str, float]


def metrics(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Return {"ranks": {rank: {"offset", "lines"}}}: the lines after each rank's ``offsets``.

    An answer has a limited size. The caller asks again until no line comes.
    """
    paths = named_by(request)[0].newest()
    offsets = request.get("offsets") or {}
    ranks = {}
    files = files_of(paths)
    share = max(METRICS_FILE_BYTES, METRICS_CALL_BYTES // max(1, len(files)))
    for rank, path in files.items():
        offset, lines = read_new_values(path, int(offsets.get(rank, 0)), share)
        ranks[rank] = {"offset": offset, "lines": lines}
    return {"ranks": ranks}


def last_values(paths: RunPaths) -> Dict[str, Values]:
    """Return the last value of every name, by rank ("" if the ranks of this node share a file)."""
    found = {}
    for rank, path in files_of(paths).items():
        values: Values = {}
        for line in read_new_values(path, -LAST_METRICS_BYTES, LAST_METRICS_BYTES)[1]:
            values.update(line)
        if values:
            found[rank] = dict(list(values.items())[:METRIC_NAMES])
    return found


def values_in_output(paths: RunPaths) -> Values:
    """Return the last step, epoch and loss that a rank has printed, for a script that writes no metrics."""
    found: Values = {}
    lines = (line for segment in reversed(segments(paths.logs)) for _, line in backwards(segment))
    for line in itertools.islice(lines, PROGRESS_LINES):
        record = decode(line)
        if record is not None and record.get("r") is not None:
            found = {**find_progress(str(record["x"])), **found}
        if len(found) == len(NAMES):
            break
    return found


def read_new_values(path: str, offset: int, most: int) -> Tuple[int, List[Values]]:
    """Return the offset after the last whole line, and the lines from ``offset`` on (below 0: from the end).

    Reads ``most`` bytes. A longer line is passed over.
    """
    file = open_metrics(path)
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


def open_metrics(path: str) -> Optional[BinaryIO]:
    """Open a file for reading; ``None`` if it is not a plain file."""
    try:
        # Before the open: a FIFO or a device could block the reader.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError:
        return None


def _values(line: bytes) -> Values:
    return {name: value for name, value in numbers_of(line).items() if is_finite(value)}


def numbers_of(line: bytes) -> Values:
    """Return the numbers of one line by name, infinite numbers included."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    some = list(found.items())[:METRIC_NAMES]
    return {name: value for name, value in some if len(name) <= METRIC_LETTERS and _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: float) -> bool:
    # A whole number may be too large for any float.
    return abs(value) < 1e300 and math.isfinite(value)


def files_of(paths: RunPaths) -> Dict[str, str]:
    """Return the files by rank. If the launcher could not give each rank a file, the node's only file is under ""."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(paths.metrics), "*.jsonl"))):
        match = _RANK.match(os.path.basename(path))
        if match or os.path.basename(path) == "node.jsonl":
            found[match.group(1) if match else ""] = path
    return found
