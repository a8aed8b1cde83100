"""Runs a run's notifiers in a process of its own: all at once, at most until the deadline.

The process first claims the event on the disk, so users are not notified twice, even if the process dies. The process
is a subreaper: the children of a notifier stay below it and end with it. A webhook runs in a process too (``post``): a
name server, or a server that sends a byte now and then, may hold it forever.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Optional, Tuple

import ddpctl_worker
from ddpctl_worker.machine import fs, notes, proc, processes
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run.cause import code_of
from ddpctl_worker.run.launcher import BeforeExec
from ddpctl_worker.run.limits import NOTIFIER_GRACE_S, NOTIFIER_OUTPUT_BYTES, NOTIFIER_READ_BYTES, TICK_S
from ddpctl_worker.run.notifying import message_variables
from ddpctl_worker.run.stopper import Stopper, reap, run_to_end

_POST = "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.run.notifier import post; post()"


def main() -> None:
    """Run the process. stdin: {"node", "message", "to", "env", "cwd", "umask", "seconds"}."""
    order = json.loads(sys.stdin.buffer.read())
    processes.set_name("ddpctl-notify")
    paths, said = RunPaths(order["node"]), order["message"]
    try:
        if not fs.write_once(paths.notified(said["event"], said["attempt"]), {"time": notes.now_iso()}):
            return
    except OSError as error:
        notes.note("notify: nobody was notified: the disk takes no claim: %s" % error)
        return
    processes.become_subreaper()
    programs = [_Program(to, order) for to in order["to"]]
    seconds = float(order["seconds"])
    troubles = _run(programs, seconds)
    _log(paths, said["event"], [(program.outcome(seconds), program.lines()) for program in programs], troubles)


class _Program:
    """A notifier, from its start on."""

    def __init__(self, to: Dict[str, Any], order: Dict[str, Any]) -> None:
        self._name = _name(to)
        self._webhook = "webhook" in to
        self._status: Optional[int] = None  # wait status
        self._seconds = 0.0  # from start to end
        self._output = b""
        self._read = 0  # bytes
        self._begun = time.monotonic()
        self._trouble = ""
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._say = json.dumps(order["message"]).encode("ascii")
        try:
            self._start(to, order)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._trouble = "cannot be started: %s" % error

    def _start(self, to: Dict[str, Any], order: Dict[str, Any]) -> None:
        if self._webhook:
            code = os.path.dirname(os.path.dirname(os.path.abspath(ddpctl_worker.__file__)))
            argv, cwd = [sys.executable, "-I", "-c", _POST, code], "/"
            self._say = json.dumps({"url": to["webhook"], "body": order["message"]}).encode("ascii")
        else:
            argv, cwd = to["command"], order["cwd"]
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(order["env"], **message_variables(order["message"], order["node"])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            preexec_fn=BeforeExec(None, int(order["umask"])),
        )
        self._process.returncode = 0  # this process reaps every child itself

    def watch(self, selector: selectors.BaseSelector) -> None:
        if self._process is not None:
            for pipe, event, act in (
                (self._process.stdin, selectors.EVENT_WRITE, self._write),
                (self._process.stdout, selectors.EVENT_READ, self._take),
            ):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event, act)

    def _write(self, fd: int) -> bool:
        """Write to its stdin; return whether there is more to write."""
        try:
            self._say = self._say[os.write(fd, self._say) :]
        except BlockingIOError:
            return True
        except OSError:  # the notifier does not read
            return False
        return bool(self._say)

    def _take(self, fd: int) -> bool:
        """Read its output; return whether there is more to read."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        self._read += len(data)
        self._output += data[: NOTIFIER_OUTPUT_BYTES - len(self._output)]
        return bool(data) and self._read < NOTIFIER_READ_BYTES

    def ended(self, statuses: Dict[int, int]) -> None:
        if self._process is not None and self._status is None and self._process.pid in statuses:
            self._status = statuses[self._process.pid]
            self._seconds = time.monotonic() - self._begun

    def outcome(self, deadline: float) -> str:
        return "%s: %s" % (self._name, self._trouble or self._how(deadline))

    def _how(self, deadline: float) -> str:
        if self._status is None or self._seconds > deadline:
            return "did not end within %g s and was killed" % deadline
        said, code = self._output.decode("utf-8", "replace").strip(), code_of(self._status)
        how = "exit code %d" % code if code >= 0 else "ended by signal %d" % -code
        return "%s (%.1f s)" % (said if self._webhook and said else how, self._seconds)

    def lines(self) -> List[str]:
        """Return its output as lines for notify.log."""
        if self._webhook:
            return []
        lines = ["    " + line for line in self._output.decode("utf-8", "replace").splitlines()]
        more = self._read - len(self._output)
        return [*lines, "    (at least %d bytes more)" % more] if more else lines


def _name(to: Dict[str, Any]) -> str:
    """Return the notifier's name for logs, without the path of a webhook's URL, which is often a secret."""
    if "webhook" in to:
        place = urllib.parse.urlsplit(to["webhook"])
        return "webhook %s://%s" % (place.scheme, place.netloc)
    return "command %s" % to["command"][0]


def _run(programs: List[_Program], seconds: float) -> List[str]:
    """Wait until all programs and their children have ended; kill the rest after ``seconds``. Return messages."""
    statuses: Dict[int, int] = {}

    def collect() -> None:
        statuses.update(reap())
        for program in programs:
            program.ended(statuses)

    selector = selectors.DefaultSelector()
    for program in programs:
        program.watch(selector)
    proof = processes.Proof(subreaper=True)
    deadline = time.monotonic() + seconds
    collect()
    while time.monotonic() < deadline and not proof.given():
        _serve(selector, TICK_S)
        collect()
    _serve(selector, 0.0)  # the last output
    stopper = run_to_end(Stopper(_below, None, NOTIFIER_GRACE_S, proof=proof), collect)
    words = []
    if stopper.signalled:
        words.append("processes that still ran after %g s and were ended: %d" % (seconds, stopper.signalled))
    return words + ["pid %(pid)d (%(cmd)s) cannot be killed" % survivor for survivor in stopper.survivors]


def _serve(selector: selectors.BaseSelector, pause: float) -> None:
    for key, _ in selector.select(pause):
        if not key.data(key.fd):
            selector.unregister(key.fileobj)
            if key.events == selectors.EVENT_WRITE:
                key.fileobj.close()  # type: ignore[union-attr]  # a pipe: the notifier reads its end


def _below() -> Dict[int, proc.Stat]:
    """Return all descendants: this process is a subreaper, so orphans are among them."""
    me = os.getpid()
    return processes.find_members("", [me], [me])


def _log(paths: RunPaths, event: str, outcomes: List[Tuple[str, List[str]]], troubles: List[str]) -> None:
    """Write each outcome with the notifier's output to notify.log, and the outcome alone to supervisor.log."""
    lines = []
    for outcome, output in outcomes:
        notes.note("notify: %s" % outcome)
        lines += ["%s %s: %s" % (notes.now_iso(), event, outcome), *output]
    for trouble in troubles:
        notes.note("notify: %s" % trouble)
    try:
        fd = os.open(paths.notify_log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write("".join(line + "\n" for line in lines).encode("utf-8", "replace"))
    except OSError as error:
        notes.note("notify: notify.log cannot be written: %s" % error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would turn the POST into a GET, or lead to another scheme or host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post() -> None:
    """Run the process of a webhook. stdin: {"url", "body"}; stdout: the answer in a few words, without the URL."""
    order = json.loads(sys.stdin.buffer.read())
    headers = {"Content-Type": "application/json", "User-Agent": "ddpctl"}
    body = json.dumps(order["body"]).encode("ascii")
    try:
        request = urllib.request.Request(order["url"], body, headers, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request) as answer:
            said, code = "answered %d" % answer.status, 0
    except urllib.error.HTTPError as error:
        redirect = " (redirects are not followed)" if 300 <= error.code < 400 else ""
        said, code = "failed: answered %d%s" % (error.code, redirect), 1
    except Exception as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        words = str(reason) if isinstance(reason, OSError) else type(reason).__name__  # other messages may hold the URL
        said, code = "failed: %s" % words, 1
    print(said, flush=True)
    sys.exit(code)
