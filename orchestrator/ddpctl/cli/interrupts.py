"""Handles SIGINT, SIGTERM and SIGHUP in commands that have started processes on other machines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from ddpctl.cli.limits import AGAIN_S


class Interrupts:
    """Handles SIGINT (Ctrl-C), SIGTERM and SIGHUP within its ``with`` block.

    The first signal raises KeyboardInterrupt in the main thread, so that the command can undo its work. Further signals
    only set ``pressed``, so that the undoing is not interrupted. Within ``noted`` the first signal only sets it, too.

    Python ignores an exception in some places, such as a finalizer. If the KeyboardInterrupt was raised there, the
    signal is sent again.
    """

    def __init__(self) -> None:
        self.pressed = False
        self.must_end = False  # after SIGTERM or SIGHUP: there may be no person to ask
        self._raises = True
        self._deaf = False  # an exception raised now would be lost
        self._heard = threading.Event()  # a signal that is sent again has been handled

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # set by nohup
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._take) for number in numbers}
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._repeat_ignored
        return self

    def __exit__(self, *_error: object) -> None:
        self._heard.set()
        sys.unraisablehook = self._hook_before
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        self.must_end = self.must_end or number != signal.SIGINT
        if self._deaf:
            return
        raises, self._raises = self._raises, False
        self._heard.set()
        if raises:
            raise KeyboardInterrupt

    def _repeat_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Send the signal again, from another thread: here the exception would be ignored once more."""
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            self._hook_before(ignored)
            return
        self._deaf, self._raises, self._heard = True, True, threading.Event()
        threading.Thread(target=_send_until, args=(self._heard,), name="again", daemon=True).start()
        self._deaf = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Let a signal only set ``pressed``."""
        self.pressed = self._raises = False
        yield

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Let the next signal raise KeyboardInterrupt again."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False


def _send_until(heard: threading.Event) -> None:
    """Send SIGINT to this process until it is heard."""
    while not heard.wait(AGAIN_S):
        os.kill(os.getpid(), signal.SIGINT)
