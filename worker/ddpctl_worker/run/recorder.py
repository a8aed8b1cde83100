"""Writes and reads the files of a run's record for its supervisor, in a thread of its own.

A disk may hang for hours. The supervisor hands over values and reads answers from memory, so it never waits for a disk.
This thread retries as long as the process lives. Only the newest value of each record is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ddpctl_worker.machine import fs, notes
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.limits import GONE_S
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run.limits import DISK_ANSWER_S, RECORDER_LOOK_S, WAITING_NOTES
from ddpctl_worker.wire.contract import SUPERVISOR_LOST


class Look:
    """A look at files that other processes write: the file of a stop, and torch's error file."""

    def __init__(self) -> None:
        self._until = time.monotonic() + DISK_ANSWER_S
        self.done = False
        self.stop: Dict[str, Any] = {}

    @property
    def over(self) -> bool:
        """Return whether the answer is there, or the disk took too long."""
        return self.done or time.monotonic() >= self._until


class Recorder:
    """``heartbeat`` returns the current heartbeat; ``changed`` is called when an answer is ready."""

    def __init__(
        self, paths: RunPaths, host: str, heartbeat: Callable[[], record.Heartbeat], changed: Callable[[], None]
    ) -> None:
        self._paths, self._heartbeat, self._changed = paths, heartbeat, changed
        self._heartbeat_file = record.HeartbeatFile(paths.heartbeat)
        self._folder = FolderWatch(paths, host)
        self._exit_writer = record.ExitWriter(paths)
        self._cond = threading.Condition()
        self._values: Dict[str, Tuple[Dict[str, Any], bool]] = {}  # path -> (value, durable)
        self._notes: Deque[bytes] = deque(maxlen=WAITING_NOTES)
        self._looks: List[Look] = []
        self._end: Optional[Dict[str, Any]] = None
        self._beat_at = 0.0
        self._retry_at = 0.0
        self.wrote: Dict[str, str] = {}  # path -> why the last attempt failed, "" if it succeeded
        self.error: Optional[Dict[str, Any]] = None  # torch's error file at the last look
        self.lost: Optional[Outcome] = None  # see FolderWatch.lost
        self.ended = False  # the exit record is on the disk
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, path: str, value: Dict[str, Any], *, durable: bool = True) -> None:
        """Write ``value`` unless a newer value for ``path`` replaces it before."""
        with self._cond:
            self._values[path] = (value, durable)
            self._retry_at = 0.0
            self._cond.notify()

    def note(self, line: bytes) -> None:
        """Queue a line for supervisor.log. Takes no lock, since this thread writes notes too."""
        self._notes.append(line)

    def look(self) -> Look:
        """Begin a look at the files of other processes."""
        look = Look()
        with self._cond:
            self._looks.append(look)
            self._cond.notify()
        return look

    def end(self, body: Dict[str, Any]) -> None:
        """Write the exit record. The first call counts."""
        with self._cond:
            if self._end is None:
                self._end = body
                self._cond.notify()

    def _run(self) -> None:
        while not self.ended:
            try:
                self._turn()
            except Exception as error:
                notes.note("records: %r" % error)
                time.sleep(0.1)
        self._changed()

    def _turn(self) -> None:
        with self._cond:
            pause = self._next() - time.monotonic()
            if not self._looks and pause > 0:
                self._cond.wait(pause)
            looks, self._looks = self._looks, []
        for look in looks:
            self._answer(look)
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + RECORDER_LOOK_S
            self._heartbeat_file.write(self._heartbeat())
            self._write_notes()
            if self._end is None:
                self._check_folder()
        self._write_values()
        if self._end is not None and time.monotonic() >= self._exit_writer.again_at:
            end = self._end
            if self._exit_writer.wrote(lambda: end):
                self._heartbeat_file.write(self._heartbeat())
                self._write_notes()
                self.ended = True

    def _next(self) -> float:
        due = [self._beat_at]
        if self._values:
            due.append(self._retry_at)
        if self._end is not None:
            due.append(self._exit_writer.again_at)
        return min(due)

    def _answer(self, look: Look) -> None:
        with contextlib.suppress(Exception):  # an unreadable file: the signal alone counts
            look.stop = fs.read_json(self._paths.stop) or {}
        with contextlib.suppress(Exception):  # written by the job, so it may hold anything
            self.error = fs.read_json(self._paths.error_file) or self.error
        look.done = True
        self._changed()

    def _check_folder(self) -> None:
        if self.lost is not None:
            return
        with contextlib.suppress(Exception):  # a lost disk or a damaged record ends no run
            self.lost = self._folder.lost()
        if self.lost is not None:
            self._exit_writer.gone = 0.0  # FolderWatch has waited for the folder
            self._changed()

    def _write_values(self) -> None:
        with self._cond:
            if time.monotonic() < self._retry_at:
                return
            values, self._values = self._values, {}
        for path, (value, durable) in values.items():
            try:
                fs.write_json(path, value, durable=durable)
                trouble = ""
            except OSError as error:
                trouble = error.strerror or str(error)
                with self._cond:
                    self._values.setdefault(path, (value, durable))
                    self._retry_at = time.monotonic() + RECORDER_LOOK_S
            if trouble and trouble != self.wrote.get(path):
                notes.note("%s not saved: %s" % (os.path.basename(path), trouble))
            before, self.wrote[path] = self.wrote.get(path), trouble
            if before is None:
                self._changed()

    def _write_notes(self) -> None:
        while self._notes:
            with contextlib.suppress(OSError):
                os.write(2, self._notes[0])
            with contextlib.suppress(IndexError):  # newer lines have pushed it out meanwhile
                self._notes.popleft()


class FolderWatch:
    """Watches the run's folder for the supervisor."""

    def __init__(self, paths: RunPaths, host: str, gone: float = GONE_S) -> None:
        self._paths, self._host, self._gone = paths, host, gone
        self._look_at = 0.0
        self._gone_since: Optional[float] = None

    def lost(self) -> Optional[Outcome]:
        """Return the outcome if the run must end without a failure: its folder is gone, or it has an exit record."""
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + RECORDER_LOOK_S
        return self._ended_elsewhere() or self._removed(now)

    def _ended_elsewhere(self) -> Optional[Outcome]:
        """Return the outcome of an exit record by another process: readers take the run for over, so it must end."""
        end = fs.read_optional(self._paths.exit)
        return Outcome(str(end["state"]), end.get("cause"), when=time.time()) if "state" in end else None

    def _removed(self, now: float) -> Optional[Outcome]:
        """Return an outcome if the folder was removed: no command can see or stop such a run."""
        if not fs.is_gone(self._paths.run):
            self._gone_since = None
            return None
        self._gone_since = self._gone_since or now
        if now - self._gone_since < self._gone:
            return None
        text = "the run's folder %s was removed: nobody could see or stop the job without it" % self._paths.node
        return outcomes.failed(outcomes.cause(self._host, SUPERVISOR_LOST, text))
