"""This machine's records of its runs. They are only hints: the nodes hold the truth.

The files are below ``$XDG_STATE_HOME/ddpctl/controller`` (``~/.local/state/...``), for this user alone. A record is
written to a temporary file and renamed. Positions are written in place, in records that a crash cannot tear. Clean
preflights are kept here too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from ddpctl.files.limits import KEEP_HASHES_S, KEEP_PREFLIGHT_S, KEEP_RUNS
from ddpctl.spec.values import is_name
from ddpctl_worker.wire.contract import begins

_log = logging.getLogger(__name__)


def state_dir() -> Path:
    """Return the folder of all records on this machine; it may not exist yet."""
    return platformdirs.user_state_path("ddpctl") / "controller"


def save_run(job: str, run: str, data: Mapping[str, Any]) -> None:
    """Record ``run`` as the last run of ``job`` that was started here with the inventory file that ``data`` names.

    Many folders have a job ``train``, so the file counts. ``data`` must be JSON-able.

    Raises:
        OSError: the folder cannot be written.
    """
    record = {**data, "job": job, "run": run}
    write_record(_run_file(run), record)
    write_record(_job_file(job, record), record)
    _forget_old()


def recorded_runs(word: str) -> list[dict[str, Any]]:
    """Return the records of the runs that ``word`` may mean, newest first.

    First choice: the last run of the job of that name, from each inventory file. Else the run of that id, or all runs
    with an id that begins with it.
    """
    if not is_name(word):
        return []
    paths = _job_files(word) or [_run_file(word)]
    found = [record for record in map(read_record, paths) if record is not None]
    if not found:
        begun = (read_record(_run_file(run)) for run in _runs() if begins(run, word))
        found = [record for record in begun if record is not None]
    return sorted(found, key=lambda record: str(record.get("run")), reverse=True)  # run ids sort by time


def all_recorded_runs() -> list[dict[str, Any]]:
    """Return the records of all runs that were started here."""
    found = (read_record(_run_file(run)) for run in _runs())
    return [record for record in found if record is not None]


def forget_run(run: str) -> None:
    """Remove the records of ``run``. The newest remaining run of its job, from the same file, becomes the last run.

    Raises:
        OSError: the folder cannot be changed.
    """
    if not is_name(run):
        raise ValueError(f"not the name of a run: {run!r}")
    record = read_record(_run_file(run)) or {}
    _remove(run_dir(run))
    job = str(record.get("job", ""))
    if not is_name(job) or (read_record(_job_file(job, record)) or {}).get("run") != run:
        return
    rest = (read_record(_run_file(other)) for other in sorted(_runs(), reverse=True))
    alike = (kept for kept in rest if kept is not None and _key(kept) == _key(record) and kept.get("job") == job)
    newest = next(alike, None)
    if newest is not None:
        write_record(_job_file(job, record), newest)
    else:
        _job_file(job, record).unlink(missing_ok=True)


def save_end(run: str, end: Mapping[str, Any]) -> None:
    """Record how ``run`` ended, once: after all nodes have reported its end, it never changes.

    Raises:
        OSError: the folder cannot be written.
    """
    if is_name(run) and not _end_file(run).exists():
        write_record(_end_file(run), end)


def last_end(run: str) -> dict[str, Any] | None:
    """Return the recorded end of ``run``, if there is a readable record."""
    return read_record(_end_file(run)) if is_name(run) else None


def folder_of(run: str) -> Path:
    """Return the folder of a run's records, created for this user alone."""
    if not is_name(run):
        raise ValueError(f"not the name of a run: {run!r}")
    return _made(run_dir(run))


def _made(folder: Path) -> Path:
    state_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    below = folder.relative_to(state_dir())
    for part in (*reversed(below.parents), below):
        (state_dir() / part).mkdir(mode=0o700, exist_ok=True)
    return folder


def run_dir(run: str) -> Path:
    """Return the folder of a run's records; it may not exist yet."""
    return state_dir() / "runs" / run


def _run_file(run: str) -> Path:
    return run_dir(run) / "run.json"


def _end_file(run: str) -> Path:
    return run_dir(run) / "end.json"


def _key(record: Mapping[str, Any]) -> str:
    """Return the key of a run's inventory file, whose path may not be UTF-8."""
    return hashlib.sha256(str(record.get("inventory", "")).encode(errors="surrogatepass")).hexdigest()[:12]


def _job_file(job: str, record: Mapping[str, Any]) -> Path:
    return state_dir() / "last" / f"{job}@{_key(record)}.json"  # a name never has an @


def _job_files(job: str) -> list[Path]:
    return sorted((state_dir() / "last").glob(f"{job}@*.json"))


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record at ``path``, if it exists and is readable (the log tells about an unreadable record)."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("the record %s cannot be read and is not used: %s", path, error)
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a temporary file, sync it, rename it, sync the folder: a reader sees the old record or the new record."""
    _made(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(record, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _forget_old() -> None:
    folders = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(state_dir() / "runs") if entry.is_dir()]
    for _, path in sorted(folders, reverse=True)[KEEP_RUNS:]:
        _remove(Path(path))


def _runs() -> list[str]:
    folder = state_dir() / "runs"
    return [entry.name for entry in os.scandir(folder)] if folder.is_dir() else []


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # another ddpctl was quicker
        for item in folder.iterdir():
            item.unlink(missing_ok=True)
        folder.rmdir()


# --- clean preflights

_PREFLIGHT_KEY = re.compile(r"[0-9a-f]{64}")


def save_preflight(key: str, report: Mapping[str, Any]) -> None:
    """Record a report (JSON-able) under its key, a SHA-256 in hex.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _preflight_file(key)
    write_record(path, {"saved": time.time(), "report": dict(report)})
    _forget_older(path.parent, KEEP_PREFLIGHT_S)


def _forget_older(folder: Path, seconds: float) -> None:
    for old in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another ddpctl was quicker
            if time.time() - old.stat().st_mtime > seconds:
                old.unlink()


def recent_preflight(key: str, seconds: float) -> tuple[dict[str, Any], float] | None:
    """Return the report recorded under ``key`` less than ``seconds`` ago, and its age in seconds.

    A record from the future (a clock was set back) does not count.
    """
    found = read_record(_preflight_file(key))
    if found is None or not isinstance(found.get("saved"), float) or not isinstance(found.get("report"), dict):
        return None
    age = time.time() - found["saved"]
    report: dict[str, Any] = found["report"]
    return (report, age) if 0 <= age < seconds else None


def _preflight_file(key: str) -> Path:
    if not _PREFLIGHT_KEY.fullmatch(key):
        raise ValueError(f"not the key of a preflight: {key!r}")
    return state_dir() / "preflights" / f"{key}.json"


# --- hashes of the files of a data folder


def save_hashes(folder: Path, hashes: Mapping[str, Any]) -> None:
    """Record the hashes of a data folder's files.

    Raises:
        OSError: the folder of the records cannot be written.
    """
    write_record(_hashes_file(folder), hashes)
    _forget_older(_hashes_file(folder).parent, KEEP_HASHES_S)


def last_hashes(folder: Path) -> dict[str, Any] | None:
    """Return the recorded hashes of a data folder's files."""
    return read_record(_hashes_file(folder))


def forget_hashes(folder: Path) -> None:
    _hashes_file(folder).unlink(missing_ok=True)


def _hashes_file(folder: Path) -> Path:
    return state_dir() / "data" / f"{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()}.json"
