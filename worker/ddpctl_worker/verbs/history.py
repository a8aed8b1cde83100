"""The history verb: the parts of a report beyond the status, from this node's files.

The metrics of a long training have millions of lines. They are read here, and a few hundred points are sent for each
name, attempt and rank.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ddpctl_worker.machine import fs
from ddpctl_worker.record import record
from ddpctl_worker.record.limits import METRIC_NAMES
from ddpctl_worker.record.metrics import files_of, is_finite, numbers_of, open_metrics
from ddpctl_worker.rules.limits import LEAST_POINTS
from ddpctl_worker.rules.thinned import Thinned
from ddpctl_worker.verbs.limits import (
    ANSWER_POINTS,
    METRICS_BYTES,
    METRICS_LINE_BYTES,
    METRICS_PARTS,
    MOST_ATTEMPTS,
    SERIES_POINTS,
)
from ddpctl_worker.wire.channel import Channel

EXACT = 1 << 53  # every smaller whole number is exact as a float
LAUNCH = ("argv", "cwd", "torch", "environment", "created", "launcher")  # of run.json
AXES = ("step", "epoch")  # how far a rank was; the first of these names in its first line counts


def history(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer with ``launch`` and ``network`` of the run, and ``attempts`` and ``gpus`` by attempt number.

        launch     the command that was started here
        network    preflight's facts about the network
        attempts   rank -> its series
        gpus       the load of the GPUs (run/gpuwatch.py)

    A rank's ``axis`` names the x of its points: step, epoch, or line. ``sampled``: its file was too long to be read as
    a whole.
    """
    os.nice(10)  # ranks may be working on this host
    paths, run = record.named_by(request)
    own = [*paths.attempts()[-MOST_ATTEMPTS:]] or [paths]
    numbers = [str(part.attempt or record.attempt_of(run)) for part in own]
    files = {number: files_of(part) for number, part in zip(numbers, own)}  # noqa: B905  (Python 3.8)
    gpus = {number: fs.read_optional(part.gpus) for number, part in zip(numbers, own)}  # noqa: B905
    share = METRICS_BYTES // max(1, sum(map(len, files.values())))
    ranks = {number: {rank: RankSeries(path, share) for rank, path in found.items()} for number, found in files.items()}
    most = sum(len(series.series) for found in ranks.values() for series in found.values())
    points = min(SERIES_POINTS, max(LEAST_POINTS, ANSWER_POINTS // max(1, most)))
    return {
        "launch": {name: run.get(name) for name in LAUNCH},
        "network": fs.read_optional(paths.network) or None,
        "gpus": {number: seen for number, seen in gpus.items() if seen},
        "attempts": {
            number: {rank: series.to_json(points) for rank, series in found.items()} for number, found in ranks.items()
        },
    }


class RankSeries:
    """The file of metrics of a rank: a series for each name."""

    def __init__(self, path: str, most: int) -> None:
        self.axis = ""
        self.sampled = False
        self.series: Dict[str, Thinned] = {}
        self._not_finite: Dict[str, List[float]] = {}  # name -> count of values that are not finite, and the first x
        self._at = 0.0
        number = 0
        for line in self._lines(path, most):
            values = numbers_of(line)
            if values:
                number += 1
                self._take(values, number)

    def _lines(self, path: str, most: int) -> Iterator[bytes]:
        file = open_metrics(path)
        if file is None:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self.sampled = size > most
            for begin, end in _parts(size, most):
                file.seek(begin)
                if begin:
                    file.readline(METRICS_LINE_BYTES)  # the rest of a line that began before this part
                while file.tell() < end:
                    line = file.readline(METRICS_LINE_BYTES)
                    if not line:  # the file has become shorter
                        break
                    yield line

    def _take(self, values: Mapping[str, float], number: int) -> None:
        self.axis = self.axis or next((name for name in AXES if name in values), "line")
        at = float(number) if self.axis == "line" else values.get(self.axis, self._at)
        self._at = _sendable(at) if is_finite(at) else self._at
        for name, value in values.items():
            if name == self.axis:
                continue
            if not is_finite(value):
                self._note(name)
            elif name in self.series or len(self.series) < METRIC_NAMES:
                self.series.setdefault(name, Thinned(SERIES_POINTS)).add(self._at, _sendable(value))

    def _note(self, name: str) -> None:
        """Count a value that is not finite: the first question about a failed training."""
        if name in self._not_finite or len(self._not_finite) < METRIC_NAMES:
            self._not_finite.setdefault(name, [0, self._at])[0] += 1

    def to_json(self, points: int) -> Dict[str, Any]:
        names = [*self.series, *(name for name in self._not_finite if name not in self.series)]
        return {
            "axis": self.axis or "line",
            "sampled": self.sampled,
            "series": {name: self._series_to_json(name, points) for name in names},
        }

    def _series_to_json(self, name: str, points: int) -> Dict[str, Any]:
        thinned = self.series.get(name) or Thinned(points)
        count, at = self._not_finite.get(name, (0, None))
        return {"points": thinned.points(points), "count": thinned.count, "not_finite": count, "not_finite_at": at}


def _parts(size: int, most: int) -> List[Tuple[int, int]]:
    """Return the ranges to read: the whole file, or parts that include its beginning and end."""
    if size <= most:
        return [(0, size)]
    length = max(1, most // METRICS_PARTS)
    begins = [(size - length) * part // (METRICS_PARTS - 1) for part in range(METRICS_PARTS)]
    return [(begin, begin + length) for begin in begins]


def _sendable(value: float) -> float:
    """Return the value as a float if it is too large for an exact whole number in a message."""
    return value if abs(value) < EXACT else float(value)
