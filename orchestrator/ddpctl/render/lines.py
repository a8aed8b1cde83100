"""The merged output of all processes: ``host:rank | text``, with a colour for each host. No text steers a terminal.

From a run's second attempt on the prefix is ``host:rank#2``. Equal lines of several ranks have ``node[0-1]:0-7``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone, tzinfo
from typing import Any, BinaryIO, TextIO

from ddpctl.render.clean import clean_output
from ddpctl.spec.event import Line
from ddpctl.spec.lines import Group, unmarked
from ddpctl.spec.ranges import fold_names
from ddpctl_worker.rules.phrases import numbers

# ANSI foreground colours that read well on dark and light backgrounds; red is left for errors.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# A progress bar redraws itself many times a second; a line a second is enough. The log has every update.
_BAR_EVERY_S = 1.0

_PREFIXES = 10_000  # size of the prefix cache

_Who = tuple[str, int | None]  # host, rank


class Bars:
    """Thins progress bars out to a line a second."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, int | None, str], float] = {}

    def shows(self, line: Line) -> bool:
        """Return whether a line is shown: any line that is not part of a bar, and of a bar no empty redraw.

        The time of writing decides, not the time of reading: the same log always gives the same output.
        """
        if line.end != "\r":
            return True
        key = (line.host, line.rank, line.stream)
        last = self._shown.get(key)
        if not line.text or (last is not None and abs(line.time - last) < _BAR_EVERY_S):
            return False
        self._shown[key] = line.time
        return True


class LinePrinter:
    """Writes lines to a binary stream, byte for byte as the process wrote them; to a terminal without steering it.

    Progress bars (pieces ended by ``\\r``) become at most a line a second. All lines of a call are written in one
    piece: a process that is killed meanwhile has printed all of them or no line. ``stamp`` turns the time of a line
    into the text before it.
    """

    def __init__(
        self,
        stream: BinaryIO,
        hosts: Sequence[str],
        *,
        colour: bool,
        world_size: int | None = None,
        stamp: Callable[[float], str] | None = None,
    ) -> None:
        self._stream = stream
        self._clean = clean_output if stream.isatty() else str
        self._colour = {host: _COLOURS[i % len(_COLOURS)] for i, host in enumerate(hosts)} if colour else {}
        digits = len(str(max(0, (world_size or 1) - 1)))
        self._width = max((len(host) for host in hosts), default=0) + 1 + digits
        self._bars = Bars()
        self._prefixes: dict[tuple[frozenset[_Who], int], str] = {}
        self._own: dict[tuple[str, int | None, int], str] = {}
        self._stamp = stamp

    def show(self, groups: Iterable[Group]) -> None:
        """Write each group of equal lines as one line, without empty redraws of a bar."""
        out: list[str] = []
        for group in groups:
            line = group[0]
            host, rank, _, time, text, _, _, attempt = line
            if not self._bars.shows(line):
                continue
            prefix = self._own.get((host, rank, attempt)) if len(group) == 1 else None
            if prefix is None:
                prefix = self._prefix(group)
            stamp = "" if self._stamp is None else f"{self._stamp(time)} "
            if len(group) > 1:
                text = unmarked(line)
            out.append(f"{stamp}{prefix}{self._clean(text)}\n")
        self._stream.write(_bytes(out))
        self._stream.flush()

    def _prefix(self, group: Group) -> str:
        attempt = group[0].attempt
        who = frozenset((line.host, line.rank) for line in group)
        known = self._prefixes.get((who, attempt))
        if known is None:
            if len(self._prefixes) >= _PREFIXES:
                self._prefixes.clear()
            known = self._prefixes[who, attempt] = self._of(who, attempt)
            if len(group) == 1:
                self._own[group[0].host, group[0].rank, attempt] = known
        return known

    def _of(self, who: frozenset[_Who], attempt: int) -> str:
        hosts = {host for host, _ in who}
        whose = _where(who, attempt).ljust(self._width)
        code = self._colour.get(min(hosts)) if len(hosts) == 1 else None
        return f"\x1b[{code}m{whose} |\x1b[0m " if code else f"{whose} | "


def where(group: Group) -> str:
    """Return a line's origin: ``node0:3``, in a later attempt ``node0:3#2``, of several ranks ``node[0-1]:0-7``."""
    return _where(frozenset((line.host, line.rank) for line in group), group[0].attempt)


def _where(who: frozenset[_Who], attempt: int) -> str:
    ranks = [rank for _, rank in who if rank is not None]
    words = f"{fold_names(sorted({host for host, _ in who}), least=2)}:{numbers(ranks).replace(' ', '') or '-'}"
    return words if attempt == 1 else f"{words}#{attempt}"


def _bytes(texts: list[str]) -> bytes:
    """Return the bytes that the process wrote: bytes that are not UTF-8 travel as surrogates (PEP 383)."""
    try:
        return "".join(texts).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # any other lone surrogate has no bytes
        if len(texts) > 1:
            return b"".join(_bytes([text]) for text in texts)
        return texts[0].encode("utf-8", "backslashreplace")


class LineTime:
    """Formats a time as ISO 8601 with milliseconds, in ``zone`` (default: this machine's)."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._second = -1
        self._words = ("", "")

    def __call__(self, time: float) -> str:
        second, micro = divmod(round(time * 1e6), 1_000_000)
        if second != self._second:
            moment = datetime.fromtimestamp(second, timezone.utc).astimezone(self._zone)
            words = moment.isoformat(timespec="milliseconds")
            self._second, self._words = second, (words[:20], words[23:])
        return f"{self._words[0]}{micro // 1000:03d}{self._words[1]}"


_UTC = LineTime(timezone.utc)


def line_json(line: Line) -> dict[str, Any]:
    """Return the object of a line that the contract fixes for ``tail --json``."""
    words = {"host": line.host, "rank": line.rank, "stream": line.stream, "time": _UTC(line.time), "text": line.text}
    return words if line.attempt == 1 else {**words, "attempt": line.attempt}


class JsonLines:
    """Writes a JSON object for each line, every piece unchanged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, groups: Iterable[Group]) -> None:
        self._stream.write("".join([json.dumps(line_json(line)) + "\n" for group in groups for line in group]))
        self._stream.flush()
