"""One call of the worker over any pipe: what SSH and this machine have in common."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ddpctl.errors import DdpctlError, Interrupted, LinkLost, RemoteError, ShellBroken
from ddpctl.transport import answers, bootstrap
from ddpctl.transport.base import Frame, OnFrame
from ddpctl.transport.frames import FrameReader, garbled
from ddpctl.transport.limits import BANNER_S, ENDED_S, MESSAGE_LETTERS, PATIENT_S, POLL_S
from ddpctl.transport.payload import Payload
from ddpctl.transport.pipe import Pipe
from ddpctl_worker import contract

log = logging.getLogger(__name__)

Cancel = Callable[[], bool]
# Verbs after which a node shall be as if nothing had been there: the worker's own end is waited for too.
_NOTHING_STAYS = frozenset({"stop", "rehearse"})


class Watch:
    """The clock of one call: its deadline, its cancellation, and how long the other side has been silent."""

    def __init__(self, what: str, timeout: float | None, cancel: Cancel | None = None) -> None:
        self._what = what
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self._cancel = cancel
        self._heard = time.monotonic()

    def heard(self) -> None:
        """A sign of life."""
        self._heard = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._heard

    def check(self) -> None:
        """Raises Interrupted or RemoteError (kind ``timeout``) when it is time to stop."""
        if self._cancel is not None and self._cancel():
            raise Interrupted(f"{self._what} was cancelled")
        if self._end is not None and time.monotonic() >= self._end:
            raise RemoteError(f"{self._what} did not end within {self._timeout:g} s", kind="timeout")

    @property
    def step(self) -> float:
        """How long to wait for bytes before the next ``check``."""
        longest = PATIENT_S if self._cancel is None else POLL_S
        return longest if self._end is None else min(longest, max(self._end - time.monotonic(), 0.001))

    def step_beside(self, sender: object | None) -> float:
        """The same while a body may be on its way, whose end or error is looked for."""
        return self.step if sender is None else min(self.step, POLL_S)


class Sender(threading.Thread):
    """Writes a body while the caller reads frames, so that neither side ever waits for the other."""

    def __init__(self, pipe: Pipe, parts: Iterable[bytes], watch: Watch) -> None:
        super().__init__(name="ddpctl-body", daemon=True)
        self._pipe, self._parts, self._watch = pipe, parts, watch
        self._over = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for part in self._parts:
                if not self._write(part):
                    return
        except BrokenPipeError:
            return  # the reader finds out why
        except Exception as error:  # handed to the caller's thread, which raises it
            self.error = error

    def _write(self, part: bytes) -> bool:
        view = memoryview(part)
        while view:
            if self._over.is_set():
                return False
            taken = self._pipe.send(view, POLL_S)
            if taken:
                self._watch.heard()
                view = view[taken:]
        return True

    def stop(self) -> None:
        """The rest is not wanted."""
        self._over.set()
        self.join(4 * POLL_S)


class Ender(threading.Thread):
    """Ends the command's input once ``until`` is set."""

    def __init__(self, pipe: Pipe, until: threading.Event) -> None:
        super().__init__(name="ddpctl-ender", daemon=True)
        self._pipe, self._until = pipe, until
        self._over = False

    def run(self) -> None:
        while not self._until.wait(PATIENT_S):
            if self._over:
                return
        with suppress(Exception):  # the link is gone: the reader finds out why
            self._pipe.end_input()

    def stop(self) -> None:
        """The command has ended by itself."""
        self._over = True


class Call:
    """One verb of the worker over ``pipe``, whose command has just been started."""

    def __init__(self, pipe: Pipe, python: str, watch: Watch) -> None:
        self._pipe, self._python, self._watch = pipe, python, watch
        self._frames = FrameReader()

    def converse(
        self,
        base_dir: str,
        package: Payload,
        request: Mapping[str, Any],
        body: Iterable[bytes] | None,
        until: threading.Event | None,
        on_frame: OnFrame,
    ) -> dict[str, Any]:
        """Header, banner, package where it is missing, request, frames; returns the result."""
        nonce = bootstrap.new_nonce()
        self._write(bootstrap.header(nonce, base_dir, package))
        word, rest = self._banner(nonce)
        if word.startswith(bootstrap.OLD):
            raise bootstrap.too_old(word[len(bootstrap.OLD) :].strip(), self._python)
        if word == bootstrap.NEED:
            self._write(package.data)
        elif word not in (bootstrap.HAVE, bootstrap.FAIL):
            raise garbled(f"its banner says {word!r}")
        if word == bootstrap.FAIL:
            return self._result(rest, on_frame, None)
        self._write(json.dumps(request).encode("ascii") + b"\n")
        sender = Sender(self._pipe, body, self._watch) if body is not None else None
        ender = Ender(self._pipe, until) if until is not None else None
        beside = [thread for thread in (sender, ender) if thread is not None]
        for thread in beside:
            thread.start()
        try:
            return self._result(rest, on_frame, sender)
        finally:
            for thread in beside:
                thread.stop()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._watch.check()
            try:
                taken = self._pipe.send(view, self._watch.step)
            except BrokenPipeError:
                return  # what the command said instead is there to be read
            if taken:
                view = view[taken:]
                self._watch.heard()
            elif self._watch.silence > contract.LINK_DEAD_S:
                raise silent(self._watch.silence)

    def _banner(self, nonce: str) -> tuple[str, bytes]:
        reader = bootstrap.BannerReader(nonce)
        until = time.monotonic() + BANNER_S
        while True:
            self._watch.check()
            data = self._pipe.recv(self._watch.step)
            if data:
                word = reader.feed(data)
                if word is not None:
                    self._watch.heard()
                    return word, reader.rest
            elif data is not None:
                raise bootstrap.no_banner(self._python, self._pipe.exit_code(2.0), reader.noise, self._pipe.stderr())
            if time.monotonic() > until:
                said = bootstrap.last_line(self._pipe.stderr(), reader.noise)
                raise ShellBroken(
                    f"login works, but {self._python} does not answer within {BANNER_S:g} s"
                    + (f"; the shell said: {said}" if said else ""),
                    hint="check the account's profile (~/.bashrc) and the disk its home is on",
                )

    def _result(self, data: bytes | None, on_frame: OnFrame, sender: Sender | None) -> dict[str, Any]:
        while True:
            for frame in self._frames.feed(data) if data else ():
                if "ok" in frame.data:
                    return outcome(frame.data)
                if "hb" not in frame.data:
                    on_frame(frame)
            self._watch.check()
            if sender and sender.error and not isinstance(sender.error, DdpctlError):
                raise sender.error
            data = self._pipe.recv(self._watch.step_beside(sender))
            if data:
                self._watch.heard()
            elif data is not None:
                raise self._ended()
            elif self._watch.silence > contract.LINK_DEAD_S:
                raise silent(self._watch.silence)

    def _ended(self) -> RemoteError:
        """The stream ended without a result: the worker died (a link that died raises by itself)."""
        code = self._pipe.exit_code(2.0)
        said = bootstrap.last_line(self._pipe.stderr())
        how = f"exit status {code}" if code >= 0 else "no exit status"
        return RemoteError(f"the worker ended without a result ({how})" + (f": {said}" if said else ""), kind="died")


def call(
    pipe: Pipe,
    *,
    host: str,
    python: str,
    base_dir: str,
    package: Payload,
    verb: str,
    args: Mapping[str, Any] | None,
    body: Iterable[bytes] | None,
    on_frame: OnFrame | None,
    until: threading.Event | None,
    watch: Watch,
) -> dict[str, Any]:
    """``Transport.call`` over a pipe; the pipe is closed at the end, however it ends."""
    asked = args or {}
    request = {**asked, "verb": verb, "host": host, "base_dir": base_dir}

    def checked(frame: Frame) -> None:
        frame = answers.frame(verb, frame, host, asked)
        if on_frame is not None:
            on_frame(frame)

    try:
        said = Call(pipe, python, watch).converse(base_dir, package, request, body, until, checked)
        result = answers.result(verb, said, host, asked)
        if verb in _NOTHING_STAYS:
            pipe.exit_code(ENDED_S)
        return result
    except DdpctlError as error:
        pipe.close(lost=isinstance(error, LinkLost))
        raise at(host, error) from None
    finally:
        pipe.close()
        errors = pipe.stderr()
        if errors:
            log.debug("%s: %s: stderr of the worker: %s", host, verb, errors.decode("utf-8", "replace"))


def outcome(data: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the last frame, or its error raised."""
    result, error = data.get("result"), data.get("error")
    if data["ok"] is True and isinstance(result, dict):
        return result
    if data["ok"] is not False or not isinstance(error, dict):
        raise garbled("its last message holds neither a result nor an error")
    message, kind, hint = (error.get(key) for key in ("message", "kind", "hint"))
    raise RemoteError(
        _said(message) or "the worker failed without a word",
        kind=_said(kind) or "error",
        hint=_said(hint),
    )


def _said(text: object) -> str | None:
    """A node's own words, not more of them than a person reads."""
    return str(text)[:MESSAGE_LETTERS] if text else None


def silent(seconds: float) -> LinkLost:
    return LinkLost(
        f"the connection is dead: not a byte for {seconds:.0f} s", hint="check the host and the network to it"
    )


def at(host: str, error: DdpctlError) -> DdpctlError:
    """The same error, with its host."""
    error.host = error.host or host
    return error
