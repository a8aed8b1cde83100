"""A signal ends a command, whatever the main thread is doing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated, Any

import pytest
from pydantic import PlainSerializer, TypeAdapter

from ddpctl.cli import program
from ddpctl.cli.interrupts import Interrupts
from tests.cli.conftest import InProcess


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


def press_ctrl_c(_value: int) -> int:
    raise KeyboardInterrupt


def test_a_signal_that_pydantic_catches_counts(monkeypatch: pytest.MonkeyPatch, run_command: InProcess) -> None:
    def app(*_args: Any, **_options: Any) -> None:
        TypeAdapter(Annotated[int, PlainSerializer(press_ctrl_c)]).dump_python(1)

    monkeypatch.setattr(program, "make_app", lambda _names: app)
    done = run_command("ps")
    assert (done.rc, done.stderr) == (130, "interrupted\n")
