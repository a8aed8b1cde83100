"""The worker package as one deterministic zip, made from the sources that are installed beside ddpctl."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import Traversable
from importlib.resources import files

PACKAGE = "ddpctl_worker"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say: no clock may get into the hash


@dataclass(frozen=True)
class Payload:
    """What a node runs: the zip, its SHA-256 (hex), and the program that receives it there."""

    data: bytes = field(repr=False)
    sha256: str
    boot: str = field(repr=False)


@cache
def payload() -> Payload:
    """The payload of this installation: built once a process."""
    root = files(PACKAGE)
    data = build(dict(sources(root, PACKAGE)))
    return Payload(data, hashlib.sha256(data).hexdigest(), root.joinpath("boot.py").read_text("utf-8"))


def sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """Every Python source below ``folder``: (name in the zip, content)."""
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()


def build(content: dict[str, bytes]) -> bytes:
    """A zip that depends on names and contents only: sorted, no times, no modes of this machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            entry.create_system = 3  # unix, whatever this machine is
            archive.writestr(entry, content[name])
    return buffer.getvalue()
