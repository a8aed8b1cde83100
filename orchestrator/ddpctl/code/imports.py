"""Reads a job's code: the imports of its program, and whether the code mentions a name."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from ddpctl.code.archive import CodeArchive
from ddpctl.code.limits import IMPORTS_BYTES, MENTIONS_FILES
from ddpctl.spec.imports import Imports, read_imports
from ddpctl.spec.job import JobSpec


def code_imports(archive: CodeArchive | None, job: JobSpec) -> Imports | None:
    """Return the imports of the job's program, or None if its text is not here or does not run (``workdir``)."""
    if archive is None or not archive.names or job.code is None or job.workdir is not None:
        return None
    root = Path(job.code)
    names = frozenset(_names(archive, root))

    def read(name: str) -> bytes | None:
        if name not in names:
            return None
        try:
            return (root / name).read_bytes() if (root / name).stat().st_size <= IMPORTS_BYTES else None
        except OSError:  # deleted since it was packed
            return None

    search = [part or "." for part in job.env.get("PYTHONPATH", "/").split(":") if not part.startswith(("/", "~"))]
    script = _target(root, job.script, names) if job.script else None
    return read_imports(read, names, script=script, module=job.module, search=search)


def _target(root: Path, script: str, names: Collection[str]) -> str:
    """Return the file behind a script that is a link: Python looks for modules beside that file."""
    target = (root / script).resolve()
    inside = target.is_relative_to(root.resolve())
    name = target.relative_to(root.resolve()).as_posix() if inside else script
    return name if name in names else script


def _names(archive: CodeArchive, root: Path) -> Iterator[str]:
    """Yield the names in the archive, and the names that its links to folders lead to."""
    yield from archive.names
    for name in archive.names:
        if (root / name).is_symlink() and (root / name).is_dir():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), str((root / name).readlink())))
            below = "" if target == "." else f"{target}/"
            yield from (f"{name}/{inner[len(below) :]}" for inner in archive.names if inner.startswith(below))


def code_mentions(archive: CodeArchive, name: str) -> bool:
    """Return whether a file of the archive contains this name; True if there is too much to read."""
    mark = name.encode()
    with tarfile.open(archive.path, "r:gz") as tar:
        for number, member in enumerate(tar):
            if number >= MENTIONS_FILES or member.size > IMPORTS_BYTES:
                return True
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None and mark in stream.read():
                return True
    return False
