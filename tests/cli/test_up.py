"""What can happen to `up` and `attach` on this machine while the run is healthy.

After Ctrl-C the words say whether the run is still in line for its slots.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ddpctl.cli import output, session, up
from ddpctl.cli.follow import follow_run
from ddpctl.cli.interrupts import Interrupts
from ddpctl.cli.up import OnInterrupt, follow_up
from ddpctl.errors import Interrupted, Unreachable
from ddpctl.files.inventory import load_text
from ddpctl.spec.origin import Origin
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.plan import RunIdentity
from ddpctl.spec.status import RunStatus
from ddpctl.stages.launch import Launch
from ddpctl.stages.preflight import Options
from ddpctl.transport.base import Frame
from tests.transport.dry import Answer, Asked, DryFleet, DryTransport, Stream

RUN = "20260101T000000Z-aaaaaa"
IN_LINE = f"follow it: ddpctl attach {RUN}; take it out of the line: ddpctl kill {RUN}"
RUNNING = f"follow it: ddpctl attach {RUN}; end it: ddpctl kill {RUN}"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def fleet_that_says(now: str, tail: Answer) -> DryFleet:
    names = {"run": RUN, "job": "train", "cluster": "lab", "host": "a", "node_rank": 0}
    status = {**names, "state": now, "record": {"project": "exp", "hosts": ["a"]}}
    return DryFleet([DryTransport("a", {"tail": tail, "status": {"runs": [status]}})])


def follow_and_press(now: str, on_interrupt: OnInterrupt) -> int:
    """Follow a run that began in line, press Ctrl-C at once, and find the state ``now`` on its host."""
    interrupts = Interrupts()

    def tail(asked: Asked) -> Unreachable:
        interrupts.pressed = True
        return Unreachable("no answer", host=asked.host)  # the output does not end before the key counts

    run = RunStatus("train", RUN, "lab", (NodeStatus("a", 0, "queued"),))
    return follow_up(run, fleet_that_says(now, tail), interrupts, on_interrupt, as_json=False)


@pytest.mark.parametrize(
    ("now", "message", "hint"),
    [("queued", "train still waits in line", IN_LINE), ("running", "train is still running", RUNNING)],
)
def test_without_a_terminal_the_state_and_both_commands_are_named(now: str, message: str, hint: str) -> None:
    with pytest.raises(Interrupted) as ended:
        follow_and_press(now, OnInterrupt.DETACH)
    assert (ended.value.message, ended.value.hint) == (f"detached: {message}", hint)


@pytest.mark.parametrize(
    ("now", "message", "hint"),
    [("queued", "train still waits in line", IN_LINE), ("running", "train is still running", RUNNING)],
)
def test_at_a_terminal_the_question_and_the_answer_name_the_state(
    now: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def choose(question: str, *choices: str) -> str:
        asked.append(question)
        return "detach"

    monkeypatch.setattr(up, "can_ask", lambda: True)
    monkeypatch.setattr(up, "choose", choose)
    monkeypatch.setattr(up, "_replace_broken_streams", lambda: None)
    assert follow_and_press(now, OnInterrupt.ASK) == 0
    assert asked == [f"\n{message.replace('train', 'the job')}:"]
    assert " ".join(capsys.readouterr().err.split()).endswith(f"{message}; {hint}")


class Started:
    """A start that succeeds on every node."""

    report = environment = None

    def __init__(self, launch: Launch) -> None:
        self.plan = launch.plan()
        self.undone = False

    def run(self) -> RunStatus:
        return RunStatus("train", RUN, "lab", (NodeStatus("a", 0, "running"),))

    def undo(self, *, by: str) -> None:
        self.undone = True


def bring_up_with(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> tuple[Started, Callable[[], RunStatus]]:
    """Return a start of RUN, and a call that makes it. Its record on this machine fails with ``fault``."""
    inventory = load_text(b"{hosts: [a], jobs: {train: {script: t.py, code: null, workdir: /w}}}", "i.yaml")
    identity = RunIdentity(RUN, Origin("me", "here", "/home/me", 1), "")
    launch = Launch(inventory, inventory.job(), inventory.hosts, identity=identity)
    start = Started(launch)

    def fail(*record: object) -> None:
        raise fault

    monkeypatch.setattr(up, "Up", lambda *launch, **how: start)
    monkeypatch.setattr(up, "save_run", fail)
    return start, lambda: up.bring_up(launch, DryFleet([]), Options(), as_json=False)


@pytest.mark.parametrize("fault", [OSError("disk full"), UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogates")])
def test_a_record_that_cannot_be_written_leaves_the_run_alone(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start, bring_up = bring_up_with(fault, monkeypatch)
    assert bring_up().run == RUN
    assert not start.undone
    assert "warning: could not record this run" in capsys.readouterr().err


def test_ctrl_c_while_a_started_run_is_recorded_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    start, bring_up = bring_up_with(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(Interrupted, match="nothing is left running"):
        bring_up()
    assert start.undone


def frame(text: str, offset: int) -> Frame:
    lines = {"rank": [0], "stream": ["stdout"], "time": [float(offset)], "text": [text], "end": ["\n"]}
    return Frame({"lines": lines | {"offset": [offset], "attempt": [1]}, "offset": offset, "more": False})


def test_a_position_that_cannot_be_saved_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = threading.Event()

    def write(*data: object) -> None:
        tried.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    def frames() -> Iterator[Frame]:
        yield frame("first", 1)
        tried.wait(60)
        yield frame("second", 2)

    monkeypatch.setattr(os, "pwrite", write)
    tail = Stream(frames(), {"offset": 2, "state": "succeeded"})  # type: ignore[arg-type]
    end = follow_run(
        RunStatus("train", RUN, "lab", (NodeStatus("a", 0, "running"),)), fleet_that_says("succeeded", tail)
    )
    printed = capsys.readouterr()
    assert end.verdict.state == "succeeded"
    assert [line.split()[-1] for line in printed.out.splitlines()] == ["first", "second"]
    assert printed.err.count("No space left on device") == 1


def test_attach_names_the_commands_for_a_run_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*following: object) -> None:
        raise Interrupted("interrupted")

    fleet = fleet_that_says("queued", lambda asked: Unreachable("no answer", host=asked.host))
    monkeypatch.setattr(session, "load", lambda *file, **how: None)
    monkeypatch.setattr(session, "fleet_of", lambda inventory: nullcontext(fleet))
    monkeypatch.setattr(output, "follow_run", interrupt)
    with pytest.raises(Interrupted) as ended:
        output.attach(RUN, None)
    assert (ended.value.message, ended.value.hint) == (f"detached; {RUN} was not changed", IN_LINE)
