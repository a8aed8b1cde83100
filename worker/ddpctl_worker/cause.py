"""Why a run failed on a node, read from what its processes left behind. Pure."""

from __future__ import annotations

import re
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ddpctl_worker.contract import DISK_FULL, EXITED, OOM, SIGNALED
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
# What a rank says whose peer went away: it is the victim, and the culprit is elsewhere (seen with gloo, NCCL).
_VICTIM = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|"
    r"remote process exited or there was a network error|NCCL Error 6|ncclRemoteError|"
    r"Timed out waiting \d+ms for (?:recv|send)|Socket Timeout|"
    r"failed to recv, got 0 bytes|Watchdog caught collective operation timeout|"
    r"wait timeout after \d+ms|client socket has timed out|Timed out after \d+ seconds waiting for clients|"
    r"connectFullMesh failed|RendezvousClosedError|The connection to the C10d store has failed"
)


class Evidence(NamedTuple):
    """What is known when a launcher has ended."""

    status: int  # wait status of the launcher, as os.waitpid gives it
    tails: Mapping[Tuple[Optional[int], str], str]  # (local rank or None, stream) -> the end of its output
    ranks: Mapping[int, int]  # local rank -> rank
    error_file: Optional[Dict[str, Any]]  # what torch wrote to TORCHELASTIC_ERROR_FILE
    oom_kills: int  # how many processes the kernel killed for memory since the start, as far as it can be told


class Verdict(NamedTuple):
    """A cause in the contract's fields, less host and time; ``victim``: another node's failure brought it about."""

    rank: Optional[int]
    exit_code: Optional[int]
    signal: Optional[str]
    reason: str
    message: str
    traceback: Optional[str]
    victim: bool


def explain(seen: Evidence) -> Verdict:
    """The best that can be said about a launcher that did not end with 0."""
    report = seen.tails.get((None, STDERR), "")
    own_code, own_signal = split_status(seen.status)
    rank, local, code = _from_report(report)
    if rank is None and own_signal is not None:
        who = "the launcher was killed by %s" % own_signal
        return _finish(None, None, own_signal, who, _text_of(seen, None), seen)
    if code is None:
        code = own_code
    if rank is None:
        local = _guess_local(seen)
        rank = None if local is None else seen.ranks.get(local)
    text = _text_of(seen, local)
    name = signal_name(-code) if code is not None and code < 0 else None
    who = "the launcher" if rank is None else "rank %d" % rank
    if name:
        return _finish(rank, None, name, "%s was killed by %s" % (who, name), text, seen)
    return _finish(rank, code, None, "%s exited with code %s" % (who, code), text, seen)


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


def _from_report(report: str) -> Tuple[Optional[int], Optional[int], Optional[int]]:
    """(rank, local rank, exit code) of the root cause in torch's own report, None where it does not say."""
    found = None
    for found in _ROOT.finditer(report):  # noqa: B007  the last one counts: elastic jobs restart
        pass
    if found is None:
        old = _OLD_EXIT.search(report)
        if old:
            return None, None, int(old.group(1))
        died = _OLD_DIED.search(report)
        return None, None, -int(died.group(2)) if died else None
    rank, code = _RANK.search(found.group("block")), _EXITCODE.search(found.group("block"))
    return (
        int(rank.group(1)) if rank else None,
        int(rank.group(2)) if rank else None,
        int(code.group(1)) if code else None,
    )


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
