"""Reads why a process aborted or crashed: C++'s, torch's and faulthandler's last words. Pure."""

from __future__ import annotations

import re
from typing import Optional

from ddpctl_worker.run.nccl import read_nccl_error

CRASHES = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})  # the signals that a process causes itself
_STUCK = re.compile(r"watchdog got stuck for \d+ seconds")
_WHAT = re.compile(r"^\s*what\(\):\s+(.+(?:\n(?!frame #|Exception raised from|\s*$).+)*)", re.M)
_THREAD = re.compile(r"thread terminated with exception: ", re.I)
_ENDED = re.compile(r"thread terminated with exception: (.+(?:\n(?!frame #|Exception raised from|\s*$).+)*)", re.I)
_FATAL = re.compile(r"^Fatal Python error: (.+)", re.M)
_FRAME = re.compile(r'^\s+File "(?P<file>.+?)", line (?P<line>\d+) in (?P<name>.+)', re.M)
_THREAD_HEAD = re.compile(r"^(?P<current>Current t|T)hread 0x.*", re.M)  # faulthandler prints other threads too
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d")
_CAUGHT = re.compile(r"Caught signal \d+ \(.+?\)")
_SHM = "a page of a mapped file could not be written: most often shared memory (/dev/shm) is full or too small"


def find_last_words(signal: str, text: str) -> Optional[str]:
    """Return why the process crashed, from its stderr ``text`` and its signal; ``None``: it did not say."""
    stuck = _STUCK.search(text)
    if stuck:
        return "%s: a call of CUDA or NCCL, or the GIL, hung in this rank" % stuck[0]
    what = _last(_WHAT, text) or _last(_ENDED, text)
    if what is not None:
        words = _THREAD.split(what)[-1]
        nccl = read_nccl_error(words, text)
        return "NCCL: %s" % nccl.words if nccl is not None else words
    fatal = _last(_FATAL, text)
    if fatal is not None:
        return fatal + _describe_place(text[text.rindex("Fatal Python error") :])
    caught = _CAUGHT.search(text)
    if caught:
        return caught[0]
    return _SHM if signal == "SIGBUS" else None


def _last(pattern: "re.Pattern[str]", text: str) -> Optional[str]:
    found = pattern.findall(text)
    return str(found[-1]).strip() if found else None


def _describe_place(text: str) -> str:
    """Return where faulthandler saw the process: the innermost function, and the line of the job's own file."""
    heads = list(_THREAD_HEAD.finditer(text))
    current = [head for head in heads if head["current"] != "T"] or (heads if len(heads) == 1 else [])
    frames = list(_FRAME.finditer(text[current[-1].end() :].split("\n\n")[0])) if current else []
    if not frames:
        return ""
    own = next((frame for frame in frames if not _LIBRARY.search(frame["file"])), frames[0])
    return " in %s, at %s:%s" % (frames[0]["name"], own["file"].rpartition("/")[2], own["line"])
