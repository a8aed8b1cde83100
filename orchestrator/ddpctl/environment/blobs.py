"""Files on their way to the nodes, named by their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 20


class Source(Protocol):
    """Bytes that can be sent, from any offset on, as often as needed; ``name`` is for people."""

    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    def chunks(self, offset: int = 0) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class FileSource:
    """A file on the controller whose hash is known already."""

    path: Path
    sha256: str
    size: int
    name: str

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(offset)
            while piece := file.read(CHUNK):
                yield piece


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        sha = hashlib.sha256()
        while piece := file.read(CHUNK):
            sha.update(piece)
        return sha.hexdigest()
