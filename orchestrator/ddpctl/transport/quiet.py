"""Notes about nodes that live and send nothing useful: a person sees which host a command waits for, and with what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ddpctl.spec.ranges import fold_names
from ddpctl.transport.limits import PATIENT_S, QUIET_BYTES, QUIET_S
from ddpctl.transport.prompts import Say


class QuietCalls:
    """The calls of a fleet that wait for their nodes. A note names each host that has sent nothing useful for QUIET_S.

    Another note follows after twice the time, and so on. A note ends no call: each call has a deadline of its own.
    """

    def __init__(self, say: Say = lambda _text: None) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._calls: set[QuietCall] = set()

    @contextmanager
    def call(self, host: str, verb: str, *, noted: bool) -> Iterator[QuietCall]:
        """Yield the waiting of a call. Not ``noted``: a stream, in which a long silence is normal."""
        call = QuietCall(self, host, verb)
        if noted:
            with self._lock:
                self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def note(self, late: QuietCall) -> None:
        """Name ``late`` in a note, together with the hosts that are due within PATIENT_S for the same reason."""
        with self._lock:
            if late not in self._calls or late.silent_s < late.next_s:  # another thread has named it
                return
            due = [call for call in self._calls if call is late or call.is_due_with(late)]
            seconds = min(call.silent_s for call in due)
            for call in due:
                call.next_s *= 2
        hosts = fold_names(sorted(call.host for call in due))
        self._say(f"waiting for {hosts}: nothing but signs of life from `{late.verb}` for {seconds:.0f} s")


class QuietCall:
    """The time that a call has waited for its node since the last useful bytes: a frame, or QUIET_BYTES of a file."""

    def __init__(self, calls: QuietCalls, host: str, verb: str) -> None:
        self.host, self.verb = host, verb
        self.silent_s, self.next_s = 0.0, QUIET_S
        self._calls, self._moved = calls, 0

    def is_due_with(self, late: QuietCall) -> bool:
        """Return whether one note can name both calls."""
        soon = self.silent_s >= self.next_s - PATIENT_S
        return self.verb == late.verb and self.next_s == late.next_s and soon

    def waited(self, seconds: float) -> None:
        """Count a wait for the node. Of a long wait only a part counts: ddpctl itself was suspended."""
        self.silent_s += min(seconds, 2 * PATIENT_S)
        if self.silent_s >= self.next_s:
            self._calls.note(self)

    def moved(self, count: int) -> None:
        """Count ``count`` bytes of a file."""
        self._moved += count
        if self._moved >= QUIET_BYTES:
            self.heard()

    def heard(self) -> None:
        """Note something useful."""
        self.silent_s, self.next_s, self._moved = 0.0, QUIET_S, 0
