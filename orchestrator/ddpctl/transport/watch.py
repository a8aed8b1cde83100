"""The helpers of a worker call: its clocks, the thread that sends its body, and the thread that ends its input."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from ddpctl.errors import AnswerLate, DdpctlError, Interrupted
from ddpctl.transport.limits import PATIENT_S, POLL_S
from ddpctl.transport.pipe import Pipe
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl.transport.quiet import QuietCall

Cancel = Callable[[], bool]


class Watch:
    """The clock of a call: deadline, cancellation, the last sign of life; ``clock`` and ``quiet`` if given."""

    def __init__(
        self,
        what: str,
        timeout: float | None,
        cancel: Cancel | None = None,
        clock: ProgressClock | None = None,
        quiet: QuietCall | None = None,
    ) -> None:
        self._what = what
        self._clock, self._quiet = clock, quiet
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self._cancel = cancel
        self._heard = time.monotonic()

    def heard(self) -> None:
        """Note a sign of life."""
        self._heard = time.monotonic()

    def heard_frame(self) -> None:
        """Note a frame that is no heartbeat."""
        if self._quiet is not None:
            self._quiet.heard()

    def moved(self, count: int) -> None:
        """Note bytes that are progress (``ProgressClock``)."""
        if self._clock is not None:
            self._clock.moved(count)
        if self._quiet is not None:
            self._quiet.moved(count)

    def waited(self, since: float) -> None:
        """Note a wait for the node since ``since`` (monotonic clock)."""
        seconds = time.monotonic() - since
        if self._clock is not None:
            self._clock.waited(seconds)
        if self._quiet is not None and not (self._clock is not None and self._clock.is_paused):
            self._quiet.waited(seconds)

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._heard

    def check(self) -> None:
        """Check whether the call has to stop.

        Raises:
            Interrupted: the call was cancelled.
            AnswerLate: the deadline is over, or the call makes no progress.
        """
        if self._cancel is not None and self._cancel():
            raise Interrupted(f"{self._what} was cancelled")
        if self._end is not None and time.monotonic() >= self._end:
            raise AnswerLate(f"{self._what} did not end within {self._timeout:g} s")
        if self._clock is not None:
            self._clock.check(self._what)

    @property
    def step(self) -> float:
        """Seconds to wait for bytes before the next ``check``."""
        longest = PATIENT_S if self._cancel is None else POLL_S
        return longest if self._end is None else min(longest, max(self._end - time.monotonic(), 0.001))


class Sender(threading.Thread):
    """Writes a body while the caller reads frames, so that neither side waits for the other."""

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
        except Exception as error:  # of the body; the caller's thread raises it
            self.error = error

    def _write(self, part: bytes) -> bool:
        view = memoryview(part)
        while view:
            if self._over.is_set():
                return False
            try:
                taken = self._pipe.send(view, POLL_S)
            except (BrokenPipeError, DdpctlError):
                return False  # the reader finds out why
            if taken:
                self._watch.heard()
                self._watch.moved(taken)
                view = view[taken:]
        return True

    def stop(self) -> None:
        """Stop sending: the receiver does not want the rest."""
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
        with suppress(Exception):  # the connection is gone: the reader finds out why
            self._pipe.end_input()

    def stop(self) -> None:
        """Stop waiting: the command has ended by itself."""
        self._over = True
