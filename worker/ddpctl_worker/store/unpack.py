"""Unpacks a code archive: only plain files, folders and links that stay inside; mode bits are kept."""

from __future__ import annotations

import os
import shutil
import tarfile
from typing import IO, List

from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import CORRUPT


def unpack(archive: str, folder: str) -> None:
    """``archive`` (tar, gzip or not) into the new ``folder``, all of it or nothing.

    Raises:
        WorkerError: CORRUPT, when it is broken or a member would reach outside.
    """
    aside = folder + ".part"
    shutil.rmtree(aside, ignore_errors=True)
    os.mkdir(aside, 0o700)
    try:
        with tarfile.open(archive, "r:*") as tar:
            _extract(tar, os.path.realpath(aside))
    except (tarfile.TarError, EOFError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise WorkerError(CORRUPT, "the archive %s is broken: %s" % (archive, error)) from None
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    os.rename(aside, folder)


def _extract(tar: tarfile.TarFile, root: str) -> None:
    folders: List[tarfile.TarInfo] = []
    links: List[tarfile.TarInfo] = []
    for member in tar:
        path = _inside(root, member.name)
        if member.isdir():
            os.makedirs(path, 0o700, exist_ok=True)
            folders.append(member)
        elif member.isfile():
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            _write(source, path, member.mode)
        elif member.issym():
            links.append(member)
        else:
            raise WorkerError(CORRUPT, "%s in the archive is neither file, folder nor symbolic link" % member.name)
    # Links come last, and none lies below another: nothing is ever written through one.
    for member in links:
        _link(root, member)
    # Where a link leads is known only once all are there: `..` after a link is the folder above its target.
    for member in links:
        _check_stays(root, os.path.realpath(_inside(root, member.name)), member)
    for member in reversed(folders):
        os.chmod(_inside(root, member.name), member.mode & 0o777 | 0o700)


def _write(source: IO[bytes], path: str, mode: int) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        os.fchmod(target.fileno(), mode & 0o777)  # no set-uid, no sticky


def _link(root: str, member: tarfile.TarInfo) -> None:
    path = _inside(root, member.name)
    if os.path.isabs(member.linkname):
        raise WorkerError(CORRUPT, "the link %s in the archive points to %s" % (member.name, member.linkname))
    folder = os.path.dirname(path)
    _check_stays(root, os.path.normpath(os.path.join(folder, member.linkname)), member)
    if os.path.realpath(folder) != folder:
        raise WorkerError(CORRUPT, "the link %s in the archive lies below another link" % member.name)
    os.makedirs(folder, 0o700, exist_ok=True)
    os.symlink(member.linkname, path)


def _check_stays(root: str, goal: str, member: tarfile.TarInfo) -> None:
    if goal != root and not goal.startswith(root + os.sep):
        raise WorkerError(CORRUPT, "the link %s in the archive points outside: %s" % (member.name, member.linkname))


def _inside(root: str, name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or not name:
        raise WorkerError(CORRUPT, "%r in the archive would lie outside of it" % name)
    return os.path.normpath(os.path.join(root, name))
