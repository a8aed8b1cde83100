"""What torch's launcher prints on every healthy run and nobody needs to read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ddpctl.spec.event import Line
from ddpctl.spec.lines import Group

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
    """Held back where a run's output is shown as text, shown when the run does not succeed, and always in the log.

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

    def groups(self) -> list[Group]:
        """All of it, to be shown."""
        return [[line] for line in sorted(self.lines, key=lambda line: line.time)]

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
