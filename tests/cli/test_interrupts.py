"""A signal ends a command, whatever the main thread is doing."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from ddpctl.cli.interrupts import Interrupts


class Finalized:
    """Gets a signal in its finalizer, where Python ignores an exception."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        while True:  # the handler runs here
            threading.Event().wait(0.01)


@pytest.mark.slow  # a signal, and a wait for it
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_python_ignores_counts(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook

    def work() -> None:
        Finalized(number)
        threading.Event().wait(20)

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert interrupts.pressed
        assert interrupts.must_end == (number == signal.SIGTERM)
    assert sys.unraisablehook is hook
    assert "ignored" not in capsys.readouterr().err
