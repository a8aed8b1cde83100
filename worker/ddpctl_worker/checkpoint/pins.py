"""Pinned versions of a checkpoint: hard links that keep a version although the script replaces its files.

``<folder>/.ddpctl/pinned/<entry>/<number>/`` holds a link to each file of one version. A rename over the original
leaves the link alone. A write into the original changes both, and then the version is gone. The keeper pins the version
that it judges and the newest version with a manifest, so at most two replaced versions take space on the disk.

A file system without hard links has no pins: there a checkpoint counts only while it lies under its own name.
"""

from __future__ import annotations

import hashlib
import os
from typing import Iterable, List, Optional

from ddpctl_worker.checkpoint.folder import files_below
from ddpctl_worker.checkpoint.manifest import file_name, file_of, fits
from ddpctl_worker.machine import fs
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import FOLDER, Files

PINNED = "pinned"
_FILE = "="  # the name of an entry that is a file


def pin(folder: str, entry: str, files: Files) -> Optional[str]:
    """Pin this version of an entry; return the folder with its links, or ``None`` if the version has changed meanwhile.

    Raises:
        OSError: the file system has no hard links, or the disk is full.
    """
    place = os.path.join(_folder(folder, entry), _number(files))
    if not os.path.isdir(place):
        aside = "%s.new" % place
        fs.remove_tree(aside)
        os.makedirs(aside, 0o700)
        try:
            for path in files:
                target = pinned_path(aside, path)
                os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
                os.link(os.path.join(folder, entry, path) if path else os.path.join(folder, entry), target)
            os.rename(aside, place)
        except FileNotFoundError:
            return None
        finally:
            fs.remove_tree(aside)
    if read_pin(place) == files:
        return place
    fs.remove_tree(place)
    return None


def pinned_path(place: str, path: str) -> str:
    """Return the path of a file of a pinned version."""
    return os.path.join(place, path or _FILE)


def read_pin(place: str) -> Files:
    """Return the present files of a pinned version; {} if it is gone."""
    found = files_below(place)
    return {"": found[_FILE]} if set(found) == {_FILE} else found


def find_pin(folder: str, manifest: Manifest) -> Optional[str]:
    """Return the folder in which every file of a manifest is pinned unchanged; ``None``: there is no such folder."""
    for place in _places(folder, manifest["entry"]):
        if fits(manifest, read_pin(place)):
            return place
    return None


def find_path_now(folder: str, manifest: Manifest, path: str) -> str:
    """Return the present path of a file of a manifest: its pin, or its own name."""
    place = find_pin(folder, manifest)
    return pinned_path(place, path) if place is not None else file_of(folder, manifest["entry"], path)


def unpin(folder: str, entry: str, but: Iterable[Optional[str]] = ()) -> None:
    """Remove the pinned versions of an entry, except for the places in ``but``."""
    kept = set(but)
    for place in _places(folder, entry):
        if place not in kept:
            fs.remove_tree(place)
    if not kept - {None}:
        fs.remove_tree(_folder(folder, entry))


def unpin_unknown(folder: str, entries: Iterable[str]) -> None:
    """Remove the pinned versions of all entries, except for ``entries``.

    Raises:
        OSError: a part stays; everything else was removed.
    """
    top, known = os.path.join(folder, FOLDER, PINNED), {file_name(entry) for entry in entries}
    trouble: Optional[OSError] = None
    try:
        names = sorted(os.listdir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        try:
            if name not in known:
                fs.remove_tree(os.path.join(top, name))
        except OSError as error:
            trouble = error
    if trouble is not None:
        raise trouble


def _folder(folder: str, entry: str) -> str:
    return os.path.join(folder, FOLDER, PINNED, file_name(entry))


def _places(folder: str, entry: str) -> List[str]:
    top = _folder(folder, entry)
    try:
        return [os.path.join(top, name) for name in sorted(os.listdir(top))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _number(files: Files) -> str:
    return hashlib.sha256(repr(sorted(files.items())).encode("utf-8", "surrogateescape")).hexdigest()[:16]
