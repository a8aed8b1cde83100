"""What ddpctl knows of an entry: its files with their hashes, in ``<folder>/.ddpctl/<entry>.json``.

    {"schema": 1, "entry": "step_120", "host": who wrote it, "step": 120 or null, "time": ISO 8601, "size": bytes,
     "files": {path within the entry ("" for an entry that is a file): {"size", "sha256", "mtime_ns", "save"}},
     "references": {path: smallest size} or null, "version": hex,
     "serial": number of the job's start, "run": id or null, "attempt": number, "clock": host}

One for each entry and host that wrote a part of it. ``references`` is what ``.metadata`` refers to, on the host that
has it. ``version`` names the content: the same entry may be written again. ``serial``, ``run`` and ``attempt`` say who
wrote it (attempts.py); 0, null and 0 is what was there before any run. ``save`` counts the saves of that attempt under
this name: 0 is a file that an attempt before wrote, and null a save that cannot be told from others (saves.py).

``/`` in an entry's name is ``%2F`` in that of its file. The manifest is written after the files, and aside, so what has
none is not known to be whole. A file whose size or time no longer fits makes it stale, unless that version is pinned
(pins.py). A copy on another host has the same manifest, and the files the same times. ``time`` is that of the newest
file by the clock of the host ``clock``, or later: of two in a series the one that was written later has the later time,
also where the clock was set back in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from ddpctl_worker.checkpoint import metadata
from ddpctl_worker.checkpoint.limits import BLOCK_BYTES, MOST_INDEX_BYTES
from ddpctl_worker.machine import fs
from ddpctl_worker.machine.notes import iso
from ddpctl_worker.rules.attempts import BEFORE_ANY, AttemptId, attempt_of
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import FOLDER, METADATA, Files, Stamp, step_of
from ddpctl_worker.rules.order import moment
from ddpctl_worker.wire.channel import WorkerError

SCHEMA = 1
Tell = Callable[[int], None]
_HASH = re.compile(r"[0-9a-f]{64}\Z")


class Unsettled(Exception):
    """The entry changed while it was read, or its index is not one; why."""


def path_of(folder: str, entry: str) -> str:
    """The manifest's file of an entry in ``folder``."""
    return os.path.join(folder, FOLDER, "%s.json" % file_name(entry))


def file_name(entry: str) -> str:
    """The name of an entry as that of one file."""
    return entry.replace("%", "%25").replace("/", "%2F")


def file_of(folder: str, entry: str, name: str) -> str:
    """The path of a file of an entry in ``folder``; ``name`` is its key in ``files``."""
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
    """The manifest of an entry whose files have just been looked at. Reads every byte, and says to ``read_on`` how many
    at a time. ``paths``: where each file lies; ``saves``: the save of each; ``after``: the entry is newer than what is
    of that time, whatever the clock says.

    Raises:
        Unsettled: a file has changed since, or ``.metadata`` is not what torch writes.
        OSError: a file cannot be read.
    """
    found = {name: _described(paths[name], files[name], read_on) for name in sorted(files)}
    for name, file in found.items():
        file["save"] = saves[name]
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
        **attempt.to_json(),
        "clock": host,
    }


def write(folder: str, manifest: Manifest) -> None:
    """Replace the entry's manifest; it survives a power loss."""
    path = path_of(folder, manifest["entry"])
    fs.private_dir(os.path.dirname(path))
    fs.write_json(path, manifest)


def read(folder: str, entry: str) -> Optional[Manifest]:
    """The manifest of an entry; None where there is none that is valid."""
    return _read(path_of(folder, entry), entry)


def read_all(folder: str) -> List[Manifest]:
    """Every valid manifest in ``folder``. Whether the files still fit is another question: ``fits``."""
    try:
        names = sorted(os.listdir(os.path.join(folder, FOLDER)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    entries = [name[: -len(".json")].replace("%2F", "/").replace("%25", "%") for name in names if _is_one(name)]
    found = [read(folder, entry) for entry in entries]
    return [one for one in found if one is not None]


def discard(folder: str, entry: str) -> None:
    """Remove the manifest: what lies there is no longer known to be whole."""
    fs.discard(path_of(folder, entry))


def fits(manifest: Manifest, files: Files) -> bool:
    """Whether the files are those that were hashed, by size and time. ``files``: as they are now."""
    told: Dict[str, Any] = manifest["files"]
    return set(told) == set(files) and all(
        (told[name]["size"], told[name]["mtime_ns"]) == (stamp.size, stamp.mtime_ns) for name, stamp in files.items()
    )


def wrong(folder: str, manifest: Manifest) -> List[str]:
    """The files of an entry that are missing or have other bytes than the manifest says. Reads every byte."""
    found = []
    for name, told in manifest["files"].items():
        try:
            path = file_of(folder, manifest["entry"], name)
            good = os.lstat(path).st_size == told["size"] and hash_of(path) == told["sha256"]
        except OSError:
            good = False
        if not good:
            found.append(name)
    return found


def version_of(files: Dict[str, Any]) -> str:
    """Names the content of an entry."""
    content = [[name, files[name]["size"], files[name]["sha256"]] for name in sorted(files)]
    return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()[:32]


def hash_of(path: str, read_on: Optional[Tell] = None) -> str:
    """SHA-256 of a plain file; a symbolic link is not followed."""
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


def _described(path: str, stamp: Stamp, read_on: Optional[Tell]) -> Dict[str, Any]:
    try:
        digest = hash_of(path, read_on)
        now = os.lstat(path)
    except FileNotFoundError:
        raise Unsettled("%s has vanished" % path) from None
    if (now.st_size, now.st_mtime_ns, now.st_ino) != tuple(stamp):
        raise Unsettled("%s has changed" % path)
    return {"size": stamp.size, "sha256": digest, "mtime_ns": stamp.mtime_ns}


def _references(paths: Mapping[str, str], files: Files) -> Optional[Dict[str, int]]:
    """What each ``.metadata`` of the entry refers to; None where it has none."""
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


def _is_one(name: str) -> bool:
    """Whether a name stands for a manifest: what is written aside has a longer ending."""
    return name.endswith(".json")


def _read(path: str, entry: str) -> Optional[Manifest]:
    try:
        found = fs.read_json(path)
    except (WorkerError, OSError):
        return None
    return found if found is not None and valid(found) and found["entry"] == entry else None


def valid(found: Manifest) -> bool:
    """Whether it has the form of a manifest, and is the one of the files that it lists."""
    try:
        files, sizes = found["files"], found["references"]
        return (
            found["schema"] == SCHEMA
            and isinstance(found["host"], str)
            and moment(found["time"]) > 0
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
    """Whether no name leads out of its folder, into another folder of ddpctl's, or is no name."""
    return not any(part in ("", ".", "..", FOLDER) or "\0" in part for name in names for part in name.split("/"))
