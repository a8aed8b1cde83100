"""The position up to which a run's output was printed, so that ``attach`` continues there even after a SIGKILL.

A run has a file, and a host a record of 128 bytes in it: the name and two slots (number of the write, offset,
checksum). A save overwrites the older slot, so the newer slot stays whole whatever happens. A single ``pwrite`` writes
the records of a page (32 hosts).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from ddpctl.files.records import folder_of, run_dir
from ddpctl.spec.values import is_name

FILE = "positions"
_PAGE = 4096
_RECORD = 128
_NAME = 64
_SLOT = struct.Struct("<QQII")  # number of the write (from 1), offset in bytes, CRC-32 of name and both, zero


class _Slot(NamedTuple):
    number: int
    offset: int
    at: int  # position of the slot in the file


def load_positions(run: str) -> dict[str, int]:
    """Return host -> offset after the last printed line; unknown hosts, and all of an unreadable file, are left out."""
    if not is_name(run):
        return {}
    try:
        data = (run_dir(run) / FILE).read_bytes()
    except OSError:  # the file does not exist, or cannot be read
        return {}
    return {host: max(slots).offset for host, slots in _records(data).items() if max(slots).number}


class Positions:
    """The positions of a run, held open while it is followed.

    Lines are printed before their positions are saved, with one system call for every 32 hosts. A controller killed in
    between prints these lines again.
    """

    def __init__(self, run: str) -> None:
        """Open the file.

        Raises:
            OSError: the folder cannot be written.
        """
        self._handle = os.open(folder_of(run) / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._handle).st_size
        self._data = bytearray(os.pread(self._handle, size, 0).ljust(-(-size // _RECORD) * _RECORD, b"\0"))
        self._known = _records(self._data)

    def __enter__(self) -> Positions:
        return self

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(OSError):  # a network file system may report only here that a save was lost
            os.close(self._handle)

    def save(self, positions: Mapping[str, int]) -> None:
        """Write the positions of hosts with a changed offset.

        Raises:
            OSError: the file cannot be written.
        """
        changed: dict[int, list[int]] = {}  # page -> positions of records
        for host, offset in positions.items():
            slots = self._known.get(host)
            if slots is None:
                at = self._add(host, offset)
            elif max(slots).offset != offset or not max(slots).number:
                at = self._overwrite(host, offset, max(slots), min(slots))
            else:
                continue
            changed.setdefault(at // _PAGE, []).append(at // _RECORD * _RECORD)
        for records in changed.values():
            first = min(records)
            os.pwrite(self._handle, self._data[first : max(records) + _RECORD], first)

    def _overwrite(self, host: str, offset: int, newest: _Slot, oldest: _Slot) -> int:
        self._data[oldest.at : oldest.at + _SLOT.size] = _pack(host, newest.number + 1, offset)
        self._known[host] = (newest, _Slot(newest.number + 1, offset, oldest.at))
        return oldest.at

    def _add(self, host: str, offset: int) -> int:
        if not is_name(host):
            raise ValueError(f"not the name of a host: {host!r}")
        record = host.encode("ascii").ljust(_NAME, b"\0") + _pack(host, 1, offset)
        first = len(self._data) + _NAME
        self._data += record.ljust(_RECORD, b"\0")
        self._known[host] = (_Slot(1, offset, first), _Slot(0, 0, first + _SLOT.size))
        return first


def _pack(host: str, number: int, offset: int) -> bytes:
    return _SLOT.pack(number, offset, _checksum(host, number, offset), 0)


def _checksum(host: str, number: int, offset: int) -> int:
    return zlib.crc32(b"%s %d %d" % (host.encode("ascii"), number, offset))


def _records(data: bytes | bytearray) -> dict[str, tuple[_Slot, _Slot]]:
    """Return every whole record. A slot with a wrong checksum counts as never written."""
    found: dict[str, tuple[_Slot, _Slot]] = {}
    for start in range(0, len(data) - _RECORD + 1, _RECORD):
        name = data[start : start + _NAME].rstrip(b"\0").decode("ascii", "replace")
        if is_name(name):
            first = start + _NAME
            found[name] = (_slot(data, name, first), _slot(data, name, first + _SLOT.size))
    return found


def _slot(data: bytes | bytearray, name: str, at: int) -> _Slot:
    number, offset, checksum, _ = _SLOT.unpack_from(data, at)
    whole = checksum == _checksum(name, number, offset)
    return _Slot(number, offset, at) if whole else _Slot(0, 0, at)
