"""Reads Python stacks, and finds a rank's place in the user's code. Pure.

A frame is ``[file, line, function]``; a stack has the innermost frame first.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.rules.limits import LARGEST_LINE, MOST_FRAMES

Frame = Sequence[Any]
POINT_TO_POINT = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)
# Operations without an entry in the flight record, at least with gloo.
UNRECORDED = POINT_TO_POINT | {"monitored_barrier", "init_process_group", "new_group", "destroy_process_group"}
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<")
_RUNPY = re.compile(r"^<frozen runpy>$|/runpy\.py$")
_INSTALLED = re.compile(r"(.*/(?:site|dist)-packages/)[^/]+")
_FAULT = re.compile(r'^  File "(.*)", line ([0-9]{1,9}) in (.*)$')
_RANK = re.compile(r"[0-9]{1,6}\Z", re.ASCII)
_COLLECTIVES = re.compile(r"distributed/(?:distributed_c10d|nn/functional|_functional_collectives)\.py$")
FOR_PROCESS = "waiting for another process"
_SLEEP = re.compile(r"_*(sleep|nap)_*\Z")
# The activity of a rank, by the library frame next to the user's code: part of the file name, function, words.
_REASONS: Tuple[Tuple[str, str, str], ...] = (
    ("torch/utils/data/", "", "waiting for its data loader"),
    ("torch/autograd/", "", "in the backward pass"),
    ("torch/_tensor.py", "backward", "in the backward pass"),
    ("torch/cuda/", "synchronize", "waiting for its GPU"),
    ("torch/serialization.py", "", "saving or loading a file"),
    ("torch/_dynamo/", "", "compiling"),
    ("torch/_inductor/", "", "compiling"),
    ("/subprocess.py", "", "waiting for a program that it started"),
    ("/multiprocessing/", "", FOR_PROCESS),
    ("/queue.py", "", "waiting for a queue"),
    ("/threading.py", "", "waiting for a lock or another thread"),
    ("/concurrent/futures/", "", "waiting for another thread"),
    ("/socket.py", "", "waiting for the network"),
    ("/ssl.py", "", "waiting for the network"),
)


class Thread(NamedTuple):
    """One thread of a process. ``gil``: the thread held the interpreter's lock at that moment."""

    name: str
    main: bool
    gil: bool
    frames: List[List[Any]]
    peers: Dict[str, int]  # of a send or receive: "src" and "dst", as ranks


def from_py_spy(text: str, pid: int) -> Optional[List[Thread]]:
    """Return the threads in the output of ``py-spy dump --json --locals``; ``None`` if it has no valid thread."""
    try:
        return [_thread(thread, pid) for thread in json.loads(text)] or None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _thread(thread: Dict[str, Any], pid: int) -> Thread:
    frames = [[str(f["filename"])[-300:], _line(f["line"]), str(f["name"])[:80]] for f in thread["frames"]]
    return Thread(
        str(thread.get("thread_name") or "")[:40],
        thread.get("os_thread_id") in (pid, None),
        bool(thread.get("owns_gil")),
        _with_own_package(frames)[:MOST_FRAMES],
        _peers(thread["frames"][:MOST_FRAMES]),
    )


def _line(number: Any) -> int:
    return max(0, min(int(number), LARGEST_LINE))


def _peers(frames: Sequence[Dict[str, Any]]) -> Dict[str, int]:
    """Return the other end of a send or receive, from the arguments of torch's own function. No other local value is
    read.

    ``group_src`` and ``group_dst`` are ranks within a group, so they only count for the default group.
    """
    for frame in frames:
        if not _COLLECTIVES.search(str(frame["filename"])) or str(frame["name"]) not in POINT_TO_POINT:
            continue
        values = {str(local["name"]): str(local["repr"]) for local in frame.get("locals") or ()}
        found = {}
        for end in ("src", "dst"):
            names = [end, "group_" + end] if values.get("group") == "None" else [end]
            ranks = [int(values[name]) for name in names if _RANK.match(values.get(name, ""))]
            found.update({end: ranks[0]} if ranks else {})
        if found:
            return found
    return {}


def from_faulthandler(text: str) -> Optional[List[List[Any]]]:
    """Return the last stack in a file of faulthandler; ``None`` if the file has no stack."""
    frames: List[List[Any]] = []
    for line in text.splitlines():
        match = _FAULT.match(line)
        if match:
            frames.append([match.group(1)[-300:], int(match.group(2)), match.group(3)[:80]])
        elif "most recent call first" in line and "C stack" not in line:
            frames = []
    return _with_own_package(frames)[:MOST_FRAMES] or None


def _with_own_package(frames: List[List[Any]]) -> List[List[Any]]:
    """Shorten the file names of the package that ``python -m pkg.train`` has started, if it is installed as a library.

    Its files become ``pkg/train.py``, so that they count as the user's own code.
    """
    begins = next((file for file, _, _ in reversed(frames) if not _RUNPY.search(file)), "")
    found = _INSTALLED.match(begins)
    if found is None:
        return frames
    package, folder = found.group(), found.group(1)

    def shown(file: str) -> str:
        return file[len(folder) :] if file == package or file.startswith(package + "/") else file

    return [[shown(file), line, function] for file, line, function in frames]


def is_own(frame: Frame) -> bool:
    """Return whether the frame is the user's own code, and not a library's."""
    return not _LIBRARY.search(str(frame[0]))


def is_own_code(stack: Optional[Sequence[Frame]]) -> List[Frame]:
    """Return the user's own frames, the innermost first; all frames if the user has no frame in the stack."""
    return [frame for frame in stack or () if is_own(frame)] or list(stack or ())


def place(stack: Optional[Sequence[Frame]]) -> str:
    """Return the rank's place in the user's code, like ``train.py:88 in step``; empty if it is not known."""
    frames = is_own_code(stack)
    if not frames:
        return ""
    file, line, function = frames[0]
    where = "%s:%d" % (os.path.basename(str(file)), line)
    return where if function == "<module>" else "%s in %s" % (where, function)


def find_awake(stack: Optional[Sequence[Frame]]) -> List[Frame]:
    """Return the stack from the innermost frame of the user on that does more than sleep."""
    frames = list(stack or ())
    first = next((at for at, frame in enumerate(frames) if is_own(frame) and not _SLEEP.match(str(frame[2]))), 0)
    return frames[first:]


def _above(stack: Optional[Sequence[Frame]]) -> List[Frame]:
    """Return the library frames that the innermost own frame has called, the outermost first."""
    called: List[Frame] = []
    for frame in stack or ():
        if is_own(frame):
            break
        called.append(frame)
    return called[::-1]


def operation(stack: Optional[Sequence[Frame]]) -> Optional[str]:
    """Return the operation of torch.distributed that the rank is in, such as ``all_reduce``; else ``None``."""
    for file, _, function in _above(stack):
        if _COLLECTIVES.search(str(file)) and not function.startswith("_") and function != "wrapper":
            return str(function).rpartition(".")[2]
    return None


def reason(stack: Optional[Sequence[Frame]]) -> str:
    """Return the rank's activity by the libraries that the user's code has called; empty if they do not show it."""
    found = operation(stack)
    if found is not None:
        return "in %s" % found
    for file, _, function in _above(stack):
        for part, name, words in _REASONS:
            if part in str(file) and name in str(function):
                return words
    return ""


def busy_in_own_code(stack: Optional[Sequence[Frame]]) -> bool:
    """Return whether the innermost frame is the user's own."""
    return bool(stack) and is_own(stack[0])  # type: ignore[index]
