"""File systems: room, kind, and whether a folder can really be written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.facts import read_text

_NOEXEC = getattr(os, "ST_NOEXEC", 8)


def disk(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """The file system that holds ``params["path"]`` (or its nearest parent that exists): sizes in bytes.

    ``write_error`` is None when a file of one page could be created, written and removed there.
    """
    path = os.path.abspath(os.path.expanduser(params["path"]))
    folder = nearest(path)
    room = os.statvfs(folder)
    owner = os.stat(folder)
    mount, kind = mount_of(folder)
    return {
        "path": path,
        "exists": os.path.isdir(path),
        "folder": folder,
        "total": room.f_blocks * room.f_frsize,
        "free": room.f_bavail * room.f_frsize,
        "inodes": room.f_files,
        "inodes_free": room.f_favail,
        "read_only": bool(room.f_flag & os.ST_RDONLY),
        "noexec": bool(room.f_flag & _NOEXEC),
        "mount": mount,
        "kind": kind,
        "owner": owner.st_uid,
        "mode": stat.S_IMODE(owner.st_mode),
        "uid": os.getuid(),
        "link": os.path.islink(path),
        "write_error": write_error(folder),
    }


def nearest(path: str) -> str:
    """The path itself or its nearest parent that is a folder."""
    while not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    return path


def write_error(folder: str) -> Optional[str]:
    """Why a small file cannot be written there; None when it can. Nothing is left behind."""
    try:
        handle, name = tempfile.mkstemp(prefix=".ddpctl-probe-", dir=folder)
    except OSError as error:
        return _reason(error)
    try:
        os.write(handle, b"\0" * 4096)
        return None
    except OSError as error:
        return _reason(error)
    finally:
        os.close(handle)
        os.unlink(name)


def _reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "?")
    return "%s (%s)" % (os.strerror(error.errno or 0), name)


def mount_of(folder: str) -> Tuple[str, str]:
    """Mount point and kind of file system: the longest mount point that is a parent, the last one mounted there."""
    real = os.path.realpath(folder)
    best: List[str] = ["/", "?"]
    for line in read_text("/proc/self/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = [point, fields[2]]
    return best[0], best[1]
