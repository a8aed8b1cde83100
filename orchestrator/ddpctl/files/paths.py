"""Looks at a path without an exception, and writes a file as a whole or not at all.

Before Python 3.14 ``Path.exists`` and the like raise an error for a folder that may not be searched, and for a name
that is too long. The functions of ``os.path`` return False.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def exists(path: str | Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: str | Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def write_whole(target: Path, text: str, *, private: bool = False) -> None:
    """Write a temporary file, sync it and rename it: a reader sees the old text or the new text.

    ``private``: only this user may read it.

    Raises:
        OSError: the file cannot be written. An earlier file is as it was.
    """
    number, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.absolute().parent)  # mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
