"""The parts of a run's record that are more than JSON files: the reserve, the heartbeat, the exit record."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import struct
import time
import zlib
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.machine import fs, notes, proc
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.limits import GONE_S, RESERVE_BYTES, WRITE_PATIENCE_S, WRITE_PAUSE_S
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths, base_of, run_paths
from ddpctl_worker.record.runrecord import RunRecord, read_run
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import LOST, NO_SUCH_RUN, SCHEMA, SUPERVISOR_LOST

_HEARTBEAT = struct.Struct("<ddQIII")
_TAKEN = re.compile(r"\.([0-9]+)\.[0-9a-f]{8}(\.claim)?\Z")  # the end of a name in write_reserved


def named_by(request: Dict[str, Any]) -> Tuple[RunPaths, RunRecord]:
    """Return the files of the run that a request names, and its run.json.

    Raises:
        WorkerError: NO_SUCH_RUN.
    """
    paths = run_paths(base_of(request), request["run"], request["host"])
    run = read_run(paths)
    if run is None:
        raise WorkerError(NO_SUCH_RUN, "run %s is not on this node" % request["run"])
    return paths, run


def attempt_of(run: Mapping[str, Any]) -> int:
    """Return the attempt of a run.json. For a run: its first attempt, which is above 1 if it continues another run."""
    return int(run.get("attempt") or 1)


def make_reserve(path: str, size: int = RESERVE_BYTES) -> None:
    """Allocate ``size`` bytes for a later record, where the file system can do that.

    Raises:
        OSError: the disk is full. A run that starts there could not even record its end.
    """
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(fd)


def write_reserved(reserve: str, path: str, value: Dict[str, Any], *, once: bool = False) -> bool:
    """Turn a reserve into the record ``path``. Return False if there is no reserve, or (``once``) if there is a record.

    The record is written into the allocated bytes themselves, so a full disk does not prevent it. Without hard links
    ``once`` makes a folder too. This has room in the bytes that the record frees, unless another writer takes them.

    Raises:
        OSError: the disk takes nothing now. Either the reserve is back, with room for this record, or a claim holds the
            record, and ``fs.write_once`` publishes it. A disk that refuses even the rename back loses the reserve.
    """
    mine = "%s.%d.%s" % (reserve, os.getpid(), os.urandom(4).hex())
    try:
        os.rename(reserve, mine)  # a second caller finds no reserve
    except FileNotFoundError:
        return False
    try:
        _overwrite(mine, value)
        if not once:
            os.rename(mine, path)
        elif not fs.publish_once(mine, path):
            return False
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(mine, reserve)
        raise
    finally:
        fs.discard(mine)
    fs.sync_folder(os.path.dirname(path))
    return True


def replace(path: str, value: Dict[str, Any], reserve: str) -> None:
    """Replace a record that has to change on a full disk, too. A new reserve is allocated as soon as the disk has room.

    Raises:
        OSError: the disk takes nothing, and the reserve is used up.
    """
    try:
        fs.write_json(path, value)
    except OSError:
        if not write_reserved(reserve, path, value):
            raise
    if not os.path.exists(reserve):
        try:
            make_reserve(reserve)
        except OSError:
            fs.discard(reserve)  # it may hold less than it should


def _overwrite(path: str, value: Dict[str, Any]) -> None:
    body = json.dumps(value, indent=1).encode("ascii") + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        done = 0
        while done < len(body):
            done += os.pwrite(fd, body[done:], done)
        os.ftruncate(fd, len(body))
        os.fsync(fd)
    finally:
        os.close(fd)


class Heartbeat(NamedTuple):
    """One heartbeat. Times are seconds since boot: an age has a meaning on the same boot only."""

    at: float
    last_output: float  # 0.0: no output yet
    dropped: int  # lines
    attempt: int
    ranks: int = 0  # living ranks


class HeartbeatFile:
    """The heartbeat file of a run. It is rewritten in place, so a full disk does not stop it."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def write(self, beat: Heartbeat) -> None:
        body = _HEARTBEAT.pack(beat.at, beat.last_output, beat.dropped, beat.attempt, beat.ranks, 0)[:-4]
        with contextlib.suppress(OSError):  # a missed beat shows as its age
            os.pwrite(self._fd, body + struct.pack("<I", zlib.crc32(body)), 0)

    def close(self) -> None:
        os.close(self._fd)


def read_heartbeat(path: str) -> Optional[Heartbeat]:
    """Return the last heartbeat; ``None`` if there is no file, or if it was read half written."""
    try:
        with open(path, "rb") as file:
            blob = file.read(_HEARTBEAT.size)
    except OSError:
        return None
    if len(blob) != _HEARTBEAT.size or zlib.crc32(blob[:-4]) != struct.unpack("<I", blob[-4:])[0]:
        return None
    return Heartbeat(*_HEARTBEAT.unpack(blob)[:-1])


def exit_record(
    outcome: Outcome,
    *,
    exit_code: Optional[int] = None,
    signalled: int = 0,
    forced: int = 0,
    leftover: int = 0,
    survivors: Optional[List[Dict[str, Any]]] = None,
    attempt: int = 1,
    dropped_lines: int = 0,
    ended: Optional[str] = None,
    candidates: Sequence[Dict[str, Any]] = (),
    unfinished: Sequence[Dict[str, Any]] = (),
) -> Dict[str, Any]:
    """Return the content of exit.json.

    ``leftover``: processes that outlived the launcher and were ended. ``unfinished``: checkpoint files that the end of
    the ranks has cut off; without such files the record has no such field.
    """
    return {
        "schema": SCHEMA,
        "state": outcome.state,
        "exit_code": exit_code,
        "cause": outcome.cause,
        "candidates": list(candidates),
        "ended": ended or notes.now_iso(),
        "signalled": signalled,
        "forced": forced,
        "leftover": leftover,
        "survivors": survivors or [],
        "attempt": attempt,
        "dropped_lines": dropped_lines,
        **({"unfinished": list(unfinished)} if unfinished else {}),
    }


def write(paths: RunPaths, outcome: Outcome, *, patience: float = WRITE_PATIENCE_S, **numbers: Any) -> bool:
    """Write the exit record; return False if there was a record already. ``numbers``: arguments of ``exit_record``.

    ``patience``: seconds to wait for a disk that takes nothing.

    Raises:
        OSError: the disk took nothing within that time.
    """
    body = exit_record(outcome, **numbers)
    deadline = time.monotonic() + patience
    while True:
        try:
            return save(paths, body)
        except OSError:
            if time.monotonic() >= deadline or fs.is_gone(paths.node):
                raise
            time.sleep(0.5)


def lost(paths: RunPaths, host: str, detail: Optional[str] = None, *, when: Optional[float] = None) -> Outcome:
    """Return the end of a run without a supervisor: killed if a user had asked for a stop, otherwise lost."""
    if os.path.lexists(paths.stop):
        return outcomes.killed(host, str(fs.read_optional(paths.stop).get("by") or ""), when=when)
    text = detail or "the supervisor was killed, and so were the processes that it left"
    return Outcome(LOST, outcomes.cause(host, SUPERVISOR_LOST, text, when=when), when=when or 0.0)


class ExitWriter:
    """Writes an exit record, however long the disk is away. A run without a folder was removed, and needs no record."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._gone_since: Optional[float] = None
        self._pause = 0.2
        self._noted = ""
        self.gone = GONE_S
        self.again_at = 0.0  # when the next attempt is due (monotonic)

    def wrote(self, body: Callable[[], Dict[str, Any]]) -> bool:
        """Try once; return True once there is a record, or no folder for a record."""
        try:
            if not fs.is_gone(self._paths.node):
                self._gone_since = None
                return os.path.exists(self._paths.exit) or save(self._paths, body()) or True
            now = time.monotonic()
            self._gone_since = self._gone_since or now
            if now - self._gone_since >= self.gone:
                return True
        except Exception as error:
            if str(error) != self._noted:
                self._noted = str(error)
                notes.note("the run's end cannot be recorded yet: %r" % error)
        self._pause = min(WRITE_PAUSE_S, self._pause * 2)
        self.again_at = time.monotonic() + self._pause
        return False


def save(paths: RunPaths, body: Dict[str, Any]) -> bool:
    """Try once to write the exit record; return False if there was a record already."""
    try:
        first = fs.write_once(paths.exit, body)
    except OSError:  # a full disk: the reserve is for this case
        if write_reserved(paths.reserve, paths.exit, body, once=True):
            return True
        _free_abandoned(paths.reserve)
        first = fs.write_once(paths.exit, body)  # another writer had the reserve, so there may be a record
    fs.discard(paths.reserve)  # not needed any more
    return first


def _free_abandoned(reserve: str) -> None:
    """Remove what ``write_reserved`` has left in processes that were killed: the full disk has room there."""
    for path in glob.glob(glob.escape(reserve) + ".*"):
        named = _TAKEN.match(path[len(reserve) :])
        found = proc.read_stat(int(named.group(1))) if named else None
        if named and (found is None or not found.alive):
            with contextlib.suppress(OSError):
                fs.remove_tree(path)
