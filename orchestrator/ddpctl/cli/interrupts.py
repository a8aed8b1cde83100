"""What the signals that end a program do to a command that has started processes on other machines."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Takes SIGINT (Ctrl-C), SIGTERM and SIGHUP while it is in force.

    The first one raises KeyboardInterrupt in the main thread, so that what was begun can be undone; those after it are
    noted only, so that undoing it comes to its end. Within ``noted`` the first is noted only, too.
    """

    def __init__(self) -> None:
        self.pressed = False
        self.told_to_end = False  # by another program, or the terminal is gone: there is nobody to be asked
        self._raises = True

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._take) for number in numbers}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        raises, self._raises = self._raises, False
        self.pressed = True
        self.told_to_end = self.told_to_end or number != signal.SIGINT
        if raises:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """A signal sets ``pressed`` and nothing else."""
        self.pressed = self._raises = False
        yield

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """The next signal raises KeyboardInterrupt again."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False
