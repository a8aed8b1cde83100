"""`ddpctl kill`: the evidence that counts as proof."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl.cli import runs as command
from ddpctl.cli import session
from ddpctl.errors import ConnectError, Unreachable
from ddpctl.files.inventory import load_text
from ddpctl.spec.event import Tell
from tests.stages.test_status import OLD, part
from tests.transport.dry import DryFleet, DryTransport


def kill(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, state: str, word: str) -> int:
    """Host a has a run in this state; host b does not answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    told = {"runs": [part(OLD, "a", state, ["a"])]}
    ended = part(OLD, "a", "killed" if state == "running" else state, ["a"])
    a = DryTransport("a", {"status": told, "stop": {"signalled": 1, "forced": 0, "survivors": [], "status": ended}})
    b = DryTransport("b", unreachable=Unreachable("no route", host="b"))

    @contextlib.contextmanager
    def at_work(_: object) -> Iterator[tuple[DryFleet, Tell]]:
        yield DryFleet([a, b]), lambda event: None

    monkeypatch.setattr(session, "load", lambda *_, **__: load_text(b"hosts: [a, b]", "i.yaml"))
    monkeypatch.setattr(session, "working_fleet", at_work)
    return command.kill(word, grace=None, save=False, every=False, option=None, as_json=False)  # type: ignore[arg-type]


def test_that_an_old_run_was_over_proves_nothing_where_a_newer_one_may_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with pytest.raises(ConnectError, match=f"{OLD} was over already, and b did not answer") as error:
        kill(monkeypatch, tmp_path, "succeeded", "train")
    assert error.value.exit_code == 4
    assert kill(monkeypatch, tmp_path, "succeeded", OLD) == 0  # nothing else can be meant


def test_a_run_that_was_ended_is_proof_beside_a_host_that_is_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kill(monkeypatch, tmp_path, "running", "train") == 0
    assert f"b did not answer: a newer run of train may be there; this is {OLD}" in capsys.readouterr().err
