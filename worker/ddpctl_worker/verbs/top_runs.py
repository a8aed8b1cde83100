"""The runs of this host from their records, and the state of each rank, from small files and /proc.

Three rules keep this cheap. The folder of runs is listed only after a change. The record of an ended run is read once.
Only the new end of a growing file is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.doctor.process import STATES
from ddpctl_worker.machine import fs, proc
from ddpctl_worker.record.limits import LAST_METRICS_BYTES
from ddpctl_worker.record.lines import decode
from ddpctl_worker.record.logs import segments
from ddpctl_worker.record.metrics import Values, files_of, read_new_values
from ddpctl_worker.record.paths import RunPaths, job_id, run_paths, runs_dir
from ddpctl_worker.record.ranks import read_rank_processes
from ddpctl_worker.record.status import status_or_fault
from ddpctl_worker.rules.progress import find_progress
from ddpctl_worker.verbs.limits import (
    COMING_RUN_S,
    LISTING_SETTLES_S,
    LOG_END_BYTES,
    LOST_RUN_S,
    MOST_RUNS,
    PROGRESS_LINES_OF_A_LOOK,
)
from ddpctl_worker.wire import contract
from ddpctl_worker.wire.channel import WorkerError

SHOWN = ("step", "epoch", "loss", "samples_per_s")
_HEAD = re.compile(rb'^\{"t":([0-9]+\.[0-9]+),"r":([0-9]{1,7}),', re.MULTILINE)
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class RunReader:
    """The runs that are not over, and the newest run of every job."""

    def __init__(self, base: str, host: str) -> None:
        self._base, self._host = base, host
        self._listed: Optional[int] = None  # mtime of the runs' folder at its last listing
        self._names: Set[str] = set()  # every known run
        self._coming: Dict[str, float] = {}  # run -> when its folder was first seen without this host's part
        self._jobs: Dict[str, str] = {}  # job -> its newest run
        self._ended: Dict[str, Dict[str, Any]] = {}  # run -> its last status
        self._live: Dict[str, _Live] = {}

    def read(self) -> Dict[str, Any]:
        """Return run -> ``status`` (a NodeStatus) and ``ranks`` (the state by rank; empty once the run is over)."""
        self._find()
        found = {}
        for run in sorted({*self._live, *self._ended}, reverse=True)[:MOST_RUNS]:
            live = self._live.get(run)
            status = self._ended.get(run) if live is None else live.status()
            if status is None:  # removed, or its record cannot be read at the moment
                self._forget(run)
                self._names.discard(run)
                self._listed = None  # the next call finds a run that is still there
                continue
            over = status["state"] in contract.TERMINAL
            if not over or live is None or run in self._jobs.values():
                found[run] = {"status": status, "ranks": {} if live is None or over else live.ranks(status)}
            if over and live is not None and os.path.exists(live.paths.exit):
                del self._live[run]
                self._ended[run] = status
        return found

    def _find(self) -> None:
        """Find runs that have come or gone since the last call."""
        root = runs_dir(self._base)
        try:
            changed = os.stat(root).st_mtime_ns
        except FileNotFoundError:
            return
        if changed != self._listed:
            names = set(os.listdir(root))
            for run in self._names - names:
                self._forget(run)
            self._coming.update(dict.fromkeys(names - self._names, time.monotonic()))
            # A folder that is made right after the listing may leave the same time behind.
            settled = time.time() - changed / 1e9 > LISTING_SETTLES_S
            self._names, self._listed = names, changed if settled else None
        for run in sorted(self._coming, reverse=True):
            if self._take(run) or time.monotonic() - self._coming[run] > COMING_RUN_S:
                del self._coming[run]

    def _take(self, run: str) -> bool:
        """Return whether this host's part of the run is there, or will never be there."""
        try:
            paths = run_paths(self._base, run, self._host)
        except WorkerError:
            return True
        made = fs.read_optional(paths.run)
        if not made:
            return False
        job, over = job_id(made), os.path.exists(paths.exit)
        newest = max(run, self._jobs.get(job, run))
        before = self._jobs.get(job)
        self._jobs[job] = newest
        if newest == run and before != run:
            self._ended.pop(before or "", None)
        if not over or newest == run:
            self._live[run] = _Live(paths)
        return True

    def _forget(self, run: str) -> None:
        self._live.pop(run, None)
        self._ended.pop(run, None)
        self._coming.pop(run, None)
        self._jobs = {job: newest for job, newest in self._jobs.items() if newest != run}


class _Seen(NamedTuple):
    """A rank's process at the last look."""

    ticks: int
    at: float


class _Live:
    """A run that may not be over."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._metrics: Dict[str, _Grown] = {}
        self._log = _Log(paths.logs)
        self._seen: Dict[Tuple[int, int], _Seen] = {}  # pid and start time
        self._status: Optional[Dict[str, Any]] = None
        self._look_at = 0.0

    def status(self) -> Optional[Dict[str, Any]]:
        """Return the status, or ``None`` if the run was removed.

        A run that is over without an exit record is rarely read, because its status takes a look at all of /proc.
        """
        if time.monotonic() >= self._look_at:
            self._status = status_or_fault(self.paths)
            if self._status is not None and self._status["state"] in contract.TERMINAL:
                self._look_at = time.monotonic() + LOST_RUN_S
        return self._status

    def ranks(self, status: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
        """Return the state by rank. The key "" holds the metrics if the ranks of this node share a file."""
        part = self.paths.of_attempt(int(status["attempt"])) if self.paths.attempts() else self.paths
        metrics = self._values(part)
        ages = self._log.ages()
        seen, found = {}, {}
        for number, (pid, start) in read_rank_processes(part).items():
            rank = str(number)
            stat = proc.read_stat(pid)
            alive = stat is not None and stat.start == start
            one: Dict[str, Any] = {"pid": pid, "state": "ended"}
            if stat is not None and alive:
                one["state"] = STATES.get(stat.state, stat.state)
                seen[(pid, start)] = now = _Seen(stat.ticks, time.monotonic())
                one.update(cpu=_percent(self._seen.get((pid, start)), now), rss_mb=_resident(pid))
            printed = dict(self._log.printed.get(rank, {}))
            found[rank] = dict(one, output_age_s=ages.get(rank), metrics=metrics.pop(rank, {}), printed=printed)
        self._seen = seen
        if metrics.get(""):
            found[""] = {"metrics": metrics[""]}
        return found

    def _values(self, part: RunPaths) -> Dict[str, Values]:
        paths = files_of(part)
        self._metrics = {path: self._metrics.get(path) or _Grown(path) for path in paths.values()}
        return {rank: self._metrics[path].values() for rank, path in paths.items()}


def _percent(before: Optional[_Seen], now: _Seen) -> Optional[float]:
    if before is None or now.at <= before.at:
        return None
    return round(100.0 * (now.ticks - before.ticks) * _TICK_S / (now.at - before.at), 1)


def _resident(pid: int) -> Optional[float]:
    words = (proc.read_file(pid, "statm") or b"").split()
    return round(int(words[1]) * _PAGE_MB, 1) if len(words) > 1 else None


class _Grown:
    """The last values in a file of metrics. Only the new part of the file is read."""

    def __init__(self, path: str) -> None:
        self._path, self._offset, self._size = path, -LAST_METRICS_BYTES, -1
        self._values: Values = {}

    def values(self) -> Values:
        with contextlib.suppress(OSError):
            size = os.lstat(self._path).st_size
            if size != self._size:
                if size - self._offset > LAST_METRICS_BYTES:
                    self._offset = -LAST_METRICS_BYTES
                self._offset, lines = read_new_values(self._path, self._offset, LAST_METRICS_BYTES)
                self._size = size
                for line in lines:
                    self._values.update({name: line[name] for name in SHOWN if name in line})
        return dict(self._values)


class _Log:
    """The time of each rank's last output and the progress that it printed, from the end of the growing log."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.printed: Dict[str, Values] = {}  # rank -> step, epoch and loss
        self._last: Dict[str, float] = {}  # rank -> wall clock
        self._read: Tuple[str, int] = ("", 0)  # the file that was read last, and its size then

    def ages(self) -> Dict[str, float]:
        with contextlib.suppress(OSError):
            self._look(segments(self._folder))
        now = time.time()
        return {rank: round(max(0.0, now - at), 1) for rank, at in self._last.items()}

    def _look(self, found: List[Any]) -> None:
        if not found:
            return
        path = found[-1].path
        size = os.stat(path).st_size
        before = self._read[1] if self._read[0] == path else 0
        if size == before:
            return
        with open(path, "rb") as file:
            file.seek(max(before, size - LOG_END_BYTES))
            data = file.read(LOG_END_BYTES)
        whole = data.rfind(b"\n") + 1
        self._read = (path, size - (len(data) - whole))
        self._last.update({match[2].decode(): float(match[1]) for match in _HEAD.finditer(data[:whole])})
        for line in data[:whole].splitlines()[-PROGRESS_LINES_OF_A_LOOK:]:
            record = decode(line)
            if record is not None and record.get("r") is not None:
                self.printed.setdefault(str(record["r"]), {}).update(find_progress(str(record["x"])))
