"""The merged output of all processes: ``host:rank | text``, a colour a host, nothing interpreted. From a run's second
attempt on it is ``host:rank#2 | text``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, TextIO

from ddpctl.spec.event import Line

_NOTICE = re.compile(r"torch/distributed/launch\.py:\d+: FutureWarning: The module torch\.distributed\.launch")
_NOTICE_MORE = re.compile(
    r"and will be removed in future|Note that --use[-_]env is set by default|If your script expects `--local[-_]rank`|"
    r"change it to read from `os\.environ|https://pytorch\.org/docs/|further instructions|  main\(\)|"
    r"  warnings\.warn\(|\s*$"
)
_BARRIER = re.compile(r"elastic/agent/server/api\.py:\d+\]")
_STORE_GONE = re.compile(r"TCPStore\.cpp:\d+\] \[c10d\] recvValue\w* failed on .*(was likely closed|got 0 bytes)")
_STORE_MORE = re.compile(r"^(Exception raised from |frame #\d+: |<omitting python frames>|\s*$)")


@dataclass
class Held:
    """What torch's launcher prints on every healthy run and nobody needs to read: held back while a run is followed,
    shown when it does not succeed, and always in the log.

    Two blocks only, both from the launcher itself, never from a rank: the deprecation notice of
    torch.distributed.launch (ddpctl knows what it calls), and the complaint of an agent whose store was closed by
    node 0 a moment before it left the exit barrier.
    """

    lines: list[Line] = field(default_factory=list)
    _inside: dict[str, re.Pattern[str]] = field(default_factory=dict)  # host -> the block that it is in the middle of

    def takes(self, line: Line) -> bool:
        """Whether the line is noise; it is kept then."""
        if line.rank is not None or line.stream != "stderr":
            return False
        if self._is_noise(line):
            self.lines.append(line)
            return True
        return False

    def _is_noise(self, line: Line) -> bool:
        if _NOTICE.search(line.text):
            self._inside[line.host] = _NOTICE_MORE
            return True
        if _STORE_GONE.search(line.text):
            self._inside[line.host] = _STORE_MORE
            return True
        if _BARRIER.search(line.text) and self._is_barrier(line):
            return True
        more = self._inside.get(line.host)
        if more is not None and more.match(line.text):
            return True
        self._inside.pop(line.host, None)
        return False

    def _is_barrier(self, line: Line) -> bool:
        """The first line of the block names the barrier; the rest bears the same prefix."""
        if "Error waiting on exit barrier" in line.text:
            self._inside[line.host] = _BARRIER
            return True
        return self._inside.get(line.host) is _BARRIER


# ANSI foreground colours that read well on dark and light backgrounds; red is left for errors.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# A progress bar redraws itself many times a second; as lines, one a second is enough. Every update is in the log.
_BAR_EVERY_S = 1.0


class LinePrinter:
    """Writes lines to a binary stream, byte for byte as the process wrote them.

    Progress bars (pieces ended by ``\\r``) become a line a second at most. Lines are collected until ``flush``, which
    hands them to the system in one call: what is killed in the middle of a batch has printed all of it or none.
    """

    def __init__(self, stream: BinaryIO, hosts: Sequence[str], *, colour: bool, world_size: int | None = None) -> None:
        self._stream = stream
        self._colour = {host: _COLOURS[i % len(_COLOURS)] for i, host in enumerate(hosts)} if colour else {}
        digits = len(str(max(0, (world_size or 1) - 1)))
        self._width = max((len(host) for host in hosts), default=0) + 1 + digits
        self._bars: dict[tuple[str, int | None, str], datetime] = {}
        self._waiting: list[bytes] = []

    def write(self, line: Line) -> None:
        """One line; an empty redraw of a bar is passed over."""
        if line.end == "\r" and (not line.text or not self._is_due(line)):
            return
        where = f"{line.host}:{'-' if line.rank is None else line.rank}"
        where = (where if line.attempt == 1 else f"{where}#{line.attempt}").ljust(self._width)
        code = self._colour.get(line.host)
        prefix = f"\x1b[{code}m{where} |\x1b[0m " if code else f"{where} | "
        self._waiting.append(_bytes(f"{prefix}{line.text}\n"))

    def flush(self) -> None:
        """Write what was collected."""
        self._stream.write(b"".join(self._waiting))
        self._waiting.clear()
        self._stream.flush()

    def _is_due(self, line: Line) -> bool:
        """By the time the line was written, not read: the same log always prints the same."""
        key = (line.host, line.rank, line.stream)
        now = datetime.fromisoformat(line.time.replace("Z", "+00:00"))
        last = self._bars.get(key)
        if last is not None and (now - last).total_seconds() < _BAR_EVERY_S:
            return False
        self._bars[key] = now
        return True


def _bytes(text: str) -> bytes:
    """The bytes the process wrote: what was not UTF-8 travelled as surrogates (PEP 383) and turns back into bytes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate of another kind has no bytes
        return text.encode("utf-8", "backslashreplace")


def line_json(line: Line) -> dict[str, Any]:
    """As the contract fixes it for ``tail --json``."""
    words = {"host": line.host, "rank": line.rank, "stream": line.stream, "time": line.time, "text": line.text}
    return words if line.attempt == 1 else {**words, "attempt": line.attempt}


class JsonLines:
    """One JSON object a line, every piece as it came."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: Line) -> None:
        self._stream.write(json.dumps(line_json(line)) + "\n")

    def flush(self) -> None:
        self._stream.flush()
