"""Small wheels made on the spot, and nodes that are folders of this machine."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddpctl.spec.event import Event, Note
from ddpctl.spec.host import Host
from ddpctl.spec.inventory import Environment, Inventory
from ddpctl.transport.fleet import SSHFleet
from ddpctl.transport.local import LocalTransport

_CHUNK = 1 << 20
TORCH = """
__version__ = "2.13.0+cpu"
class version: cuda = None
class distributed:
    @staticmethod
    def is_nccl_available(): return False
"""


@dataclass(frozen=True)
class BytesSource:
    """Bytes in memory: a code archive, a lock."""

    data: bytes
    name: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size(self) -> int:
        return len(self.data)

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        for start in range(offset, len(self.data), _CHUNK):
            yield self.data[start : start + _CHUNK]


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    code: str = "",
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    ballast: bytes = b"",
) -> Path:
    """Write a wheel with a single module of the package's name. ``ballast``: bytes that make the wheel bigger."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": (code or f"__version__ = {version!r}\n").encode(),
        f"{info}/METADATA": _metadata(name, version, requires).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if ballast:
        files[f"{name}/ballast.bin"] = ballast
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, data in files.items():
            archive.writestr(zipfile.ZipInfo(inner, (2020, 1, 1, 0, 0, 0)), data)
    return path


def make_sdist(folder: Path, name: str, version: str = "1.0", *, files: Mapping[str, str]) -> Path:
    """A source distribution of these files."""
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in {"PKG-INFO": _metadata(name, version, ()).replace("2.1", "2.2"), **files}.items():
            info = tarfile.TarInfo(f"{name}-{version}/{inner}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def backend(name: str, version: str = "1.0", *, tag: str = "py3-none-any", body: str = "", asks: str = "[]") -> str:
    """A build backend in one file, for a project that needs nothing else: ``body`` runs when the wheel is built."""
    return f"""
import pathlib, sys, zipfile
INFO = "{name}-{version}.dist-info/"
META = "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
def get_requires_for_build_wheel(settings=None):
    return {asks}
def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, INFO)
    place.mkdir()
    (place / "METADATA").write_text(META)
    return place.name
def build_sdist(folder, settings=None):
    import tarfile
    path = pathlib.Path(folder, "{name}-{version}.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(".", "{name}-{version}")
    return path.name
def build_wheel(folder, settings=None, metadata=None):
    code = "where = " + repr(sys.prefix) + "\\n"
    {body or "pass"}
    name = "{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        for inner, text in (("{name}.py", code), (INFO + "METADATA", META),
                            (INFO + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {tag}\\n"),
                            (INFO + "RECORD", "{name}.py,,\\n" + INFO + "RECORD,,\\n")):
            wheel.writestr(zipfile.ZipInfo(inner), text)
    return name
"""


PYPROJECT = '[build-system]\nrequires = [{requires}]\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def _metadata(name: str, version: str, requires: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def local_inventory(folder: Path, count: int, environment: Environment | None = None, **keys: str) -> Inventory:
    """``count`` nodes on this machine, each with a base_dir of its own below ``folder``."""
    python = keys.pop("python", sys.executable)
    hosts = tuple(
        Host(
            name=f"n{index}",
            address="127.0.0.1",
            connection="local",
            python=python,
            base_dir=str(folder / f"n{index}"),
        )
        for index in range(count)
    )
    return Inventory(
        cluster="test", hosts=hosts, environment=environment or Environment(), file=str(folder / "inventory.yaml")
    )


@contextmanager
def fleet_of(inventory: Inventory) -> Iterator[SSHFleet]:
    fleet = SSHFleet({host.name: LocalTransport(host) for host in inventory.hosts})
    try:
        yield fleet
    finally:
        fleet.close()


class Heard(list[Event]):
    """Collects the events of a stage; pass it as ``tell``."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    @property
    def notes(self) -> list[str]:
        return [event.message for event in self if isinstance(event, Note)]


def blobs(base: Path) -> list[str]:
    """Names in a node's store."""
    folder = base / "store"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
