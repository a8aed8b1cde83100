"""Dumps in torch's format. They are made here, not recorded: no machine with a GPU was there.

The opcodes are from torch/csrc/jit/serialization/pickler.cpp (protocol 2, tag_aggregates off), the fields from ``dump``
in torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, both of torch 2.13.
"""

from __future__ import annotations

import struct
from typing import Any


class _Pickler:
    def __init__(self) -> None:
        self._memo: dict[int | str, int] = {}  # a text, or the id of a value that is used again
        self._kept: list[Any] = []  # so that no id is given twice

    def dump(self, value: Any) -> bytes:
        return b"\x80\x02" + self._of(value) + b"."

    def _of(self, value: Any) -> bytes:
        key = value if isinstance(value, str) else id(value)
        if isinstance(value, str | dict) and key in self._memo:
            number = self._memo[key]
            return b"h%c" % number if number < 256 else b"j" + struct.pack("<I", number)
        made = self._plain(value)
        if isinstance(value, str | dict):
            number = self._memo[key] = len(self._memo)
            self._kept.append(value)
            made += b"q%c" % number if number < 256 else b"r" + struct.pack("<I", number)
        return made

    def _plain(self, value: Any) -> bytes:
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, int):
            return self._number(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, str):
            data = value.encode()
            return b"X" + struct.pack("<I", len(data)) + data
        if isinstance(value, dict):
            return b"}(" + b"".join(self._of(key) + self._of(one) for key, one in value.items()) + b"u"
        parts = b"".join(map(self._of, value))
        if isinstance(value, tuple):
            return parts + b"\x86" if len(value) == 2 else b"(" + parts + b"t"
        return b"](" + parts + b"e"

    @staticmethod
    def _number(value: int) -> bytes:
        for code, form, low, high in (
            (b"K", "<B", 0, 1 << 8),
            (b"M", "<H", 0, 1 << 16),
            (b"J", "<i", -(1 << 31), 1 << 31),
        ):
            if low <= value < high:
                return code + struct.pack(form, value)
        return b"\x8a\x08" + struct.pack("<q", value)


def pickled(value: Any) -> bytes:
    """``value``, of builtin containers and scalars, in torch's opcodes."""
    return _Pickler().dump(value)


FRAME = {"name": "step", "filename": "train.py", "line": 41}
ENTRY: dict[str, Any] = {
    "frames": [FRAME, FRAME],
    "record_id": 7,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "thread_name": "python",
    "thread_id": "139",
    "collective_seq_id": 8,
    "p2p_seq_id": 0,
    "op_id": 8,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 1_800_000_000_500_000_000,
    "input_sizes": [[2, 3]],
    "input_dtypes": ["Float"],
    "output_sizes": [[2, 3]],
    "output_dtypes": ["Float"],
    "state": "scheduled",
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
    "retired": False,
    "timeout_ms": 600_000,
    "is_p2p": False,
}


def record(*changes: dict[str, Any]) -> dict[str, Any]:
    """Return a record with an entry for each of ``changes``."""
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "comm_lib_version": "2.27.5",
        "pg_status": {"0": {"last_enqueued_collective": 8, "last_started_collective": -1}},
        "entries": [{**ENTRY, **one} for one in changes],
        "nccl_comm_state": {"0x1": {"id": "0x1"}},
    }


def dump(*changes: dict[str, Any]) -> bytes:
    return pickled(record(*changes))
