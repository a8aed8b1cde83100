"""Reads the last output of a process: its traceback, the launcher's report, the signs of a peer's failure. Pure."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.run.limits import ERROR_LINES, NOTICE_LINES, TRACEBACK_CHARACTERS
from ddpctl_worker.wire.contract import VICTIM_WORDS

TRACEBACK = "Traceback (most recent call last):"
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# The launcher's own traceback, which only says that a rank failed.
_AGENT_ERROR = re.compile(r"torch\.distributed\.elastic\.\S*ChildFailedError|subprocess\.CalledProcessError")
_BOX = "\u256d\u2570\u2502\u256e\u256f\u2500"  # the lines of a box: corners, sides, top
_PREFIX = re.compile(r"\[(?:\w+-)?rank\d+\]:\s?")  # from torch's hook for uncaught exceptions
_LOG = re.compile(
    r"\[[A-Z](?:\d{4})? \S|[A-Z]\d{4} \d\d:\d\d:|terminate called |Fatal Python error|Exception ignored in"
)
# Log lines and warnings, which are never the cause.
_CHATTER = re.compile(
    r"\[[WIDV](?:\d{4})? \S|[WIDV]\d{4} \d\d:\d\d:|(?:WARNING|INFO|DEBUG):\S|\S+:\d+: \w*Warning: |"
    r"\[\d{4}-\d\d-\d\d [^\]]*\] \S+ \[(?:WARNING|INFO|DEBUG)\]|.* NCCL INFO |frame #\d+: |\*{20}|"
    r"Setting OMP_NUM_THREADS environment variable"
)
_NOTICE = re.compile(r"torch/distributed/launch\.py:\d+: FutureWarning: ")
_VICTIM = re.compile(VICTIM_WORDS, re.IGNORECASE)  # torch's spelling varies
# Faults of the rank itself. NCCL reports them as "unhandled system error" too, and its watchdog ends the process.
_OWN = re.compile(
    r"No space left on device|out of memory|CUDA error|illegal memory access|shared memory segment|"
    r"no socket interface found|Duplicate GPU|uncorrectable ECC|Too many open files|Cannot allocate memory",
    re.IGNORECASE,
)
ROOT = re.compile(r"Root Cause \(first observed failure\):(?P<block>.*?)(?:^=+\s*$|\Z)", re.S | re.M)
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)", re.M)
_EXITCODE = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.M)
# Every rank raises this exception of torch.distributed.checkpoint; it names the ranks that failed.
_FAILED_RANKS = re.compile(r"CheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")
_SEEN = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_ENDED = re.compile(r"Sending process (\d+) closing signal ")
_WAS_SIGNALLED = re.compile(r"Received \S+ death signal")
_OLD_EXIT = re.compile(r"CalledProcessError: Command .* returned non-zero exit status (\d+)")
_OLD_DIED = re.compile(r"CalledProcessError: Command .* died with <Signals\.(SIG[A-Z0-9]+): (\d+)>")


class LastOutput(NamedTuple):
    """The end of a process's stderr."""

    traceback: Optional[str]  # the last traceback, with the chain of exceptions before it
    error: str  # all lines of its exception; "" without a traceback
    uncaught: bool  # torch's hook for uncaught exceptions printed the traceback
    rest: List[str]  # the lines after the traceback (without a traceback: all lines), less warnings and log lines

    def ended_it(self, quiet: bool) -> bool:
        """Return whether the exception ended the process.

        ``quiet``: the process wrote nothing after the traceback. Otherwise the last lines of a long exception may be
        other output.
        """
        if self.traceback is None or self.uncaught:
            return self.uncaught
        return (quiet or "\n" not in self.error) and (not self.rest or bool(_LOG.match(self.rest[0])))


class _Block(NamedTuple):
    """A traceback: lines from ``start``, the exception from ``error``, up to ``end``."""

    start: int
    error: int
    end: int


def read_last_output(text: str) -> LastOutput:
    """Return the last traceback of ``text`` and the lines after it.

    A traceback that Python only mentions ("Exception ignored in ...") does not count: it ended no process.
    """
    raw = [_open_box(line) for line in text.replace("\r\n", "\n").split("\n")]
    hooked = [bool(_PREFIX.match(line)) for line in raw]
    lines = [_PREFIX.sub("", line) for line in raw]
    block = _last_block(lines, hooked)
    if block is None:
        return LastOutput(None, "", False, _plain(lines))
    trace = "\n".join(lines[block.start : block.end]).rstrip()
    if len(trace) > TRACEBACK_CHARACTERS:
        trace = "...\n" + trace[-TRACEBACK_CHARACTERS:]
    error = "\n".join(lines[block.error : block.end]).rstrip()
    return LastOutput(trace, error, hooked[block.error], _plain(lines[block.end :]))


def find_failed_ranks(text: str) -> List[int]:
    """Return the ranks that the last exception names as failed; empty if it names none."""
    found = _FAILED_RANKS.findall(text)
    return [int(rank) for rank in found[-1].split(",")] if found else []


def without_prefixes(text: str) -> str:
    """Return ``text`` without the ``[rank0]: `` that torch puts before each line of a rank."""
    return "\n".join(_PREFIX.sub("", line) for line in text.replace("\r\n", "\n").split("\n"))


def _open_box(line: str) -> str:
    """Return a line of rich's boxed traceback as CPython would print it; any other line as it is."""
    if not line or line[0] not in _BOX:
        return line
    return TRACEBACK if TRACEBACK[:-1] in line else "  " + line.strip(_BOX + " ")


def _last_block(lines: Sequence[str], hooked: Sequence[bool]) -> Optional[_Block]:
    last: Optional[_Block] = None
    for index, line in enumerate(lines):
        if not line.startswith(TRACEBACK) or (index and lines[index - 1].startswith("Exception ignored in")):
            continue
        error = _error_of(lines, index)
        if error is None or _AGENT_ERROR.match(lines[error]):
            continue
        start = index
        if last is not None and any(link in lines[last.end : index] for link in _CHAIN):
            start = last.start
        last = _Block(start, error, _end_of(lines, hooked, error))
    return last


def _error_of(lines: Sequence[str], index: int) -> Optional[int]:
    """Return the line where the exception of the traceback at ``index`` begins."""
    for at in range(index + 1, len(lines)):
        line = lines[at]
        if line and not line[0].isspace():
            return at if re.match(r"[A-Za-z_][\w.]*(:|\Z)", line) else None
    return None


def _end_of(lines: Sequence[str], hooked: Sequence[bool], error: int) -> int:
    """Return the line after the exception. A message may have many lines, with the reason at its end.

    Torch's hook marks every line. Without the hook the message ends at an empty line or at the next log line.
    """
    stop = min(len(lines), error + ERROR_LINES)
    for at in range(error + 1, stop):
        line = lines[at]
        if line.startswith(TRACEBACK) or line in _CHAIN or _LOG.match(line) or _CHATTER.match(line):
            return at
        if not line.strip() if not hooked[error] else line.strip() and not hooked[at]:
            return at
    return stop


def _plain(lines: Sequence[str]) -> List[str]:
    """Return the lines that are neither empty, nor warnings, nor log lines of torch, NCCL and the launcher."""
    found: List[str] = []
    lines = _without_notice(lines)
    source = False  # Python prints the line of source below its warning
    for line in lines:
        if _CHATTER.match(line):
            source = "Warning: " in line
        elif line.strip() and not (source and line[0].isspace()):
            found.append(line.strip())
            source = False
    return found


def _without_notice(lines: Sequence[str]) -> List[str]:
    """Drop the notice of torch.distributed.launch: a warning of many lines that ends with a line of source."""
    kept: List[str] = []
    at = 0
    while at < len(lines):
        if _NOTICE.search(lines[at]):
            ends = [end for end in range(at, min(len(lines), at + NOTICE_LINES)) if lines[end] == "  main()"]
            at = ends[0] + 1 if ends else at + 1
        else:
            kept.append(lines[at])
            at += 1
    return kept


def find_peer_failure(text: str) -> Optional[str]:
    """Return the words by which a rank reports a peer's failure; None without them, or if it names its own fault."""
    found = _VICTIM.search(text)
    return None if found is None or _OWN.search(text) else found.group(0)


def shorten_to_line(text: str, limit: int = 400) -> str:
    found = " ".join(text.split())
    return found if len(found) <= limit else found[: limit - 3] + "..."


def find_failures(text: str) -> List[Tuple[int, int, Optional[int], bool]]:
    """Return (rank, local rank, exit code, root cause?) of every failure in torch's report."""
    root = None
    for root in ROOT.finditer(text):  # noqa: B007  the last one counts: elastic jobs restart
        pass
    if root is None:
        return []
    before = text.rfind("\nFailures:", 0, root.start())
    others = text[before : root.start()] if before >= 0 else ""
    found = []
    for part, is_root in ((others, False), (root.group("block"), True)):
        for block in re.split(r"^\[\d+\]:", part, flags=re.M):
            rank, code = _RANK.search(block), _EXITCODE.search(block)
            if rank:
                found.append((int(rank.group(1)), int(rank.group(2)), int(code.group(1)) if code else None, is_root))
    return found


def find_first_failure(text: str) -> Optional[Tuple[int, int]]:
    """Return (local rank, exit code) of the failure that torch's launcher logs before it ends the other ranks.

    Its report may follow minutes later.
    """
    found = _SEEN.findall(text)
    return (int(found[-1][1]), int(found[-1][0])) if found else None


def find_ended_ranks(text: str) -> Set[int]:
    """Return the pids of the ranks that torch's launcher ends after the failure of another rank, from its log.

    If the launcher itself was signalled, no rank has failed, and the set is empty.
    """
    return set() if _WAS_SIGNALLED.search(text) else {int(pid) for pid in _ENDED.findall(text)}


def old_exit_code(text: str) -> Optional[int]:
    """Return the exit code (negative for a signal) in the report of a launcher before torch 1.9, or ``None``."""
    old = _OLD_EXIT.search(text)
    if old:
        return int(old.group(1))
    died = _OLD_DIED.search(text)
    return -int(died.group(2)) if died else None
