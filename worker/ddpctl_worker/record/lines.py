"""Byte streams of processes into records of the log, and back. Pure.

A record is one JSON line: ``t`` wall-clock seconds, ``r`` rank or null, ``s`` "o" or "e", ``x`` text, ``e`` the end of
the line: "\\n", "\\r" (a progress bar) or "" (not ended yet, or cut because it is long), ``a`` the attempt from 2 on.
Bytes that are no UTF-8 survive as lone surrogates (PEP 383), which JSON can carry: ``text.encode("utf-8",
"surrogateescape")`` gives the very bytes back.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.record.limits import PIECE_BYTES

STDOUT, STDERR = "o", "e"
STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
_HEADS = {b"\n": '"\\n"}\n', b"\r": '"\\r"}\n', b"": '""}\n'}


def encode(stamp: float, rank: Optional[int], stream: str, text: bytes, end: bytes, attempt: int = 1) -> bytes:
    """Return one record as it lies in the log."""
    words = quote(text.decode("utf-8", "surrogateescape"))
    where = "null" if rank is None else str(rank)
    if attempt > 1:
        where += ',"a":%d' % attempt
    line = '{"t":%.6f,"r":%s,"s":"%s","x":%s,"e":%s' % (stamp, where, stream, words, _HEADS[end])
    return line.encode("ascii")


def decode(line: bytes) -> Optional[Dict[str, Any]]:
    """Return a record from the log; ``None`` for a line that a crash has torn."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "x" in value else None


def decode_all(lines: List[bytes]) -> List[Optional[Dict[str, Any]]]:
    """Return ``decode`` of each line. Where every line is a record, one parse decodes all: much faster."""
    try:
        values = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return [decode(line) for line in lines]
    if len(values) == len(lines) and all(type(value) is dict and "x" in value for value in values):
        found: List[Optional[Dict[str, Any]]] = values
        return found
    return [decode(line) for line in lines]


def incomplete_tail(data: bytes) -> int:
    """Return how many bytes at the end of ``data`` (0 to 3) begin a UTF-8 character that is incomplete."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # continuation: look further back
            continue
        need = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if need > back else 0
    return 0


def _cut(text: bytes, pieces: List[Tuple[bytes, bytes]]) -> bytes:
    """Move full pieces of ``text`` to ``pieces`` and return the rest. No piece ends in half a character."""
    while len(text) > PIECE_BYTES:
        size = PIECE_BYTES - incomplete_tail(text[:PIECE_BYTES])
        pieces.append((text[:size], b""))
        text = text[size:]
    return text


class Splitter:
    """Cuts a stream into pieces at newlines and carriage returns; keeps the unfinished rest."""

    def __init__(self) -> None:
        self._rest = b""
        self._held = False  # the rest was already held back once as an incomplete character

    @property
    def pending(self) -> bool:
        return bool(self._rest)

    def feed(self, data: bytes) -> List[Tuple[bytes, bytes]]:
        """Return the pieces that ``data`` completes, each with its end.

        A "\\r\\n" stays together: the piece keeps its "\\r" and ends with "\\n". A "\\r" at the end of the data waits,
        because its "\\n" may be on the way.
        """
        whole = self._rest + data
        pieces: List[Tuple[bytes, bytes]] = []
        parts = whole.splitlines(keepends=True)  # on bytes: "\n", "\r" and "\r\n" only
        self._rest = b""
        if parts and not parts[-1].endswith(b"\n"):
            self._rest = parts.pop()
            self._held = False
        for part in parts:
            pieces.append((_cut(part[:-1], pieces), part[-1:]))
        self._rest = _cut(self._rest, pieces)
        return pieces

    def flush(self, final: bool = False) -> List[Tuple[bytes, bytes]]:
        """Return the unfinished rest as a piece. Half a character is held back once, and given out the next time."""
        rest = self._rest
        if not rest:
            return []
        if rest.endswith(b"\r"):
            self._rest, self._held = b"", False
            return [(rest[:-1], b"\r")]
        back = 0 if final or self._held else incomplete_tail(rest)
        self._rest = rest[len(rest) - back :] if back else b""
        self._held = bool(back)
        text = rest[: len(rest) - back] if back else rest
        return [(text, b"")] if text else []
