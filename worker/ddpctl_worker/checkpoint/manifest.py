"""The manifest of an entry: its files with their hashes, in ``<folder>/.ddpctl/<entry>.json``.

    {"schema": 1, "entry": "step_120", "host": its writer, "step": 120 or null, "time": ISO 8601, "size": bytes,
     "files": {path in the entry ("" for an entry that is a file): {"size", "sha256", "mtime_ns", "save"}},
     "references": {path: smallest size} or null, "version": hex,
     "serial": number of the job's start, "run": id or null, "attempt": number, "clock": host}

Each host that wrote a part of an entry has a manifest of its part. The manifest is written after the files, so an entry
without a manifest is not known to be complete. A copy on another host has the same manifest and the same file times.

- ``references``: the files that ``.metadata`` needs, on the host that has it.
- ``version``: the hash of the content; a script may write the same entry again.
- ``serial``, ``run``, ``attempt``: the attempt that wrote the entry (attempts.py); 0, null and 0 before any run.
- ``save``: the number of the save of that attempt under this name. 0: an earlier attempt wrote the file. null: the
  number cannot be determined (saves.py).
- ``time``: the time of the newest file by the clock of the host ``clock``. It may be later: in a series the entry that
  was written later has the later time, also if the clock was set back in between.

``/`` in an entry's name is ``%2F`` in the name of its manifest; a hash replaces a long name. A manifest is stale
once the size or time of a file is another, unless the hashed version is pinned (pins.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from ddpctl_worker.checkpoint import metadata
from ddpctl_worker.checkpoint.limits import BLOCK_BYTES, MOST_ESCAPED_BYTES, MOST_INDEX_BYTES
from ddpctl_worker.machine import fs
from ddpctl_worker.machine.notes import iso
from ddpctl_worker.rules.attempts import BEFORE_ANY, AttemptId, attempt_of
from ddpctl_worker.rules.complete import Chosen, Manifest, SavedFile
from ddpctl_worker.rules.entries import FOLDER, METADATA, Files, Stamp, step_of
from ddpctl_worker.rules.order import moment_of
from ddpctl_worker.wire.channel import WorkerError

SCHEMA = 1
Tell = Callable[[int], None]
_HASH = re.compile(r"[0-9a-f]{64}\Z")


class Unsettled(Exception):
    """The entry changed while it was read, or its index is not valid. The text says why."""


def path_of(folder: str, entry: str) -> str:
    """Return the path of an entry's manifest."""
    return os.path.join(folder, FOLDER, "%s.json" % file_name(entry))


def file_name(entry: str) -> str:
    """Return the entry's name with ``/`` escaped, for a file name; ``%=`` and a hash if that name is too long."""
    escaped = entry.replace("%", "%25").replace("/", "%2F")
    written = escaped.encode("utf-8", "surrogatepass")
    return escaped if len(written) <= MOST_ESCAPED_BYTES else "%=" + hashlib.sha256(written).hexdigest()


def file_of(folder: str, entry: str, name: str) -> str:
    """Return the path of a file of an entry in ``folder``; ``name`` is its key in ``files``."""
    return os.path.join(folder, entry, name) if name else os.path.join(folder, entry)


def make(
    paths: Mapping[str, str],
    entry: str,
    host: str,
    files: Files,
    attempt: AttemptId,
    saves: Mapping[str, Optional[int]],
    read_on: Optional[Tell] = None,
    after: Optional[float] = None,
) -> Manifest:
    """Hash an entry and return its manifest.

    ``paths``: the path of each file on the disk. ``files``: each file as it was at the last look. ``saves``: the save
    of each file. ``read_on`` is called with the number of bytes that were just read. ``after``: a time that the
    manifest's time must exceed, whatever the clock says.

    Raises:
        Unsettled: a file has changed since the look, or ``.metadata`` is not an index that torch writes.
        OSError: a file cannot be read.
    """
    found = {name: _described(paths[name], files[name], saves[name], read_on) for name in sorted(files)}
    written = max(stamp.mtime_ns for stamp in files.values()) / 1e9
    return {
        "schema": SCHEMA,
        "entry": entry,
        "host": host,
        "step": step_of(entry),
        "time": iso(written if after is None else max(written, after + 0.001)),
        "size": sum(stamp.size for stamp in files.values()),
        "files": found,
        "references": _references(paths, files),
        "version": version_of(found),
        "serial": attempt.serial,
        "run": attempt.run or None,
        "attempt": attempt.number,
        "clock": host,
    }


def write(folder: str, manifest: Manifest) -> None:
    """Replace the entry's manifest. The new manifest survives a power cut."""
    path = path_of(folder, manifest["entry"])
    fs.private_dir(os.path.dirname(path))
    fs.write_json(path, manifest)


def read(folder: str, entry: str) -> Optional[Manifest]:
    """Return the manifest of an entry, or ``None`` if it is missing or damaged."""
    return _read(path_of(folder, entry))


def read_all(folder: str) -> List[Manifest]:
    """Return every well-formed manifest in ``folder``, also of files that have changed since (``fits``)."""
    try:
        names = sorted(os.listdir(os.path.join(folder, FOLDER)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [_read(os.path.join(folder, FOLDER, name)) for name in names if name.endswith(".json")]
    return [one for one in found if one is not None]


def discard(folder: str, entry: str) -> None:
    """Remove the manifest of an entry. The entry then no longer counts as complete."""
    fs.discard(path_of(folder, entry))


def fits(manifest: Manifest, files: Files) -> bool:
    """Return whether ``files``, as they are now, have the sizes and times of the manifest."""
    hashed: Dict[str, Any] = manifest["files"]
    return set(hashed) == set(files) and all(
        (hashed[name]["size"], hashed[name]["mtime_ns"]) == (stamp.size, stamp.mtime_ns)
        for name, stamp in files.items()
    )


def find_damaged_files(folder: str, manifest: Manifest) -> List[str]:
    """Return the files of an entry that are missing or have the wrong content. Reads every byte."""
    found = []
    for name, file in manifest["files"].items():
        try:
            path = file_of(folder, manifest["entry"], name)
            good = os.lstat(path).st_size == file["size"] and hash_of(path) == file["sha256"]
        except OSError:
            good = False
        if not good:
            found.append(name)
    return found


def version_of(files: Dict[str, Any]) -> str:
    """Return a hash of an entry's content: its paths, sizes and file hashes."""
    content = [[name, files[name]["size"], files[name]["sha256"]] for name in sorted(files)]
    return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()[:32]


def hash_of(path: str, read_on: Optional[Tell] = None) -> str:
    """Return the SHA-256 of a plain file. A symbolic link is not followed."""
    found = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=0) as file:
        while True:
            block = file.read(BLOCK_BYTES)
            if not block:
                return found.hexdigest()
            found.update(block)
            if read_on is not None:
                read_on(len(block))


def _described(path: str, stamp: Stamp, save: Optional[int], read_on: Optional[Tell]) -> SavedFile:
    try:
        digest = hash_of(path, read_on)
        now = os.lstat(path)
    except FileNotFoundError:
        raise Unsettled("%s has vanished" % path) from None
    if (now.st_size, now.st_mtime_ns, now.st_ino) != tuple(stamp):
        raise Unsettled("%s has changed" % path)
    return {"size": stamp.size, "sha256": digest, "mtime_ns": stamp.mtime_ns, "save": save}


def _references(paths: Mapping[str, str], files: Files) -> Optional[Dict[str, int]]:
    """Return the files that each ``.metadata`` of the entry needs, or ``None`` if there is no index."""
    indexes = [name for name in files if name.rpartition("/")[2] == METADATA]
    if not indexes:
        return None
    found = {}
    for index in indexes:
        path = paths[index]
        if files[index].size > MOST_INDEX_BYTES:
            raise Unsettled("%s has %d bytes" % (path, files[index].size))
        try:
            with open(path, "rb") as file:
                sizes = metadata.references(file.read())
        except ValueError as error:
            raise Unsettled("%s: %s" % (path, error)) from None
        found.update({index[: -len(METADATA)] + name: size for name, size in sizes.items()})
    return found


def _read(path: str) -> Optional[Manifest]:
    try:
        found: Any = fs.read_json(path)
    except (WorkerError, OSError):
        return None
    named = is_well_formed(found) and "%s.json" % file_name(found["entry"]) == os.path.basename(path)
    return found if named else None


def is_well_formed(found: Any) -> bool:
    """Return whether ``found`` has the form of a manifest, with the size and version that its files add up to."""
    try:
        files, sizes = found["files"], found["references"]
        return (
            found["schema"] == SCHEMA
            and isinstance(found["host"], str)
            and moment_of(found["time"]) > 0
            and isinstance(found["step"], (int, type(None)))
            and _inside({found["entry"]})
            and _inside(set(files) - {""})
            and (sizes is None or _inside(set(sizes)))
            and all(_HASH.match(one["sha256"]) and one["size"] >= 0 for one in files.values())
            and all(size >= 0 for size in (sizes or {}).values())
            and all(isinstance(one["mtime_ns"], int) for one in files.values())
            and bool(files)
            and isinstance(found["clock"], str)
            and attempt_of(found) >= BEFORE_ANY
            and all(one["save"] is None or (type(one["save"]) is int and one["save"] >= 0) for one in files.values())
            and found["size"] == sum(one["size"] for one in files.values())
            and found["version"] == version_of(files)
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _inside(names: Set[str]) -> bool:
    """Whether every name stays in its folder and outside of the folders of ddpctl."""
    return not any(part in ("", ".", "..", FOLDER) or "\0" in part for name in names for part in name.split("/"))


def own_manifest(chosen: Chosen, host: str) -> Manifest:
    """Return the manifest of a complete checkpoint in the own folder of ``host``."""
    return {
        "schema": SCHEMA,
        "entry": chosen.entry,
        "host": host,
        "step": chosen.step,
        "time": chosen.time,
        "size": sum(file["size"] for file in chosen.files.values()),
        "files": chosen.files,
        "references": chosen.references,
        "version": version_of(chosen.files),
        "serial": chosen.serial,
        "run": chosen.run,
        "attempt": chosen.attempt,
        "clock": chosen.clock,
    }
