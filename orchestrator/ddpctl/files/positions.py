"""How far the output of a run was printed here, so that ``attach`` goes on with the next line, even after a SIGKILL.

One file a run, one record of 128 bytes a host: its name and two slots (number of the write, offset, checksum). A save
overwrites the older slot with one ``pwrite`` that never crosses a page, so the newer one stays whole whatever happens.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from ddpctl.files.records import folder_of, state_dir
from ddpctl.spec.values import is_name

_RECORD = 128
_NAME = 64
_SLOT = struct.Struct("<QQII")  # number of the write (from 1), offset in bytes, CRC-32 of name and both, zero


class _Slot(NamedTuple):
    number: int
    offset: int
    at: int  # position of the slot in the file


def load_positions(run: str) -> dict[str, int]:
    """Host -> offset after the last line that was printed; hosts of which nothing is known are not in it."""
    if not is_name(run):
        return {}
    try:
        data = (state_dir() / "runs" / run / "positions").read_bytes()
    except FileNotFoundError:
        return {}
    return {host: max(slots).offset for host, slots in _records(data).items() if max(slots).number}


def save_positions(run: str, positions: Mapping[str, int]) -> None:
    """Remember ``positions``; only hosts whose offset has changed are written.

    Raises:
        OSError: the folder cannot be written.
    """
    handle = _open(run)
    try:
        size = os.fstat(handle).st_size
        known = _records(os.pread(handle, size, 0))
        end = -(-size // _RECORD) * _RECORD
        for host, offset in positions.items():
            if host not in known:
                _add(handle, end, host, offset)
                end += _RECORD
            elif max(known[host]).offset != offset or not max(known[host]).number:
                newest, oldest = max(known[host]), min(known[host])
                os.pwrite(handle, _pack(host, newest.number + 1, offset), oldest.at)
    finally:
        os.close(handle)


def _open(run: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    if not is_name(run):
        raise ValueError(f"not the name of a run: {run!r}")
    try:
        return os.open(state_dir() / "runs" / run / "positions", flags, 0o600)
    except FileNotFoundError:
        return os.open(folder_of(run) / "positions", flags, 0o600)


def _add(handle: int, at: int, host: str, offset: int) -> None:
    if not is_name(host):
        raise ValueError(f"not the name of a host: {host!r}")
    record = host.encode("ascii").ljust(_NAME, b"\0") + _pack(host, 1, offset)
    os.pwrite(handle, record.ljust(_RECORD, b"\0"), at)


def _pack(host: str, number: int, offset: int) -> bytes:
    return _SLOT.pack(number, offset, _checksum(host, number, offset), 0)


def _checksum(host: str, number: int, offset: int) -> int:
    return zlib.crc32(b"%s %d %d" % (host.encode("ascii"), number, offset))


def _records(data: bytes) -> dict[str, tuple[_Slot, _Slot]]:
    """Every whole record; a slot that does not check counts as never written."""
    found: dict[str, tuple[_Slot, _Slot]] = {}
    for start in range(0, len(data) - _RECORD + 1, _RECORD):
        name = data[start : start + _NAME].rstrip(b"\0").decode("ascii", "replace")
        if is_name(name):
            first = start + _NAME
            found[name] = (_slot(data, name, first), _slot(data, name, first + _SLOT.size))
    return found


def _slot(data: bytes, name: str, at: int) -> _Slot:
    number, offset, checksum, _ = _SLOT.unpack_from(data, at)
    whole = checksum == _checksum(name, number, offset)
    return _Slot(number, offset, at) if whole else _Slot(0, 0, at)
