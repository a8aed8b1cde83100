"""What a job's code says: which modules it imports, so that a check can tell what the job needs from what merely lies
around, and whether it mentions a name at all."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from ddpctl.code.archive import CodeArchive
from ddpctl.spec.script import imported_modules

MAX_FILES = 1000
MAX_BYTES = 4 << 20


def code_imports(archive: CodeArchive) -> frozenset[str] | None:
    """The top-level modules that the archive's Python files import; None where there is too much to read."""
    found: set[str] = set()
    for number, text in enumerate(_sources(archive)):
        if number >= MAX_FILES or text is None:
            return None
        found |= imported_modules(text)
    return frozenset(found)


def code_mentions(archive: CodeArchive, name: str) -> bool:
    """Whether any file of the archive holds this name; True where there is too much to read."""
    wanted = name.encode()
    with tarfile.open(archive.path, "r:gz") as tar:
        for number, member in enumerate(tar):
            if number >= MAX_FILES or member.size > MAX_BYTES:
                return True
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None and wanted in stream.read():
                return True
    return False


def _sources(archive: CodeArchive) -> Iterator[str | None]:
    """The text of every Python file; None for one that is too long to be read."""
    with tarfile.open(archive.path, "r:gz") as tar:
        for member in tar:
            if not member.isfile() or not member.name.endswith(".py"):
                continue
            stream = tar.extractfile(member) if member.size <= MAX_BYTES else None
            yield stream.read().decode("utf-8", "replace") if stream is not None else None
