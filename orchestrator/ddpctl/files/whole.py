"""Writes a file as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
