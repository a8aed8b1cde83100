"""A data folder of this machine: its files with their hashes, and bundles of files to send."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from ddpctl.code.limits import CHUNK_BYTES, SETTLED_NS
from ddpctl.errors import ProvisionError, UsageError
from ddpctl.spec.data import Bundle, plan_bundles
from ddpctl_worker.rules.datafolder import DataFile, DataListing, encode_listing, stays_inside

_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Found(NamedTuple):
    """A file before it is read. ``changed_ns``: its modification time, which shows a change while it is read.

    ``status_ns``: the time of the last change of its inode, which a program cannot set back.
    """

    path: str
    size: int
    changed_ns: int
    executable: bool
    status_ns: int
    inode: int


@dataclass(frozen=True)
class _Scan:
    """The entries of a folder, each list in the order of the paths."""

    files: tuple[_Found, ...]
    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ListingSource:
    """The text of a listing, as a file to send."""

    data: bytes = field(repr=False)
    sha256: str
    name: str = "the list of files"

    @property
    def size(self) -> int:
        return len(self.data)

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes from ``offset`` on."""
        for start in range(offset, len(self.data), CHUNK_BYTES):
            yield self.data[start : start + CHUNK_BYTES]


@dataclass(frozen=True)
class BundleSource:
    """The bytes of several files in a row, read when they are sent."""

    root: Path
    files: tuple[_Found, ...] = field(repr=False)
    sha256: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        first = self.files[0].path
        return first if len(self.files) == 1 else f"{len(self.files)} files from {first} on"

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes from ``offset`` on.

        Raises:
            ProvisionError: a file has changed since it was listed.
        """
        left, chunk = offset, bytearray()
        for file in self.files:
            if left >= file.size:
                left -= file.size
                continue
            for piece in _read(self.root, file, left):
                chunk += piece
                if len(chunk) >= CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
            left = 0
        if chunk:
            yield bytes(chunk)


@dataclass(frozen=True)
class DataFolder:
    """A data folder after its files were hashed. ``version``: the SHA-256 of its listing.

    ``begun_ns``: the time before the first file was looked at. ``unread``: bytes of files whose hash was known.
    """

    root: Path
    listing: DataListing
    source: ListingSource
    found: tuple[_Found, ...] = field(repr=False)
    hashes: dict[Bundle, str] = field(repr=False)
    begun_ns: int
    unread: int

    @property
    def known(self) -> dict[str, list[Any]]:
        """Return the hash of each file with the marks of its content, for the next reading.

        A file that has just changed is left out: it may change once more within the same tick of its file system.
        """
        pairs = zip(self.found, self.listing.files, strict=True)
        return {
            file.path: [*_marks(file), listed.sha256]
            for file, listed in pairs
            if max(file.changed_ns, file.status_ns) < self.begun_ns - SETTLED_NS
        }

    @property
    def version(self) -> str:
        return self.source.sha256

    @property
    def size(self) -> int:
        return sum(file.size for file in self.found)

    def bundle(self, files: Bundle) -> BundleSource:
        """Return the files at these indices as a bundle. The hash of a bundle that is new is computed now."""
        members = tuple(self.found[index] for index in files)
        if files not in self.hashes:
            sha = hashlib.sha256()
            for file in members:
                for piece in _read(self.root, file):
                    sha.update(piece)
            self.hashes[files] = sha.hexdigest()
        return BundleSource(self.root, members, self.hashes[files])


def read_folder(
    folder: Path, started: Callable[[int], None], read: Callable[[int], None], known: Mapping[str, Any] | None = None
) -> DataFolder:
    """List and hash all files of ``folder``. ``started`` gets the bytes of all files, ``read`` the bytes done so far.

    ``known``: the value of ``DataFolder.known`` from an earlier reading. Unchanged files are not read again.

    Raises:
        UsageError: there is no such folder, or it is empty.
        ProvisionError: an entry cannot be read, cannot be sent, or changes meanwhile.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"{folder} is no folder", hint="--data names a folder, relative to the inventory's folder")
    root, begun_ns = folder.resolve(), time.time_ns()
    scan = _scan(root)
    if not scan.files:
        raise UsageError(f"{folder} has no files", hint="put the data there, or name another folder")
    sizes = [file.size for file in scan.files]
    started(sum(sizes))
    old = [_known_hash(file, known or {}) for file in scan.files]
    hashes, bundles, unread = _hash_files(root, scan.files, old, read)
    files = [DataFile(f.path, f.size, sha256, f.executable) for f, sha256 in zip(scan.files, hashes, strict=True)]
    listing = DataListing(files, list(scan.folders), list(scan.links))
    text = encode_listing(listing)
    source = ListingSource(text, hashlib.sha256(text).hexdigest())
    return DataFolder(root, listing, source, scan.files, bundles, begun_ns, unread)


def _hash_files(
    root: Path, files: Sequence[_Found], old: Sequence[str | None], read: Callable[[int], None]
) -> tuple[list[str], dict[Bundle, str], int]:
    """Return the hash of every file, the hashes of bundles that were read, and the bytes that were not read.

    ``old``: the known hashes. A bundle is read unless the hashes of all its files are known; then the hash of a bundle
    of several files is computed if a host lacks a file of it.
    """
    sizes = [file.size for file in files]
    hashes, done, unread = [hashlib.sha256().hexdigest()] * len(sizes), 0, 0
    bundles: dict[Bundle, str] = {}
    for bundle in plan_bundles(sizes, range(len(sizes))):
        found = [sha256 for index in bundle if (sha256 := old[index]) is not None]
        if len(found) == len(bundle):
            length = sum(sizes[index] for index in bundle)
            done, unread = done + length, unread + length
            read(done)
            for index, sha256 in zip(bundle, found, strict=True):
                hashes[index] = sha256
            if len(bundle) == 1:
                bundles[bundle] = found[0]
            continue
        whole = hashlib.sha256()
        for index in bundle:
            sha = whole if len(bundle) == 1 else hashlib.sha256()
            for piece in _read(root, files[index]):
                sha.update(piece)
                if sha is not whole:
                    whole.update(piece)
                done += len(piece)
                read(done)
            hashes[index] = sha.hexdigest()
        bundles[bundle] = whole.hexdigest()
    return hashes, bundles, unread


def _marks(file: _Found) -> list[int]:
    """Return the numbers of which at least one changes with the content."""
    return [file.size, file.changed_ns, file.status_ns, file.inode]


def _known_hash(file: _Found, known: Mapping[str, Any]) -> str | None:
    """Return the hash of an unchanged file. The record may be damaged: then the file is read."""
    record = known.get(file.path)
    if not isinstance(record, list) or record[:-1] != _marks(file):
        return None
    return record[-1] if isinstance(record[-1], str) and _SHA256.fullmatch(record[-1]) else None


def _scan(root: Path) -> _Scan:
    files: list[_Found] = []
    folders: list[str] = []
    links: list[tuple[str, str]] = []
    left = [""]
    while left:
        prefix = left.pop()
        try:
            entries = list(os.scandir(root / prefix))
            for entry in entries:
                name = prefix + entry.name
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    left.append(name + "/")
                elif stat.S_ISREG(info.st_mode):
                    executable = bool(info.st_mode & 0o100)
                    times = info.st_mtime_ns, executable, info.st_ctime_ns
                    files.append(_Found(name, info.st_size, *times, info.st_ino))
                elif stat.S_ISLNK(info.st_mode):
                    links.append((name, _target(root, name)))
                else:
                    raise ProvisionError(
                        f"{_shown(root, name)} is a socket, a pipe or a device", hint="move it out of the folder"
                    )
        except OSError as error:
            path = _shown(root, prefix.rstrip("/"))
            raise ProvisionError(f"{path} cannot be read: {error.strerror}", hint="make it readable") from None
        if not entries and prefix:
            folders.append(prefix.rstrip("/"))
    return _Scan(tuple(sorted(files)), tuple(sorted(folders)), tuple(sorted(links)))


def _target(root: Path, name: str) -> str:
    """Return the target of a link that stays in the folder, both as written and as resolved."""
    target = os.readlink(root / name)  # noqa: PTH115 (a Path would tidy the target up)
    real = (root / name).resolve()
    if not stays_inside(name, target) or not real.is_relative_to(root):
        shown = os.fsencode(target).decode("utf-8", "replace")
        raise ProvisionError(
            f"{_shown(root, name)} is a link out of the folder, to {shown}",
            hint="put the files there in place of the link, or push that folder by itself",
        )
    return target


def _shown(root: Path, name: str) -> str:
    """Return the path for a message; bytes that are not UTF-8 are replaced."""
    return os.fsencode(root / name).decode("utf-8", "replace")


def _read(root: Path, file: _Found, offset: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a file from ``offset`` on.

    Raises:
        ProvisionError: the file cannot be read, or has changed since it was listed.
    """
    with _open(root, file) as stream:
        _refuse_change(root, file, stream)
        stream.seek(offset)
        left = file.size - offset
        while left and (piece := stream.read(min(CHUNK_BYTES, left))):
            left -= len(piece)
            yield piece
        _refuse_change(root, file, stream, left)


def _open(root: Path, file: _Found) -> IO[bytes]:
    try:
        fd = os.open(root / file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ProvisionError(
            f"{_shown(root, file.path)} cannot be read: {error.strerror}", hint="make it readable, or move it away"
        ) from None
    return os.fdopen(fd, "rb")


def _refuse_change(root: Path, file: _Found, stream: IO[bytes], left: int = 0) -> None:
    info = os.fstat(stream.fileno())
    if left or (info.st_size, info.st_mtime_ns) != (file.size, file.changed_ns):
        raise ProvisionError(
            f"{_shown(root, file.path)} changed while it was read", hint="stop what writes it, then push again"
        )
