"""Whether a file is whole, as far as its format says so.

A killed writer leaves a torn file with an ordinary name. Three formats show it: torch.save writes a zip archive with
its directory at the end, safetensors begins with the place of every tensor, a JSON object ends with its bracket.

After a power cut the end of a file may be on the disk while blocks in its middle are missing. A zip archive has a
checksum of each of its files.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from typing import Callable, Optional

from ddpctl_worker.checkpoint.limits import BLOCK_BYTES, MOST_JSON_BYTES, MOST_SAFETENSORS_HEADER_BYTES

_ZIP = b"PK\x03\x04"


def is_complete(path: str) -> Optional[bool]:
    """Return True if every byte is there, False if the file is cut, ``None`` if its format does not say."""
    with open(path, "rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            return _zip_is_whole(path)
    if path.endswith(".safetensors"):
        return _safetensors_is_whole(path)
    return _json_is_whole(path) if path.endswith(".json") else None


def is_damaged(path: str, read_on: Optional[Callable[[int], None]] = None) -> bool:
    """Whether the bytes of a zip archive differ from its checksums; False for any other format.

    Reads every byte and calls ``read_on`` with the number of bytes of each step.
    """
    with open(path, "rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            for one in archive.infolist():
                if one.CRC:  # torch can leave them out, and writes 0 then
                    _read(archive, one, read_on)
    except (NotImplementedError, RuntimeError):  # a compression that Python does not have; encrypted
        return False
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error):
        return True
    return False


def _read(archive: zipfile.ZipFile, one: zipfile.ZipInfo, read_on: Optional[Callable[[int], None]]) -> None:
    """Read a member; raises BadZipFile at its end if the checksum differs."""
    with archive.open(one) as member:
        while True:
            data = member.read(BLOCK_BYTES)
            if not data:
                return
            if read_on is not None:
                read_on(len(data))


def _json_is_whole(path: str) -> Optional[bool]:
    """Never False: text that does not parse may be JSON lines, or have comments."""
    if os.stat(path).st_size > MOST_JSON_BYTES:
        return None
    try:
        with open(path, "rb") as file:
            return True if isinstance(json.loads(file.read()), (dict, list)) else None
    except (ValueError, RecursionError):
        return None


def _zip_is_whole(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            ends = [one.header_offset + one.compress_size for one in archive.infolist()]
            return max(ends, default=0) <= archive.start_dir
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def _safetensors_is_whole(path: str) -> bool:
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MOST_SAFETENSORS_HEADER_BYTES, size - 8):
            return False
        try:
            header = json.loads(file.read(length))
            ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0) == size
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False
