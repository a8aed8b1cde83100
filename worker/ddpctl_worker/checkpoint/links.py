"""Links from the working folder, for scripts that know nothing of ddpctl: into the job's folder for checkpoints, and to
places of the host.

The script uses the folder behind a link like any other folder.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Iterable, Mapping

from ddpctl_worker.machine import fs
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, UNSAFE_PATH


def link_folders(cwd: str, folder: str, paths: Iterable[str], again: bool = False) -> None:
    """Make each of ``paths`` in ``cwd`` a link to a folder of that name in ``folder``.

    Files of the code under such a name move to ``folder``, unless ``folder`` has them from an earlier run. With
    ``again`` an attempt has run in ``cwd`` before, and its script wrote these files: they are set aside, never deleted.

    Raises:
        WorkerError: a path leads out of its folder, or is a file.
        OSError: a link cannot be made.
    """
    for path in paths:
        _link(cwd, folder, path.rstrip("/"), again)


def _link(cwd: str, folder: str, path: str, again: bool) -> None:
    here, there = os.path.join(cwd, path), os.path.join(folder, path)
    _make_parent(cwd, here)
    _make_parent(folder, there)
    for place, where in ((here, "the code"), (there, "the job's checkpoints")):
        if os.path.lexists(place) and not os.path.isdir(place):
            text = "%s is a file in %s, and checkpoint.paths takes folders only" % (path, where)
            raise WorkerError(BAD_REQUEST, text, "have the script save to a folder, and name that")
    if os.path.islink(here):
        if os.readlink(here) == there:
            return
        raise WorkerError(BAD_REQUEST, "%s is a symbolic link in the code" % path, "remove it from checkpoint.paths")
    if os.path.islink(there):
        raise WorkerError(UNSAFE_PATH, "%s is a symbolic link" % there, "remove it")
    if os.path.isdir(here):
        _move(here, there, again)
    elif not os.path.isdir(there):
        os.mkdir(there, 0o700)
    os.symlink(there, here)


def link_places(cwd: str, places: Mapping[str, str]) -> None:
    """Make each name of ``places`` in ``cwd`` a link to its place on this host, an absolute path.

    Raises:
        WorkerError: a place does not exist, or the name is taken by the code.
        OSError: a link cannot be made.
    """
    for name, place in places.items():
        here = os.path.join(cwd, name)
        if not os.path.exists(place):
            raise WorkerError(BAD_REQUEST, "%s is not on this host" % place, "put it there, or correct links")
        if os.path.islink(here) and os.path.exists(here):
            continue  # an earlier attempt has made it, and keeps its version of pushed data
        _make_parent(cwd, here)
        if os.path.lexists(here):
            raise WorkerError(BAD_REQUEST, "%s is there already" % name, "remove it from the code, or from links")
        os.symlink(place, here)


def _make_parent(top: str, path: str) -> None:
    parent = os.path.dirname(path)
    real = os.path.realpath(top)
    if not (os.path.realpath(parent) + os.sep).startswith(real + os.sep):
        raise WorkerError(UNSAFE_PATH, "%s leads out of %s through a symbolic link" % (path, top))
    os.makedirs(parent, 0o700, exist_ok=True)


def _move(here: str, there: str, again: bool) -> None:
    """Move files that ``there`` lacks, and remove ``here``."""
    if not os.path.lexists(there):
        shutil.move(here, there)
        return
    for name in os.listdir(here):
        one, other = os.path.join(here, name), os.path.join(there, name)
        if not os.path.lexists(other):
            shutil.move(one, other)
        elif os.path.isdir(one) and os.path.isdir(other) and not os.path.islink(one):
            _move(one, other, again)
        elif again:
            shutil.move(one, _name_aside(other))
        else:
            fs.remove_tree(one)
    shutil.rmtree(here)
    fs.sync_folder(there)


def _name_aside(there: str) -> str:
    """Return a hidden name in the same folder, which never counts as a checkpoint."""
    when, number = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), os.urandom(4).hex()
    return os.path.join(os.path.dirname(there), ".%s.aside-%s.%s" % (os.path.basename(there), when, number))
