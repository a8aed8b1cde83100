"""The probe verb: answers all questions of all checks in one call.

A question may hang forever (``statvfs`` on a dead NFS server, ``nvidia-smi`` on a wedged driver). A thread that hangs
in the kernel cannot be ended, and neither can its process. So a forked child answers all questions, each in a thread.
The parent collects the answers, gives each question up at its own deadline, kills the child's process group, and
returns without joining the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from typing import Any, Dict, List, Optional, Set

from ddpctl_worker import facts
from ddpctl_worker.facts.limits import DEFAULT_DEADLINE_S, MOST_DEADLINE_S, REAP_S
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST

Answer = Dict[str, Any]


def probe(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer ``questions``, each ``{"id", "name", "params", "deadline"}`` (seconds).

    Returns ``{"answers": {id: {"ok", "value", "error", "timed_out", "seconds"}}, "received": t, "sent": t}``. The two
    times are by this node's clock.
    """
    received = time.time()
    questions = request.get("questions")
    if not isinstance(questions, list):
        raise WorkerError(BAD_REQUEST, "probe needs a list of questions")
    answers = ask_all(questions, {"base_dir": request.get("base_dir")})
    return {"answers": answers, "received": received, "sent": time.time()}


def ask_all(questions: List[Dict[str, Any]], context: Dict[str, Any]) -> Dict[str, Answer]:
    """Return every question's answer by id, within the longest deadline, even if questions hang."""
    if not questions:
        return {}
    reader, writer = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(questions, context, writer)
    os.close(writer)
    broke_off = False
    try:
        answers, broke_off = _gather(reader, {question["id"]: _deadline(question) for question in questions}, started)
    finally:
        os.close(reader)
        status = _end(pid, broke_off)
    late = time.monotonic() - started
    for question in questions:
        name = question["id"]
        if name not in answers:
            answers[name] = _missing(question, status, late)
    return answers


def _deadline(question: Dict[str, Any]) -> float:
    return min(float(question.get("deadline") or DEFAULT_DEADLINE_S), MOST_DEADLINE_S)


def _gather(reader: int, deadlines: Dict[str, float], started: float) -> "tuple[Dict[str, Answer], bool]":
    """Read answers until all have come or all missing answers are overdue.

    Also returns whether the child ended before that. A late answer counts while other answers are missing.
    """
    answers: Dict[str, Answer] = {}
    waiting: Set[str] = set(deadlines)
    buffer = b""
    while waiting:
        left = max(deadlines[name] for name in waiting) - (time.monotonic() - started)
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return answers, True
        *lines, buffer = (buffer + chunk).split(b"\n")
        answers.update(map(json.loads, lines))
        waiting -= answers.keys()
    return answers, False


def _missing(question: Dict[str, Any], status: Optional[int], late: float) -> Answer:
    """Return the answer for a question that is overdue, or was lost with the child."""
    if status is not None:
        return _answer(error="the probe process ended without an answer (wait status %d)" % status, seconds=late)
    return _answer(error="no answer within %g s" % _deadline(question), timed_out=True, seconds=late)


def _end(pid: int, broke_off: bool) -> Optional[int]:
    """Kill the child's process group. Returns the child's wait status if it had ended by itself, else ``None``."""
    ended, status = _reap(pid, REAP_S if broke_off else 0.0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        _reap(pid, REAP_S)
        return None
    return status


def _reap(pid: int, patience: float) -> "tuple[bool, int]":
    """Wait up to ``patience`` seconds for the child."""
    until = time.monotonic() + patience
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return True, 0
        if done:
            return True, status
        if time.monotonic() >= until:
            return False, 0
        time.sleep(0.01)


# --- in the child ------------------------------------------------------------------------------------------------


def _child(questions: List[Dict[str, Any]], context: Dict[str, Any], writer: int) -> None:
    """Answer all questions, each in a thread. Never returns."""
    code = 1
    try:
        os.setsid()
        _detach(writer)
        lock = threading.Lock()
        threads = [
            threading.Thread(target=_answer_one, args=(question, context, writer, lock), daemon=True)
            for question in questions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = 0
    finally:
        os._exit(code)


def _detach(keep: int) -> None:
    """Close all descriptors but the pipe: a child that hangs must not keep the connection open."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing is closed already
                os.close(fd)


def _answer_one(question: Dict[str, Any], context: Dict[str, Any], writer: int, lock: threading.Lock) -> None:
    """Answer a question. An exception is an answer too."""
    started = time.monotonic()
    try:
        value = facts.ask(question["name"], question.get("params") or {}, dict(context, deadline=_deadline(question)))
        blob = json.dumps([question["id"], _answer(value=value, seconds=time.monotonic() - started)])
    except Exception as error:  # a fault in one question must not cost the other answers; the check reports it
        text = "%s: %s" % (type(error).__name__, error)
        blob = json.dumps([question["id"], _answer(error=text, seconds=time.monotonic() - started)])
    view = memoryview(blob.encode("ascii") + b"\n")
    with lock:
        while view:
            view = view[os.write(writer, view) :]


def _answer(value: Any = None, error: Optional[str] = None, timed_out: bool = False, seconds: float = 0.0) -> Answer:
    return {"ok": error is None, "value": value, "error": error, "timed_out": timed_out, "seconds": round(seconds, 4)}
