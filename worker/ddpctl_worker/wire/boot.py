"""Receives the worker on a node and runs it. The orchestrator sends this text in the header (see contract.py).

The text runs before anything else is known about the node. It must parse under any Python from 3.4 on, to report that
the interpreter is too old. The name ``ddpctl`` (the header, a dict) exists when it runs.
"""

import contextlib
import os
import stat
import sys


class Refusal(Exception):
    """``kind``, ``message`` and ``hint`` of contract.py's error frame."""

    def __init__(self, kind: str, message: str, hint: object = None) -> None:
        Exception.__init__(self, message)
        self.kind = kind
        self.message = message
        self.hint = hint


def boot(header: dict) -> int:  # type: ignore[type-arg]  # ``dict[...]`` is too new for this file
    """Answer the header, receive the package if it is missing, and run it."""

    def say(word: str) -> None:
        os.write(1, ("%s %s %s\n" % (header["banner"], header["nonce"], word)).encode("ascii"))

    if sys.version_info[:2] < tuple(header["min_python"]):
        say("old %d.%d.%d" % sys.version_info[:3])
        return 0
    umask = os.umask(0o077)
    base = os.path.expanduser(header["base_dir"])
    asked = False
    try:
        root = os.path.join(base, "worker")
        for path in (base, root):
            ensure(path)
        folder = os.path.join(root, header["hash"])
        if os.path.lexists(folder):
            own(folder)
            mark_used(folder)
            say("have")
        else:
            say("need")
            asked = True
            unpack(receive(header["size"]), header["hash"], root, folder)
    except (Refusal, OSError) as error:
        if not asked:
            say("fail")
        refuse(as_refusal(error, base))
        return 0
    sys.path.insert(0, folder)
    os.umask(umask)  # the worker sets its own umask, and passes the login's on to a job
    from ddpctl_worker.__main__ import main

    return main()


def refuse(error: Refusal) -> None:
    """Send the error frame that ends the connection."""
    import json

    fail = {"ok": False, "error": {"kind": error.kind, "message": error.message, "hint": error.hint}}
    os.write(1, json.dumps(fail).encode("ascii") + b"\n")


def as_refusal(error: Exception, base: str) -> Refusal:
    """Return an OSError as a Refusal with a hint."""
    import errno

    if isinstance(error, Refusal):
        return error
    code = getattr(error, "errno", None)
    message = "%s: %s" % (getattr(error, "filename", None) or base, getattr(error, "strerror", None) or error)
    hint = "or move `base_dir:` in the inventory to a disk with room"
    if code == errno.ENOSPC or code == getattr(errno, "EDQUOT", -1):
        return Refusal("no_space", message, "free some space there, " + hint)
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Refusal("unwritable", message, "make it writable, " + hint)
    if code in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP):
        return Refusal("unsafe_path", message, "a file is in the way: remove it, " + hint)
    return Refusal("os_error", message, hint)


def ensure(path: str) -> None:
    """Make sure that ``path`` is a folder of this user. Creates a missing folder."""
    if not os.path.lexists(path):
        try:
            os.makedirs(path, 0o700)
        except OSError:
            if not os.path.isdir(path):  # another controller may have made it just now
                raise
    own(path)


def own(path: str) -> None:
    """Raise Refusal unless ``path`` is a real folder of this user that no other user can write."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise Refusal("unsafe_path", "%s is a symbolic link" % path, "name its target as `base_dir:`, or remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("unsafe_path", "%s is not a folder" % path, "remove it, or choose another `base_dir:`")
    if found.st_uid != os.geteuid():
        raise Refusal(
            "unsafe_path",
            "%s belongs to user %d, not to this account (%d)" % (path, found.st_uid, os.geteuid()),
            "choose another `base_dir:`, or give the folder to this account",
        )
    if found.st_mode & 0o022:
        raise Refusal(
            "unsafe_path", "%s can be written by others" % path, "run `chmod go-w` on it, or choose another `base_dir:`"
        )


def mark_used(folder: str) -> None:
    """Record the use of a worker, for gc."""
    with contextlib.suppress(OSError):  # a disk that became read-only
        os.utime(folder)


def receive(size: int) -> bytes:
    """Read exactly ``size`` bytes from stdin."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 16))
        if not part:
            raise Refusal("corrupt", "the worker's package stopped with %d bytes missing" % size)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def unpack(data: bytes, digest: str, root: str, folder: str) -> None:
    """Unpack the zip under its final name: complete, or not at all. Two controllers at the same time both succeed."""
    import errno
    import hashlib
    import io
    import shutil
    import tempfile
    import zipfile

    if hashlib.sha256(data).hexdigest() != digest:
        raise Refusal("corrupt", "the worker's package arrived damaged")
    aside = tempfile.mkdtemp(prefix=".new-", dir=root)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        made = {aside}
        for name in archive.namelist():
            parts = name.split("/")
            if ".." in parts or "" in parts or "\\" in name:
                raise Refusal("corrupt", "the worker's package holds a strange name")
            path = os.path.join(aside, *parts)
            if os.path.dirname(path) not in made:
                os.makedirs(os.path.dirname(path), 0o700)
                made.add(os.path.dirname(path))
            with open(path, "xb") as out:
                out.write(archive.read(name))
                out.flush()
                os.fsync(out.fileno())
        for path in made:
            sync(path)
        try:
            os.rename(aside, folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            own(folder)  # the other controller's folder is complete as well
        sync(root)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def sync(path: str) -> None:
    """Make a folder's entries survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


if "ddpctl" in globals():
    sys.exit(boot(globals()["ddpctl"]))
