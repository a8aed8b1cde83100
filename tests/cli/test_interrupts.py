"""A signal ends a command, whatever the main thread is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import PlainSerializer, TypeAdapter

from ddpctl.cli import program, session
from ddpctl.cli.bench import network
from ddpctl.cli.interrupts import Interrupts
from ddpctl.cli.limits import AGAIN_S
from ddpctl.cli.up import bring_up
from ddpctl.errors import DdpctlError, HostsFailed, Interrupted, Unreachable
from ddpctl.files.inventory import load_text
from ddpctl.spec.event import Tell
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.plan import Facts, NodeFacts
from ddpctl.spec.status import RunStatus
from ddpctl.stages.launch import launch_of
from ddpctl.stages.up import FACTS_ONLY, Up
from tests.cli.conftest import InProcess
from tests.stages.test_status import OLD, part
from tests.transport.dry import Asked, DryFleet, DryTransport

INVENTORY = load_text(
    b"""
project: exp
hosts: [a, b]
jobs:
  j: {script: train.py, code: null, workdir: /w, master_port: 29500, nproc_per_node: 1}
""",
    "i.yaml",
)
FACTS = Facts({host: NodeFacts(fabric_address=f"10.0.0.{n}") for n, host in enumerate("ab", 1)})
STOPPED = {"signalled": 1, "forced": 0, "survivors": []}


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
        threading.Event().wait(60)

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert interrupts.pressed
        assert interrupts.must_end == (number == signal.SIGTERM)
    assert sys.unraisablehook is hook
    assert "ignored" not in capsys.readouterr().err


@pytest.mark.slow  # a signal, and a wait for it
def test_a_signal_that_comes_again_too_early_comes_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busy machine lets the main thread wait, while it still handles the ignored exception."""
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        threading.Event().wait(10 * AGAIN_S)

    def work() -> None:
        Finalized(signal.SIGINT)
        threading.Event().wait(60)

    with Interrupts(), monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_slowly)
        with pytest.raises(KeyboardInterrupt):
            work()


def press_ctrl_c(_value: int) -> int:
    raise KeyboardInterrupt


def test_a_signal_that_pydantic_catches_counts(monkeypatch: pytest.MonkeyPatch, run_command: InProcess) -> None:
    def app(*_args: Any, **_options: Any) -> None:
        TypeAdapter(Annotated[int, PlainSerializer(press_ctrl_c)]).dump_python(1)

    monkeypatch.setattr(program, "make_app", lambda _names: app)
    done = run_command("ps")
    assert (done.rc, done.stderr) == (130, "interrupted\n")


# --- the first Ctrl-C comes while a run is ended ----------------------------------------------------------------------
class Undone:
    """Two hosts with a run. The first request to end it brings Ctrl-C, and host b is lost then if ``lost``.

    ``over``: set it at the end of the test.
    """

    def __init__(self, *, lost: bool) -> None:
        self._lost, self._pressed, self.over = lost, threading.Event(), threading.Event()
        status = {"runs": [part(OLD, "a", "succeeded", ["a", "b"])]}
        tail = {"offset": 0, "state": "succeeded"}
        answers = {"tail": tail, "status": status, "stop": self._stop}
        self.fleet = DryFleet(DryTransport(host, answers) for host in "ab")  # type: ignore[arg-type]

    def _stop(self, asked: Asked) -> Any:
        if not self._pressed.is_set():
            self._pressed.set()
            os.kill(os.getpid(), signal.SIGINT)
            self.over.wait(60)
        if asked.host == "b" and self._lost:
            return Unreachable("no answer")
        return {**STOPPED, "status": part(asked.args["run"], asked.host, "killed", ["a", "b"])}

    @contextlib.contextmanager
    def opened(self, _inventory: object) -> Iterator[tuple[DryFleet, Tell]]:
        yield self.fleet, lambda event: None


def started(up: Up) -> RunStatus:
    up.facts = FACTS
    up.plan = up._launch.plan(FACTS)
    return RunStatus("j", OLD, "default", (NodeStatus("a", 0, "running"), NodeStatus("b", 1, "running")))


@pytest.fixture
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def network_test(undone: Undone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "load", lambda *file, **how: INVENTORY)
    monkeypatch.setattr(session, "working_fleet", undone.opened)
    monkeypatch.setattr(Up, "run", started)
    network(None, "j", None, None, False)  # type: ignore[arg-type]


def failing_start(undone: Undone, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(up: Up) -> RunStatus:
        started(up)
        raise HostsFailed("1 of 2 hosts did not start", {})

    monkeypatch.setattr(Up, "run", fail)
    launch = launch_of(INVENTORY, INVENTORY.job("j"), session.new_identity(INVENTORY))
    with Interrupts():
        bring_up(launch, undone.fleet, FACTS_ONLY, as_json=False)


@pytest.mark.slow  # signals
@pytest.mark.usefixtures("_own_state")
@pytest.mark.parametrize("command", [network_test, failing_start])
def test_a_first_ctrl_c_while_a_run_is_ended_begins_that_again(
    command: Callable[[Undone, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    undone, lost = Undone(lost=False), Undone(lost=True)
    with pytest.raises(Interrupted, match="nothing is left running"):
        command(undone, monkeypatch)
    assert {asked.host for asked in undone.fleet.calls if asked.verb == "stop"} == {"a", "b"}
    reason = "1 of 2 hosts did not start" if command is failing_start else ""
    assert reason in capsys.readouterr().err
    with pytest.raises(DdpctlError, match=r"not reached: b|may still be running") as left:
        command(lost, monkeypatch)
    assert left.value.exit_code == 4
    undone.over.set()
    lost.over.set()


@pytest.mark.slow  # signals
def test_ctrl_c_that_also_ends_the_reader_of_stderr_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(_text: str) -> None:
        raise BrokenPipeError

    undone = Undone(lost=False)
    monkeypatch.setattr(session, "warn", warn)
    with pytest.raises(Interrupted, match="nothing is left running"):
        failing_start(undone, monkeypatch)
    undone.over.set()
