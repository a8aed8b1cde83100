"""A job's code as an archive named by its content: the same files give the same bytes, on any machine."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from ddpctl.code.limits import ARCHIVE_BYTES, CHUNK_BYTES, KEEP_DAYS, MUCH_BYTES, PACK_ATTEMPTS
from ddpctl.code.listing import IGNORE_FILE, Listing, Member, list_code
from ddpctl.errors import FileDamaged, ProvisionError, UsageError


@dataclass(frozen=True)
class CodeArchive:
    """A packed folder, which can be sent (``chunks``). Sizes in bytes.

    Format: GNU tar. Names are UTF-8 with any other byte unchanged, modes 0644 and 0755, owner 0, time 0.
    """

    path: Path
    sha256: str
    size: int
    files: int
    git_commit: str | None = None
    dirty: bool | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of its members, without folders

    @property
    def name(self) -> str:
        """The name in messages."""
        return "code"

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the archive's bytes from ``offset`` on."""
        with self.path.open("rb") as file:
            file.seek(offset)
            while piece := file.read(CHUNK_BYTES):
                yield piece


class _Changed(Exception):
    """A file changed between its listing and its packing."""


def pack(
    folder: Path | str,
    *,
    exclude: Iterable[Path | str] = (),
    replaced: Iterable[str] = (),
    limit: int = ARCHIVE_BYTES,
    cache: Path | None = None,
) -> CodeArchive:
    """Return the archive of ``folder``, from the cache if nothing has changed.

    Files in ``exclude`` are never sent (secrets). ``replaced``: names in the folder that are not sent either, because
    other files take their place on the nodes.

    Raises:
        UsageError: there is no such folder.
        ProvisionError: too big, a link that leads out, an unreadable file, or a git command that fails.
    """
    root = Path(folder).resolve()
    if not os.path.isdir(root):
        raise UsageError(f"code folder {root} not found", hint="correct code: in the job, or write code: null")
    target = _cache(cache)
    excluded, left_out = tuple(exclude), tuple(replaced)
    for attempt in range(PACK_ATTEMPTS):
        listing = list_code(root, excluded, left_out)
        _check_size(root, listing.entries, limit)
        try:
            return _pack(root, listing, target)
        except _Changed as error:
            if attempt == PACK_ATTEMPTS - 1:
                hint = f"stop what writes it, or add it to {IGNORE_FILE}"
                raise ProvisionError(f"{root / str(error)} kept changing while it was packed", hint=hint) from None
    raise AssertionError("not reached")


def find_archive(sha256: str, *, cache: Path | None = None) -> Path | None:
    """Return the archive of that hash if this machine has made or received it, and it is still whole."""
    for path in _cache(cache).glob(f"*.{sha256}.tar.gz"):
        if _hash_file(path) == sha256:
            os.utime(path)
            return path
    return None


@contextlib.contextmanager
def receive_archive(sha256: str, *, cache: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a file for the bytes of an archive, which ``recall`` finds afterwards.

    Raises:
        FileDamaged: the bytes have another hash.
    """
    with _temporary_file(_cache(cache)) as (temporary, file):
        yield file
        file.flush()
        if _hash_file(temporary) != sha256:
            raise FileDamaged("the code archive did not come as its hash says", hint="run it again")
        temporary.replace(temporary.with_name(f"received.{sha256}.tar.gz"))


def _cache(folder: Path | None) -> Path:
    return folder if folder is not None else platformdirs.user_cache_path("ddpctl") / "code"


@contextlib.contextmanager
def _temporary_file(cache: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a new file in the cache, mode 0600, which is removed at the end unless it was renamed."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=cache)
    try:
        with os.fdopen(handle, "wb") as raw:
            yield Path(name), raw
    finally:
        Path(name).unlink(missing_ok=True)


def _pack(root: Path, listing: Listing, cache: Path) -> CodeArchive:
    digests = [_digest(root, entry) for entry in listing.entries]
    content = _content_hash(listing.entries, digests)
    path = _cached(cache, content) or _write(root, listing.entries, digests, cache, content)
    _forget_old(cache, path)
    return CodeArchive(
        path=path,
        sha256=_archive_hash(path),
        size=path.stat().st_size,
        files=sum(entry.kind != "folder" for entry in listing.entries),
        git_commit=listing.git.commit if listing.git else None,
        dirty=listing.git.dirty if listing.git else None,
        notes=(*listing.notes, *_warning(root, listing.entries)),
        names=tuple(entry.name for entry in listing.entries if entry.kind != "folder"),
    )


def _check_size(root: Path, entries: Sequence[Member], limit: int) -> None:
    total = sum(entry.size for entry in entries)
    if total <= limit:
        return
    raise ProvisionError(
        f"the code folder {root} holds {total / 1e6:.0f} MB, more than {limit / 1e6:.0f} MB; biggest: "
        f"{_biggest(entries)}",
        hint=f"list what is not code in {IGNORE_FILE}",
    )


def _warning(root: Path, entries: Sequence[Member]) -> list[str]:
    """Return a warning about large code, which is sent nevertheless."""
    total = sum(entry.size for entry in entries)
    if total <= MUCH_BYTES:
        return []
    what = f"the code folder {root} holds {total / 1e6:.0f} MB; biggest: {_biggest(entries)}"
    return [f"{what}; list what is not code in {IGNORE_FILE}"]


def _biggest(entries: Sequence[Member]) -> str:
    """Return ``data/ (4 MB), model.bin (3 MB)``."""
    sizes: dict[str, int] = {}
    for entry in entries:
        top, slash, _ = entry.name.partition("/")
        sizes[top + slash] = sizes.get(top + slash, 0) + entry.size
    biggest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} ({size / 1e6:.0f} MB)" for name, size in biggest)


def _digest(root: Path, entry: Member) -> bytes:
    """Return the SHA-256 of a file's bytes or of a link's target."""
    if entry.kind != "file":
        return hashlib.sha256(os.fsencode(entry.target)).digest()
    sha = hashlib.sha256()
    with _open(root, entry) as stream:
        for piece in _exactly(stream, entry):
            sha.update(piece)
    return sha.digest()


def _open(root: Path, entry: Member) -> IO[bytes]:
    path = root / entry.name
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise _Changed(entry.name) from None
    except OSError as error:
        hint = f"make it readable, or add it to {IGNORE_FILE}"
        raise ProvisionError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def _exactly(stream: IO[bytes], entry: Member) -> Iterator[bytes]:
    """Yield the bytes of a file, which must be as long as it was listed."""
    left = entry.size
    while left and (piece := stream.read(min(CHUNK_BYTES, left))):
        left -= len(piece)
        yield piece
    if left or stream.read(1):
        raise _Changed(entry.name)


def _content_hash(entries: Sequence[Member], digests: Sequence[bytes]) -> str:
    """Return the name of an archive's content, before the archive is made."""
    sha = hashlib.sha256(b"ddpctl code 1\0")
    for entry, digest in zip(entries, digests, strict=True):
        sha.update(b"%s\0%s\0%d\0%s" % (os.fsencode(entry.name), entry.kind.encode(), entry.executable, digest))
    return sha.hexdigest()


def _cached(cache: Path, content: str) -> Path | None:
    """Return the earlier archive of the same content, if it is whole: its name holds its own hash."""
    for path in cache.glob(f"{content}.*.tar.gz"):
        if path.name.split(".")[1] == _hash_file(path):
            os.utime(path)
            return path
        path.unlink(missing_ok=True)
    return None


def _archive_hash(path: Path) -> str:
    return path.name.split(".")[1]


def _hash_file(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK_BYTES):
            sha.update(piece)
    return sha.hexdigest()


def _write(root: Path, entries: Sequence[Member], digests: Sequence[bytes], cache: Path, content: str) -> Path:
    with _temporary_file(cache) as (temporary, raw):
        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
            tarfile.open(
                fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
            ) as tar,
        ):
            for entry, digest in zip(entries, digests, strict=True):
                _add(tar, root, entry, digest)
        raw.flush()
        os.fsync(raw.fileno())
        final = cache / f"{content}.{_hash_file(temporary)}.tar.gz"
        temporary.replace(final)
    return final


def _add(tar: tarfile.TarFile, root: Path, entry: Member, digest: bytes) -> None:
    info = tarfile.TarInfo(entry.name)  # owner 0, time 0
    info.mode = 0o755 if entry.executable or entry.kind == "folder" else 0o644
    if entry.kind == "file":
        info.size = entry.size
        with _open(root, entry) as stream:
            reader = _Checked(_exactly(stream, entry))
            tar.addfile(info, reader)  # type: ignore[arg-type]
            if reader.finish() != digest:
                raise _Changed(entry.name)
        return
    info.type = tarfile.SYMTYPE if entry.kind == "link" else tarfile.DIRTYPE
    info.linkname = entry.target
    tar.addfile(info)


class _Checked:
    """Makes the pieces of a file readable for ``tarfile``, and hashes them."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._sha = hashlib.sha256()

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._sha.update(piece)
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def finish(self) -> bytes:
        """Return the hash of the whole file, after reading the rest."""
        for piece in self._pieces:
            self._sha.update(piece)
        return self._sha.digest()


def _forget_old(cache: Path, keep: Path) -> None:
    """Remove archives that were unused for KEEP_DAYS, and parts that a killed process left."""
    oldest = time.time() - KEEP_DAYS * 86400
    for path in (*cache.glob("*.tar.gz"), *cache.glob(".*.part")):
        try:
            if path != keep and path.stat().st_mtime < oldest:
                path.unlink()
        except FileNotFoundError:
            continue
