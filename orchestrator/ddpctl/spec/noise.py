"""Holds back output of torch's launcher that helps no reader. Pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from ddpctl.spec.event import Line
from ddpctl.spec.limits import HELD_LETTERS, HELD_LINES
from ddpctl.spec.lines import Group

_NOTICE = re.compile(r"torch/distributed/launch\.py:\d+: FutureWarning: The module torch\.distributed\.launch")
_NOTICE_MORE = re.compile(
    r"and will be removed in future|Note that --use[-_]env is set by default|If your script expects `--local[-_]rank`|"
    r"change it to read from `os\.environ|https://pytorch\.org/docs/|further instructions|  main\(\)|"
    r"  warnings\.warn\(|\s*$"
)
_REPORT = re.compile(
    r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\) of binary|"
    r"Received \S+ death signal, shutting down workers"
)
_REPORT_MORE = re.compile(
    r"Traceback \(most recent call last\):$|  |"
    r"torch\.distributed\.elastic\.\S*(?:ChildFailedError|SignalException)|"
    r"[=-]{9,}$|\S+ FAILED$|Failures:$|Root Cause \(first observed failure\):$|\[\d+\]:$|\s*$"
)
_NO_NAME = re.compile(
    r"\[W\S* (?:\S+ )?socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be retrieved"
)
_BARRIER = re.compile(r"elastic/agent/server/api\.py:\d+\]")
_STORE_GONE = re.compile(r"TCPStore\.cpp:\d+\] \[c10d\] recvValue\w* failed on .*(was likely closed|got 0 bytes)")
_STORE_MORE = re.compile(r"^(Exception raised from |frame #\d+: |<omitting python frames>|\s*$)")


@dataclass
class Held:
    """The lines that are held back. They are shown if a run fails and no rank is the cause; the log has them always.

    A kind is from any process: the warning of torch's store that a connection has no host name. ddpctl uses addresses,
    and preflight says where names are missing. Three kinds are from the launcher itself and never from a rank:

    - the report that a rank has failed or that the launcher was signalled, with the launcher's own traceback: the cause
      says more;
    - the deprecation notice of torch.distributed.launch: ddpctl calls that module on purpose;
    - the error of a launcher's agent that was still in the exit barrier when node 0 closed the store.
    """

    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=HELD_LINES))
    _inside: dict[str, re.Pattern[str]] = field(default_factory=dict)  # host -> the block that has begun there

    def takes(self, line: Line) -> bool:
        """Hold the line back if it is noise, and return whether it is."""
        if line.stream != "stderr" or len(line.text) > HELD_LETTERS:
            return False
        if _NO_NAME.match(line.text) or (line.rank is None and self._is_noise(line)):
            self.lines.append(line)
            return True
        return False

    def groups(self) -> list[Group]:
        """Return all lines that were held back, by time."""
        return [[line] for line in sorted(self.lines, key=lambda line: line.time)]

    def _is_noise(self, line: Line) -> bool:
        if _NOTICE.search(line.text):
            self._inside[line.host] = _NOTICE_MORE
            return True
        if _REPORT.search(line.text):
            self._inside[line.host] = _REPORT_MORE
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
        """Return whether the line belongs to the error at the barrier.

        Its first line names the barrier. All of its lines have the prefix _BARRIER, as other messages do too.
        """
        if "Error waiting on exit barrier" in line.text:
            self._inside[line.host] = _BARRIER
            return True
        return self._inside.get(line.host) is _BARRIER
