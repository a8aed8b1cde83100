"""Files of the job on this node: are they there, and are they the same as on the others."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, Iterator, Optional, Tuple

from ddpctl_worker.facts import read_text

_MOST_FILES = 20000
_WALK_S = 2.0
_TEXT_LIMIT = 256 * 1024
_HASH_LIMIT = 64 << 20
_CODE = (".py", ".pyx", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".sh", ".cu", ".cpp")
_SKIPPED = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"})


def path(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """``params["path"]`` (relative to ``params["workdir"]``): kind, readable, and for a folder its files and bytes,
    counted for at most two seconds (``complete`` says whether that was enough)."""
    where = absolute(params["path"], params.get("workdir"))
    found: Dict[str, Any] = {"path": where, "exists": os.path.exists(where), "kind": None, "readable": False}
    if not found["exists"]:
        found["link"] = os.readlink(where) if os.path.islink(where) else None
        return found
    folder = os.path.isdir(where)
    found["kind"] = "folder" if folder else "file"
    found["readable"] = os.access(where, os.R_OK | (os.X_OK if folder else 0))
    if folder and found["readable"]:
        found.update(_count(where))
    elif not folder:
        found.update(files=1, bytes=os.path.getsize(where), complete=True)
    return found


def script(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """A script that is already on the node: its hash and its text, at most 256 KiB, for what it asks of a launcher."""
    where = absolute(params["path"], params.get("workdir"))
    if not os.path.isfile(where):
        return {"path": where, "exists": os.path.exists(where), "sha256": None, "text": None}
    with open(where, "rb") as file:
        data = file.read(_HASH_LIMIT)
    text = data[:_TEXT_LIMIT].decode("utf-8", "replace")
    return {"path": where, "exists": True, "sha256": hashlib.sha256(data).hexdigest(), "text": text}


def tree(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """One hash over the names and contents of a folder's code files, and the commit that git has checked out."""
    root = absolute(params["path"], None)
    digest = hashlib.sha256()
    count, size, complete = 0, 0, True
    until = time.monotonic() + _WALK_S
    for name, status in _files(root):
        if not name.endswith(_CODE):
            continue
        count, size = count + 1, size + status.st_size
        if count > _MOST_FILES or size > _HASH_LIMIT or time.monotonic() > until:
            complete = False
            break
        with open(name, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        digest.update(("%s\0%s\n" % (os.path.relpath(name, root), content)).encode("utf-8", "surrogateescape"))
    return {
        "path": root,
        "exists": os.path.isdir(root),
        "hash": digest.hexdigest() if complete else None,
        "files": count,
        "git": git_commit(root),
    }


def git_commit(folder: str) -> Optional[str]:
    """The commit that HEAD names, read from the files: git itself may not be there."""
    git = os.path.join(folder, ".git")
    head = read_text(os.path.join(git, "HEAD")).strip()
    if not head.startswith("ref: "):
        return head or None
    name = head[5:]
    loose = read_text(os.path.join(git, name)).strip()
    if loose:
        return loose
    for line in read_text(os.path.join(git, "packed-refs")).splitlines():
        if line.endswith(" " + name):
            return line.split(" ", 1)[0]
    return None


def absolute(name: str, workdir: Optional[str]) -> str:
    """A path of the inventory on this node."""
    return os.path.normpath(os.path.join(os.path.expanduser(workdir or "~"), os.path.expanduser(name)))


def _count(root: str) -> Dict[str, Any]:
    count, size = 0, 0
    until = time.monotonic() + _WALK_S
    for _, status in _files(root):
        count, size = count + 1, size + status.st_size
        if count >= _MOST_FILES or time.monotonic() > until:
            return {"files": count, "bytes": size, "complete": False}
    return {"files": count, "bytes": size, "complete": True}


def _files(root: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Every regular file below a folder, in an order that is the same on every node."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            full = os.path.join(folder, name)
            try:
                status = os.stat(full)
            except OSError:  # a dangling link, or gone meanwhile
                continue
            yield full, status
