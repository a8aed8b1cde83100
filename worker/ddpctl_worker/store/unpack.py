"""Unpacks a code archive: only plain files, folders and links that stay inside; mode bits are kept."""

from __future__ import annotations

import os
import shutil
import tarfile
from typing import IO, List

from ddpctl_worker.store.limits import READ_BYTES
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import CORRUPT


def unpack(archive: str, folder: str) -> None:
    """Unpack ``archive`` (tar, gzip or not) into the new ``folder``, whole or not at all.

    Raises:
        WorkerError: CORRUPT, if the archive is broken or a member leads out of it. OSError: the disk refuses a file.
    """
    staged = folder + ".part"
    shutil.rmtree(staged, ignore_errors=True)
    os.mkdir(staged, 0o700)
    try:
        with tarfile.open(archive, "r:*") as tar:
            _extract(tar, os.path.realpath(staged))
    except (tarfile.TarError, EOFError) as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise WorkerError(CORRUPT, "the archive %s is broken: %s" % (archive, error)) from None
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    os.rename(staged, folder)


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
    # Links come last, and no link lies below another: no file is ever written through a link.
    for member in links:
        _link(root, member)
    # The targets are checked once all links are there: `..` after a link is the folder above its target.
    for member in links:
        _check_stays(root, os.path.realpath(_inside(root, member.name)), member)
    for member in reversed(folders):
        os.chmod(_inside(root, member.name), member.mode & 0o777 | 0o700)


def _write(source: IO[bytes], path: str, mode: int) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as target:
        shutil.copyfileobj(source, target, READ_BYTES)
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
