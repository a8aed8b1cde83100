"""Why a run failed on a node, read from what its processes left behind. Pure."""

from __future__ import annotations

import math
import re
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ddpctl_worker.contract import DISK_FULL, EXITED, OOM, SIGNALED, VICTIM_WORDS
from ddpctl_worker.lines import STDERR, STDOUT

MAX_TRACEBACK = 16 << 10

_ROOT = re.compile(r"Root Cause \(first observed failure\):(?P<block>.*?)(?:^=+\s*$|\Z)", re.S | re.M)
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)", re.M)
_EXITCODE = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.M)
_OLD_EXIT = re.compile(r"CalledProcessError: Command .* returned non-zero exit status (\d+)")
_OLD_DIED = re.compile(r"CalledProcessError: Command .* died with <Signals\.(SIG[A-Z0-9]+): (\d+)>")
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# The launcher's own traceback: it only says that a rank failed.
_AGENT_ERROR = re.compile(r"torch\.distributed\.elastic\.\S*ChildFailedError|subprocess\.CalledProcessError")
_PREFIX = re.compile(
    r"^\[(?:\w+-)?rank\d+\]:\s?", re.M
)  # torch puts "[rank0]: " before the lines of its own tracebacks
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]")
_NO_SCRIPT = re.compile(r"can't open file '?(?P<file>.+?)'?: \[Errno 2\]")
_LAUNCHER_ERROR = re.compile(r"^\S*?(?:run|launch)\.py: error: (.+)$", re.M)
_VICTIM = re.compile(VICTIM_WORDS, re.IGNORECASE)  # torch spells some of them now one way, now the other


class Evidence(NamedTuple):
    """What is known when a launcher has ended."""

    status: Optional[int]  # wait status of the launcher, as os.waitpid gives it; None: it still runs
    tails: Mapping[Tuple[Optional[int], str], str]  # (local rank or None, stream) -> the end of its output
    ranks: Mapping[int, int]  # local rank -> rank
    error_file: Optional[Dict[str, Any]]  # what torch wrote to TORCHELASTIC_ERROR_FILE
    oom_kills: int  # how many processes the kernel killed for memory since the start, as far as it can be told
    deaths: Mapping[int, Tuple[Optional[int], float]] = {}  # local rank -> wait status (None: not known), wall clock
    tracebacks: Mapping[int, float] = {}  # local rank -> when it wrote its last traceback, wall clock


class Verdict(NamedTuple):
    """A cause in the contract's fields, less host and time; ``victim``: another node's failure brought it about."""

    rank: Optional[int]
    exit_code: Optional[int]
    signal: Optional[str]
    reason: str
    message: str
    traceback: Optional[str]
    victim: bool
    when: Optional[float] = None  # wall clock of the failure itself, where it is known


class _Failed(NamedTuple):
    """A rank that failed here."""

    local: int
    rank: Optional[int]
    code: Optional[int]  # negative for a signal
    root: bool  # torch's report calls it the root cause
    when: Optional[float]
    victim: bool


def explain(seen: Evidence) -> Verdict:
    """The best that can be said about a launcher that did not end with 0, or about a rank that died."""
    failed = _failed_ranks(seen)
    if failed:
        # Not simply the one that torch names: it looks at its ranks in turns, and may see the victims first.
        first = min(failed, key=lambda one: (one.victim, one.when if one.when is not None else math.inf, not one.root))
        who = "the launcher" if first.rank is None else "rank %d" % first.rank
        found = _of_code(first.rank, first.code, who, _text_of(seen, first.local), seen)
        return found._replace(when=first.when)
    code, name = split_status(seen.status or 0)
    if name is not None:
        return _finish(None, None, name, "the launcher was killed by %s" % name, _text_of(seen, None), seen)
    old = _from_old_report(seen.tails.get((None, STDERR), ""))
    local = _guess_local(seen)
    rank = None if local is None else seen.ranks.get(local)
    who = "the launcher" if rank is None else "rank %d" % rank
    found = _of_code(rank, code if old is None else old, who, _text_of(seen, local), seen)
    return found._replace(when=None if local is None else seen.tracebacks.get(local))


def _of_code(rank: Optional[int], code: Optional[int], who: str, text: str, seen: Evidence) -> Verdict:
    name = signal_name(-code) if code is not None and code < 0 else None
    if name:
        return _finish(rank, None, name, "%s was killed by %s" % (who, name), text, seen)
    return _finish(rank, code, None, "%s exited with code %s" % (who, code), text, seen)


def _failed_ranks(seen: Evidence) -> List[_Failed]:
    """Every rank that is known to have failed: by torch's report, or by how its process ended."""
    codes: Dict[int, Tuple[Optional[int], bool]] = {}
    for local, (status, _) in seen.deaths.items():
        if status:
            code, name = split_status(status)
            codes[local] = (-(status & 0x7F) if name else code, False)
    numbers = dict(seen.ranks)
    for rank, local, code, root in _from_report(seen.tails.get((None, STDERR), "")):
        codes[local] = (code, root)
        numbers[local] = rank
    found = []
    for local, (code, root) in codes.items():
        times = [at for at in (seen.tracebacks.get(local), seen.deaths.get(local, (0, None))[1]) if at is not None]
        told = _of_code(None, code, "", _text_of(seen, local), seen)
        # A launcher that ends the other ranks after a failure does it with SIGTERM.
        victim = told.victim or (code == -signal.SIGTERM and not root)
        found.append(_Failed(local, numbers.get(local), code, root, min(times, default=None), victim))
    return found


def _finish(
    rank: Optional[int], code: Optional[int], name: Optional[str], head: str, text: str, seen: Evidence
) -> Verdict:
    trace = last_traceback(text)
    from_file = _from_error_file(seen.error_file)
    if trace is None and from_file is not None:
        trace = from_file
    last = last_line(trace) if trace else ""
    detail = last or _other_words(text, seen)
    reason = SIGNALED if name else EXITED
    if name == "SIGKILL" and seen.oom_kills:
        reason, detail = OOM, "the kernel ran out of memory and killed it"
    elif name == "SIGKILL":
        detail = detail or "ddpctl did not send it"
    elif _NO_SPACE.search(last):
        reason = DISK_FULL
    message = one_line(head + (": " + detail if detail else ""))
    victim = bool(_VICTIM.search(last or detail)) and name is None
    return Verdict(rank, code, name, reason, message, trace, victim)


def split_status(status: int) -> Tuple[Optional[int], Optional[str]]:
    """(exit code, None) or (None, name of the signal)."""
    number = status & 0x7F
    if number:
        return None, signal_name(number)
    return status >> 8 & 0xFF, None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def last_traceback(text: str) -> Optional[str]:
    """The last traceback of ``text`` with the chain that led to it, None when there is none.

    A traceback that python only mentions ("Exception ignored in ...") is not what ended the process.
    """
    lines = _PREFIX.sub("", text.replace("\r\n", "\n")).split("\n")
    blocks: List[Tuple[int, int]] = []
    for index, line in enumerate(lines):
        if not line.startswith(_TRACEBACK) or (index and lines[index - 1].startswith("Exception ignored in")):
            continue
        end = _end_of_block(lines, index)
        if end is None or _AGENT_ERROR.match(lines[end - 1]):
            continue
        if blocks and any(link in lines[blocks[-1][1] : index] for link in _CHAIN):
            blocks[-1] = (blocks[-1][0], end)
        else:
            blocks.append((index, end))
    if not blocks:
        return None
    start, end = blocks[-1]
    found = "\n".join(lines[start:end]).rstrip()
    return found if len(found) <= MAX_TRACEBACK else "...\n" + found[-MAX_TRACEBACK:]


def _end_of_block(lines: List[str], index: int) -> Optional[int]:
    """Behind the exception's line (and the lines of its message that are indented) of the traceback at ``index``."""
    for at in range(index + 1, len(lines)):
        line = lines[at]
        if line and not line[0].isspace():
            return at + 1 if re.match(r"[A-Za-z_][\w.]*(:|\Z)", line) else None
    return None


def last_line(text: str) -> str:
    """The last line that says anything."""
    for line in reversed(text.split("\n")):
        if line.strip():
            return line.strip()
    return ""


def one_line(text: str, limit: int = 400) -> str:
    found = " ".join(text.split())
    return found if len(found) <= limit else found[: limit - 3] + "..."


def _from_report(report: str) -> List[Tuple[int, int, Optional[int], bool]]:
    """(rank, local rank, exit code, root cause?) of every failure in torch's own report."""
    root = None
    for root in _ROOT.finditer(report):  # noqa: B007  the last one counts: elastic jobs restart
        pass
    if root is None:
        return []
    before = report.rfind("\nFailures:", 0, root.start())
    others = report[before : root.start()] if before >= 0 else ""
    found = []
    for text, is_root in ((others, False), (root.group("block"), True)):
        for block in re.split(r"^\[\d+\]:", text, flags=re.M):
            rank, code = _RANK.search(block), _EXITCODE.search(block)
            if rank:
                found.append((int(rank.group(1)), int(rank.group(2)), int(code.group(1)) if code else None, is_root))
    return found


def _from_old_report(report: str) -> Optional[int]:
    """The exit code (negative for a signal) that a launcher before torch 1.9 tells of; None where it does not."""
    old = _OLD_EXIT.search(report)
    if old:
        return int(old.group(1))
    died = _OLD_DIED.search(report)
    return -int(died.group(2)) if died else None


def _guess_local(seen: Evidence) -> Optional[int]:
    """The local rank with a traceback when exactly one has one: the launcher's report does not name it."""
    found = [local for (local, stream), text in seen.tails.items() if local is not None and _TRACEBACK in text]
    return found[0] if len(found) == 1 else None


def _text_of(seen: Evidence, local: Optional[int]) -> str:
    """Where to look for words: the failed rank's stderr, or the launcher's when ranks have no pipes of their own."""
    own = seen.tails.get((local, STDERR), "") if local is not None else ""
    if own.strip():
        return own
    return seen.tails.get((None, STDERR), "")


def _other_words(text: str, seen: Evidence) -> str:
    """Something to say when there is no traceback."""
    missing = _NO_SCRIPT.search(text)
    if missing:
        return "there is no script %s on this node" % missing.group("file")
    refused = _LAUNCHER_ERROR.search(seen.tails.get((None, STDERR), ""))
    if refused:
        return "the launcher refused its arguments: %s" % refused.group(1)
    victim = _VICTIM.search(text)
    if victim:
        return victim.group(0)
    has_own = any(local is not None and body.strip() for (local, stream), body in seen.tails.items())
    if _ROOT.search(text) and (has_own or (None, STDOUT) in seen.tails):
        return ""
    return last_line(text)


def _from_error_file(content: Optional[Dict[str, Any]]) -> Optional[str]:
    """The traceback that a script decorated with torch's @record left."""
    message = (content or {}).get("message")
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(trace).rstrip() if trace else None
