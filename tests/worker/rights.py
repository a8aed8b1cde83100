"""Within ``no_override`` file modes count for root, too: a file with mode 0 cannot be read."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

VERSION = 0x20080522  # of capset: 64 bits
OVERRIDE = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextlib.contextmanager
def no_override() -> Iterator[None]:
    """Of this thread."""
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: the lower 32 bits, then the upper
    libc = ctypes.CDLL(None, use_errno=True)

    def check(failed: int) -> None:
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.capget(header, data))
    before = data[0]
    data[0] = before & ~OVERRIDE
    check(libc.capset(header, data))
    try:
        yield
    finally:
        data[0] = before
        check(libc.capset(header, data))
