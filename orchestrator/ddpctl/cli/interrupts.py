"""Handles SIGINT, SIGTERM and SIGHUP in commands that have started processes on other machines."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Handles SIGINT (Ctrl-C), SIGTERM and SIGHUP within its ``with`` block.

    The first signal raises KeyboardInterrupt in the main thread, so that the command can undo its work. Further signals
    only set ``pressed``, so that the undoing is not interrupted. Within ``noted`` the first signal only sets it, too.
    """

    def __init__(self) -> None:
        self.pressed = False
        self.must_end = False  # after SIGTERM or SIGHUP: there may be no person to ask
        self._raises = True

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # set by nohup
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._take) for number in numbers}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        raises, self._raises = self._raises, False
        self.pressed = True
        self.must_end = self.must_end or number != signal.SIGINT
        if raises:
            raise KeyboardInterrupt

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
