"""The listing of a data folder: every file with its size and hash. Its own SHA-256 is the version of the data. Pure."""

from __future__ import annotations

import json
import posixpath
from typing import Any, Iterable, List, NamedTuple, Tuple

Ranges = List[Tuple[int, int]]  # (first index, count), ascending


class DataFile(NamedTuple):
    """A file of a data folder. ``path`` is relative to the folder, ``size`` is in bytes."""

    path: str
    size: int
    sha256: str
    executable: bool


class DataListing(NamedTuple):
    """The content of a data folder. ``folders``: the empty folders. ``links``: path and target of symbolic links."""

    files: List[DataFile]
    folders: List[str]
    links: List[Tuple[str, str]]


def encode_listing(listing: DataListing) -> bytes:
    """Return the listing as JSON text, which is the same for the same content."""
    rows = [[file.path, file.size, file.sha256, int(file.executable)] for file in listing.files]
    document = {"files": rows, "folders": listing.folders, "links": listing.links}
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def decode_listing(data: bytes) -> DataListing:
    """Return the listing of a text that ``encode_listing`` made.

    Raises:
        ValueError: it is no listing, or a path or link leads out of the folder.
    """
    try:
        document = json.loads(data)
        files = [DataFile(row[0], int(row[1]), row[2], bool(row[3])) for row in document["files"]]
        listing = DataListing(files, list(document["folders"]), [(path, goal) for path, goal in document["links"]])
    except (LookupError, TypeError) as error:
        raise ValueError("it is no listing: %s" % error) from None
    for path in [*(file.path for file in files), *listing.folders, *(path for path, _ in listing.links)]:
        if not is_inside(path):
            raise ValueError("%r would lie outside of the folder" % path)
    for path, goal in listing.links:
        if not stays_inside(path, goal):
            raise ValueError("the link %r leads out of the folder" % path)
    return listing


def is_inside(path: Any) -> bool:
    """Return whether ``path`` is the plain path of an entry below a folder."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def stays_inside(path: str, goal: str) -> bool:
    """Return whether the link at ``path`` with the target ``goal`` leads to a place below the folder, as written."""
    if goal.startswith("/"):
        return False
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), goal)).split("/")[0] != ".."


def as_ranges(indices: Iterable[int], most: int = 0) -> Ranges:
    """Return ascending indices as ranges.

    With ``most``, the answer has at most that many ranges. The last range then reaches to the last index, and names
    indices between that were not given.
    """
    found: Ranges = []
    for index in indices:
        if found and (index == sum(found[-1]) or len(found) == most):
            found[-1] = (found[-1][0], index + 1 - found[-1][0])
        else:
            found.append((index, 1))
    return found


def from_ranges(ranges: Iterable[Any], count: int) -> List[int]:
    """Return the indices in ranges.

    Raises:
        ValueError: a range is not ascending, or reaches beyond ``count`` indices.
    """
    indices: List[int] = []
    last = 0
    for first, length in ranges:
        if first < last or length < 1 or first + length > count:
            raise ValueError("the range %r is not in order, or leads beyond %d" % ((first, length), count))
        last = first + length
        indices.extend(range(first, last))
    return indices
