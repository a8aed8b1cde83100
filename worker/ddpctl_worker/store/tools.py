"""Programs that came along for the node (uv, py-spy): each made from its blob, as ``<base_dir>/tools/NAME-SHA256``."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import IO, Any, Dict

from ddpctl_worker.machine.fs import own_folder
from ddpctl_worker.store.blobs import discard_if_corrupt, open_blob
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT

_AGAIN = "run the same command again"


def program(base_dir: str, name: str, tool: Dict[str, Any]) -> str:
    """The path of the program ``name``, made from the blob of ``tool``: {"hash", "kind": "binary" | "wheel"}.

    Raises:
        WorkerError: no such blob, it has changed, or it is a wheel without that program. OSError: it cannot be written.
    """
    sha256 = tool["hash"]
    folder = own_folder(base_dir, "tools")
    path = os.path.join(folder, "%s-%s" % (name, sha256))
    fd = open_blob(base_dir, sha256)
    if fd is None:
        raise WorkerError(CORRUPT, "%s has not arrived" % name, _AGAIN)
    with os.fdopen(fd, "rb") as blob:
        os.utime(blob.fileno())  # used now: gc goes by that
        if _is_ours(path):
            os.utime(path)
            return path
        if discard_if_corrupt(base_dir, sha256):
            raise WorkerError(CORRUPT, "%s had changed on this disk and was removed" % name, _AGAIN)
        _make(path, name, blob, tool["kind"])
    return path


def _make(path: str, name: str, blob: IO[bytes], kind: str) -> None:
    """Written under a name of its own and closed before anybody runs it: "text file busy" otherwise."""
    import tempfile  # here, for most starts find the program made

    handle, part = tempfile.mkstemp(prefix=name + "-", suffix=".part", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as out:
            if kind == "wheel":
                _unpack(name, blob, out)
            else:
                shutil.copyfileobj(blob, out, 1 << 20)
            os.fsync(out.fileno())
        os.chmod(part, 0o700)
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _unpack(name: str, blob: IO[bytes], out: IO[bytes]) -> None:
    """The program ``name`` out of its wheel."""
    import zipfile

    try:
        with zipfile.ZipFile(blob) as wheel:
            member = next((one for one in wheel.namelist() if one.endswith(".data/scripts/" + name)), None)
            if member is None:
                raise WorkerError(BAD_REQUEST, "the wheel of %s has no %s in it" % (name, name))
            with wheel.open(member) as inner:
                shutil.copyfileobj(inner, out, 1 << 20)
    except zipfile.BadZipFile as error:
        raise WorkerError(BAD_REQUEST, "the wheel of %s is none: %s" % (name, error)) from None


def _is_ours(path: str) -> bool:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.isfile(path) and not os.path.islink(path) and info.st_uid == os.geteuid() and info.st_size > 0
