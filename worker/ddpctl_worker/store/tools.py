"""Programs that ddpctl brings to the node (uv, py-spy), made from their blobs: ``<base_dir>/tools/NAME-SHA256``."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import IO, Any, Dict

from ddpctl_worker.machine.fs import own_folder
from ddpctl_worker.store.blobs import discard_if_corrupt, open_blob
from ddpctl_worker.store.limits import READ_BYTES
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT

_AGAIN = "run the same command again"


def program(base_dir: str, name: str, tool: Dict[str, Any]) -> str:
    """Return the path of the program ``name``, made from the blob of ``tool``: {"hash", "kind": "binary" | "wheel"}.

    Raises:
        WorkerError: the blob is missing or has changed, or its wheel lacks the program. OSError: the disk refuses it.
    """
    sha256 = tool["hash"]
    folder = own_folder(base_dir, "tools")
    path = os.path.join(folder, "%s-%s" % (name, sha256))
    fd = open_blob(base_dir, sha256)
    if fd is None:
        raise WorkerError(CORRUPT, "%s has not arrived" % name, _AGAIN)
    with os.fdopen(fd, "rb") as blob:
        os.utime(blob.fileno())  # the last use, for gc
        if _is_ours(path):
            os.utime(path)
            return path
        if discard_if_corrupt(base_dir, sha256):
            raise WorkerError(CORRUPT, "%s had changed on this disk and was removed" % name, _AGAIN)
        _make(path, name, blob, tool["kind"])
    return path


def _make(path: str, name: str, blob: IO[bytes], kind: str) -> None:
    """Write the program under a temporary name: a program that is still open for writing cannot run ("text file
    busy")."""
    import tempfile  # imported here: most starts need no new program

    handle, part = tempfile.mkstemp(prefix=name + "-", suffix=".part", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as out:
            if kind == "wheel":
                _unpack(name, blob, out)
            else:
                shutil.copyfileobj(blob, out, READ_BYTES)
            os.fsync(out.fileno())
        os.chmod(part, 0o700)
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _unpack(name: str, blob: IO[bytes], out: IO[bytes]) -> None:
    import zipfile

    try:
        with zipfile.ZipFile(blob) as wheel:
            member = next((path for path in wheel.namelist() if path.endswith(".data/scripts/" + name)), None)
            if member is None:
                raise WorkerError(BAD_REQUEST, "the wheel of %s has no %s in it" % (name, name))
            with wheel.open(member) as inner:
                shutil.copyfileobj(inner, out, READ_BYTES)
    except zipfile.BadZipFile as error:
        raise WorkerError(BAD_REQUEST, "the wheel of %s cannot be read: %s" % (name, error)) from None


def _is_ours(path: str) -> bool:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.isfile(path) and not os.path.islink(path) and info.st_uid == os.geteuid() and info.st_size > 0
