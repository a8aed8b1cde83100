"""Paths of the working folder that live in the job's folder for checkpoints, for scripts that know nothing of ddpctl.

Each is a symbolic link. A folder behind one can be used like any other. A file can be read and written through it, but
``os.replace(aside, "snapshot.pt")`` puts a real file in the link's place. So the keeper looks whether that has
happened, and gives such a file its second name, a hard link, in the folder for checkpoints, once it is whole: a script
may as well remove the link and take its time to write. It is copied only where there are no hard links from one folder
to the other. What the keeper did not live to see is found by the next attempt,
which has the same working folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from typing import Dict, Iterable, Optional

from ddpctl_worker import fs
from ddpctl_worker.channel import WorkerError
from ddpctl_worker.checkpoint.entries import Stamp
from ddpctl_worker.checkpoint.whole import whole
from ddpctl_worker.contract import BAD_REQUEST, UNSAFE_PATH


def tie(cwd: str, folder: str, paths: Iterable[str], again: bool = False) -> Dict[str, str]:
    """Make the links: the path in ``cwd`` of each -> where it leads.

    What the code brings under such a name moves to ``folder``, unless that has it from an earlier run. With ``again``,
    when an attempt has run in ``cwd`` before, a file there is what its script wrote, and nothing of it is deleted.

    Raises:
        WorkerError: such a path leads out of its folder, or is a file here and a folder there.
        OSError: a link cannot be made.
    """
    return dict(_tie(cwd, folder, path, again) for path in paths)


def replaced(here: str, there: str) -> Optional[Stamp]:
    """The real file that a script has put in the link's place, while ``there`` is another one; None: there is none."""
    try:
        found = os.lstat(here)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return None
    if os.path.lexists(there) and os.path.samestat(found, os.lstat(there)):
        return None
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def adopt(here: str, there: str) -> bool:
    """Let ``there`` be the file that a script has put in the link's place, once that is known to be whole: it takes the
    place of the one before. Whether there was anything to do."""
    if replaced(here, there) is None:
        return False
    aside = _beside(there, os.urandom(4).hex())
    try:
        os.link(here, aside)
    except OSError:  # another file system, or one without hard links
        if os.path.lexists(there) and _stamp(there) == _stamp(here):
            return False
        if not _copied(here, aside):
            return False
    os.replace(aside, there)
    return True


def _copied(here: str, aside: str) -> bool:
    """Whether it did not change meanwhile; otherwise nothing is left of the copy."""
    before = _stamp(here)
    try:
        shutil.copy2(here, aside)
        if _stamp(here) == before:
            return True
    except BaseException:
        fs.discard(aside)
        raise
    os.unlink(aside)
    return False


def _stamp(path: str) -> "tuple[int, int]":
    found = os.lstat(path)
    return found.st_size, found.st_mtime_ns


def _beside(there: str, ending: str) -> str:
    """A name in the same folder that is no checkpoint's."""
    return os.path.join(os.path.dirname(there), ".%s.%s" % (os.path.basename(there), ending))


def _tie(cwd: str, folder: str, path: str, again: bool) -> "tuple[str, str]":
    here, there = os.path.join(cwd, path.rstrip("/")), os.path.join(folder, path.rstrip("/"))
    _make_parent(cwd, here)
    _make_parent(folder, there)
    if os.path.islink(here):
        if os.readlink(here) == there:
            return here, there
        raise WorkerError(BAD_REQUEST, "%s is a symbolic link in the code" % path, "remove it from checkpoint.paths")
    if os.path.isdir(here):
        _move(here, there, again)
    elif os.path.lexists(here):
        if os.path.isdir(there):
            raise WorkerError(BAD_REQUEST, "%s is a file in the code, and %s is a folder" % (path, there))
        if os.path.lexists(there):
            _choose(here, there, again)
        else:
            shutil.move(here, there)
    if not os.path.lexists(there) and is_folder(path):
        os.mkdir(there, 0o700)
    os.symlink(there, here)
    return here, there


def is_folder(path: str) -> bool:
    """Whether a path stands for a folder where nothing is there yet: it ends with ``/``, or its name has no ending."""
    return path.endswith("/") or not os.path.splitext(path)[1]


def _make_parent(top: str, path: str) -> None:
    parent = os.path.dirname(path)
    real = os.path.realpath(top)
    if not (os.path.realpath(parent) + os.sep).startswith(real + os.sep):
        raise WorkerError(UNSAFE_PATH, "%s leads out of %s through a symbolic link" % (path, top))
    os.makedirs(parent, 0o700, exist_ok=True)


def _choose(here: str, there: str, again: bool) -> None:
    """Of two files the one ``there`` counts, and what the code brings can go. What a script wrote takes its place if it
    is newer and says itself that nothing is cut off; the other one is set aside."""
    if not again or os.path.samestat(os.lstat(here), os.lstat(there)):
        fs.remove(here)
        return
    aside = _beside(there, "aside-%s.%s" % (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), os.urandom(4).hex()))
    if _is_file(here) and _is_file(there) and _stamp(here)[1] > _stamp(there)[1] and whole(here):
        os.rename(there, aside)
        shutil.move(here, there)
    else:
        shutil.move(here, aside)


def _is_file(path: str) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _move(here: str, there: str, again: bool) -> None:
    """What the folder has and the job does not have yet; it is gone afterwards."""
    if not os.path.lexists(there):
        shutil.move(here, there)
        return
    if not os.path.isdir(there) or os.path.islink(there):
        raise WorkerError(BAD_REQUEST, "%s is a folder in the code, and %s is none" % (here, there))
    for name in os.listdir(here):
        if not os.path.lexists(os.path.join(there, name)):
            shutil.move(os.path.join(here, name), os.path.join(there, name))
        elif os.path.isdir(os.path.join(here, name)) and os.path.isdir(os.path.join(there, name)):
            _move(os.path.join(here, name), os.path.join(there, name), again)
        else:
            _choose(os.path.join(here, name), os.path.join(there, name), again)
    shutil.rmtree(here)
    fs.sync_folder(there)
