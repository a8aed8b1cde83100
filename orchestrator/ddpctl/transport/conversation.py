"""Calls of a worker over any pipe: the part that hosts behind SSH and this machine have in common."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddpctl.errors import DdpctlError, LinkLost, RemoteError, ShellBroken
from ddpctl.transport import answers, bootstrap
from ddpctl.transport.base import Frame, OnFrame
from ddpctl.transport.bootstrap import Payload, payload
from ddpctl.transport.limits import BANNER_S, ENDED_S, EXIT_CODE_S, MESSAGE_LETTERS, POLL_S, READY_S
from ddpctl.transport.pipe import FrameReader, Pipe, garbled
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl.transport.quiet import QuietCalls
from ddpctl.transport.watch import Ender, Sender, Watch
from ddpctl_worker.wire import contract

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Host

log = logging.getLogger(__name__)

DIED = "died"

# After these verbs no process of ddpctl may stay on the node, so the call also waits for the worker's end.
_NOTHING_STAYS = frozenset({"stop", "rehearse"})
# After these verbs the worker takes no more requests. A tail lives as long as its run; each tail has its own process.
_LAST = _NOTHING_STAYS | {"tail"}
_READS = frozenset(
    {"echo", "probe", "status", "metrics", "history", "tail", "fetch", "store_has", "free_port", "firewall"}
    | {"untracked"}
)


class Worker:
    """A worker whose command has just been started on ``pipe``. It serves requests one after the other."""

    def __init__(self, pipe: Pipe, python: str) -> None:
        self.pipe = pipe
        self._python = python
        self._frames = FrameReader()
        self._unread: deque[Frame] = deque()
        self._greeted = False
        self.has_answered = False  # to the current request

    def is_ready(self) -> bool:
        """Return whether the worker waits for another request. False: it has ended, or does not say so in time."""
        with suppress(DdpctlError):
            said = self._next(Watch("the worker", READY_S), None).data
            return contract.READY in said and not self._unread and self.pipe.recv(0.0) is None
        return False

    def serve(self, watch: Watch, package: Payload, request: Request, on_frame: OnFrame) -> dict[str, Any]:
        """Send a request and return its result; pass the frames before it to ``on_frame``.

        The first request of a worker is preceded by the header, the banner, and the package where the node lacks it.
        """
        self.has_answered = False
        if not self._greeted and not self._greet(watch, request.base_dir, package):
            return self._result(watch, on_frame, None)
        self._greeted = True
        self._write(watch, json.dumps(request.to_json()).encode("ascii") + b"\n")
        sender = Sender(self.pipe, request.body, watch) if request.body is not None else None
        ender = Ender(self.pipe, request.until) if request.until is not None else None
        beside = [thread for thread in (sender, ender) if thread is not None]
        for thread in beside:
            thread.start()
        try:
            return self._result(watch, on_frame, sender)
        finally:
            for thread in beside:
                thread.stop()

    def _greet(self, watch: Watch, base_dir: str, package: Payload) -> bool:
        """Start the worker's session. False: the start failed, and the next frame says why."""
        nonce = secrets.token_hex(16)  # a shell profile cannot print it by chance or by copying
        self._write(watch, bootstrap.header(nonce, base_dir, package))
        word, rest = self._banner(watch, nonce)
        self._unread.extend(self._frames.feed(rest))
        if word.startswith(contract.OLD):
            raise bootstrap.old_python_error(word[len(contract.OLD) :].strip(), self._python)
        if word == contract.NEED:
            self._write(watch, package.data)
        elif word not in (contract.HAVE, contract.FAIL):
            raise garbled(f"its banner says {word!r}")
        return word != contract.FAIL

    def _write(self, watch: Watch, data: bytes) -> None:
        view, clock = memoryview(data), ProgressClock()
        while view:
            watch.check()
            clock.check("the start of the worker")
            begun = time.monotonic()
            try:
                taken = self.pipe.send(view, watch.step)
            except BrokenPipeError:
                return  # the reader finds what the command printed instead
            clock.waited(time.monotonic() - begun)
            if taken:
                clock.moved(taken)
                view = view[taken:]
                watch.heard()
            elif watch.silence > contract.LINK_DEAD_S:
                raise connection_silent(watch.silence)

    def _banner(self, watch: Watch, nonce: str) -> tuple[str, bytes]:
        reader = bootstrap.BannerReader(nonce)
        until = time.monotonic() + BANNER_S
        while True:
            watch.check()
            data = self.pipe.recv(watch.step)
            if data:
                word = reader.feed(data)
                if word is not None:
                    watch.heard()
                    return word, reader.rest
            elif data is not None:
                raise bootstrap.no_banner_error(
                    self._python, self.pipe.exit_code(EXIT_CODE_S), reader.noise, self.pipe.stderr()
                )
            if time.monotonic() > until:
                said = bootstrap.last_line(self.pipe.stderr(), reader.noise)
                raise ShellBroken(
                    f"login works, but {self._python} does not answer within {BANNER_S:g} s"
                    + (f"; the shell said: {said}" if said else ""),
                    hint="check the account's profile (~/.bashrc) and the disk its home is on",
                )

    def _result(self, watch: Watch, on_frame: OnFrame, sender: Sender | None) -> dict[str, Any]:
        while True:
            frame = self._next(watch, sender)
            if "ok" in frame.data:
                return outcome(frame.data)
            if contract.READY in frame.data:
                raise worker_died("its process ended")
            on_frame(frame)

    def _next(self, watch: Watch, sender: Sender | None) -> Frame:
        """Return the next frame that is not a heartbeat."""
        while True:
            while self._unread:
                frame = self._unread.popleft()
                if contract.KEEPALIVE not in frame.data:
                    watch.heard_frame()
                    return frame
            watch.check()
            if sender and sender.error:
                raise sender.error
            # While a body is being sent, wake up often enough to see its end or its error.
            begun = time.monotonic()
            data = self.pipe.recv(min(watch.step, POLL_S) if sender else watch.step)
            watch.waited(begun)
            if data:
                watch.heard()
                self.has_answered = True
                before = self._frames.raw_bytes
                self._unread.extend(self._frames.feed(data))
                watch.moved(self._frames.raw_bytes - before)
            elif data is not None:
                raise self._ended()
            elif watch.silence > contract.LINK_DEAD_S:
                raise connection_silent(watch.silence)

    def _ended(self) -> RemoteError:
        """Return the error for a stream without a result: the worker died. (A dead link raises by itself.)"""
        code = self.pipe.exit_code(EXIT_CODE_S)
        said = bootstrap.last_line(self.pipe.stderr())
        return worker_died(f"exit status {code}" if code >= 0 else "no exit status", said)


class IdleWorker:
    """Keeps a worker of a host between requests, so that the node need not start an interpreter for each request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def take(self) -> Worker | None:
        """Return the waiting worker if there is one and it is alive."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is None or worker.is_ready():
            return worker
        worker.pipe.close()
        return None

    def keep(self, worker: Worker) -> None:
        """Keep ``worker`` for the next request, or close it if another worker is waiting already."""
        with self._lock:
            if self._worker is None:
                self._worker = worker
                return
        worker.pipe.close()

    def end(self) -> None:
        """End the waiting worker and wait for its end: no process stays on a node once the user has an answer."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(DdpctlError):
                worker.pipe.end_input()
                worker.pipe.exit_code(ENDED_S)
            worker.pipe.close()


@dataclass(frozen=True)
class Request:
    """The content of a call: host, verb and arguments, and the streams beside them."""

    host: str
    base_dir: str
    verb: str
    args: Mapping[str, Any]
    body: Iterable[bytes] | None = None
    on_frame: OnFrame | None = None
    until: threading.Event | None = None

    @property
    def again(self) -> bool:
        """Whether the worker may serve another request after this one."""
        return self.body is None and self.until is None and self.verb not in _LAST

    def to_json(self) -> dict[str, Any]:
        fields = {"verb": self.verb, "host": self.host, "base_dir": self.base_dir, contract.AGAIN: self.again}
        return {**self.args, **fields}


class WorkerTransport:
    """The calls of a host's worker. A subclass starts the worker's command by SSH or on this machine."""

    def __init__(self, host: Host, quiet: QuietCalls | None = None) -> None:
        self._host = host
        self._quiet = quiet or QuietCalls()
        self._lock = threading.Lock()
        self._waiting = IdleWorker()

    @property
    def host(self) -> str:
        return self._host.name

    def call(
        self,
        verb: str,
        args: Mapping[str, Any] | None = None,
        *,
        body: Iterable[bytes] | None = None,
        on_frame: OnFrame | None = None,
        timeout: float | None = 60.0,
        cancel: Callable[[], bool] | None = None,
        until: threading.Event | None = None,
        clock: ProgressClock | None = None,
    ) -> Any:
        request = Request(self.host, self._host.base_dir, verb, args or {}, body, on_frame, until)
        with self._quiet.call(self.host, verb, noted=timeout is not None or clock is not None) as quiet:
            watch = Watch(f"`{verb}`", timeout, cancel, clock, quiet)
            return call(request, watch, self._waiting, self._host.python, lambda: self._worker(timeout), payload())

    def _worker(self, timeout: float | None) -> Pipe:
        """Start the worker's command. ``timeout`` (seconds) is the call's; None for a stream."""
        raise NotImplementedError


def call(
    request: Request, watch: Watch, waiting: IdleWorker, python: str, start: Callable[[], Pipe], package: Payload
) -> Any:
    """Do ``Transport.call`` with the waiting worker, or with a worker that ``start`` starts."""
    worker = waiting.take()
    if worker is not None:
        try:
            return _serve(worker, request, watch, waiting, package)
        except DdpctlError as error:
            # The waiting worker or its connection ended between two requests. Only verbs that read are sent again.
            # Ctrl-C ends connections too, and a repeated start could arrive after the stop that undoes it.
            if worker.has_answered or request.verb not in _READS or not has_ended(error):
                raise
    return _serve(Worker(start(), python), request, watch, waiting, package)


def _serve(worker: Worker, request: Request, watch: Watch, waiting: IdleWorker, package: Payload) -> Any:
    """Serve a request, then keep the worker for another request or close it."""
    host, verb = request.host, request.verb

    def checked(frame: Frame) -> None:
        frame = answers.check_frame(verb, frame, host, request.args)
        if request.on_frame is not None:
            request.on_frame(frame)

    pipe = worker.pipe
    try:
        said = worker.serve(watch, package, request, checked)
        result = answers.check_result(verb, said, host, request.args)
        if verb in _NOTHING_STAYS:
            with suppress(LinkLost):  # the answer is already here
                pipe.exit_code(ENDED_S)
    except BaseException as error:
        pipe.close(lost=isinstance(error, LinkLost))
        _log(worker, host, verb)
        if isinstance(error, DdpctlError):
            raise with_host(host, error) from None
        raise
    if request.again:
        waiting.keep(worker)
    else:
        pipe.close()
    _log(worker, host, verb)
    return result


def _log(worker: Worker, host: str, verb: str) -> None:
    errors = worker.pipe.stderr()
    if errors:
        log.debug("%s: %s: stderr of the worker: %s", host, verb, errors.decode("utf-8", "replace"))


def outcome(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result that the last frame carries.

    Raises:
        RemoteError: the frame carries an error, or neither a result nor an error.
    """
    result, error = data.get("result"), data.get("error")
    if data["ok"] is True and isinstance(result, dict):
        return result
    if data["ok"] is not False or not isinstance(error, dict):
        raise garbled("its last message holds neither a result nor an error")
    message, kind, hint = (error.get(key) for key in ("message", "kind", "hint"))
    raise RemoteError(
        _said(message) or "the worker failed without a message",
        kind=_said(kind) or "error",
        hint=_said(hint),
    )


def _said(text: object) -> str | None:
    return str(text)[:MESSAGE_LETTERS] if text else None


def has_ended(error: DdpctlError) -> bool:
    """Return whether ``error`` means that the worker, or the connection to it, has ended."""
    return isinstance(error, LinkLost) or (isinstance(error, RemoteError) and error.kind == DIED)


def worker_died(how: str, said: str = "") -> RemoteError:
    return RemoteError(f"the worker ended without a result ({how})" + (f": {said}" if said else ""), kind=DIED)


def connection_silent(seconds: float) -> LinkLost:
    return LinkLost(f"the connection is dead: no data for {seconds:.0f} s", hint="check the host and the network to it")


def with_host(host: str, error: DdpctlError) -> DdpctlError:
    """Name the host in ``error``, unless it names one; return the same error."""
    error.host = error.host or host
    return error
