"""Reads a folder of checkpoints from the disk. ``rules.entries`` says which of its files and folders are entries."""

from __future__ import annotations

import os
import stat
from typing import Dict, List, Optional, Union

from ddpctl_worker.checkpoint.limits import MOST_DEPTH
from ddpctl_worker.rules.entries import Files, Stamp, Tree, entries_of, files_of, is_log, is_temporary


def list_entries(folder: str) -> Dict[str, Files]:
    """Return the present entries in ``folder`` by name. Files that vanish meanwhile are left out.

    A subfolder that cannot be listed counts as a file that cannot be read, so an entry with such a subfolder is not
    complete.

    Raises:
        OSError: ``folder`` itself cannot be listed.
    """
    return entries_of(_tree(folder, MOST_DEPTH))


def files_in(folder: str, entry: str) -> Files:
    """Return the present files of one entry; {} if it is gone."""
    *above, name = entry.split("/")
    found: Union[Stamp, Tree, None] = _tree(os.path.join(folder, *above), MOST_DEPTH - len(above), [name]).get(name)
    if found is None:
        return {}
    return {"": found} if isinstance(found, Stamp) else dict(files_of(found))


def files_below(folder: str) -> Files:
    """Return every present file in a folder, temporary names included; {} if the folder is gone."""
    try:
        return dict(files_of(_tree(folder, MOST_DEPTH, sorted(os.listdir(folder)))))
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _tree(folder: str, depth: int, only: Optional[List[str]] = None) -> Tree:
    found: Tree = {}
    for name in _names(folder) if only is None else only:
        path = os.path.join(folder, name)
        try:
            about = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            found[name] = Stamp(0, 0, 0)
            continue
        if stat.S_ISREG(about.st_mode):
            found[name] = Stamp(about.st_size, about.st_mtime_ns, about.st_ino)
        elif stat.S_ISDIR(about.st_mode) and depth:
            try:
                found[name] = _tree(path, depth - 1)
            except OSError:
                found[name] = Stamp(0, about.st_mtime_ns, 0)
    return found


def _names(folder: str) -> List[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not is_temporary(name) and not is_log(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
