"""`ddpctl fetch --checkpoints`: what is there comes, and hosts that did not answer are an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl.cli import output as command
from ddpctl.cli import session
from ddpctl.errors import HostsFailed, NoSuchJob
from ddpctl.files.inventory import load_text
from ddpctl.spec.event import Tell
from tests.stages.test_checkpoints import down, host
from tests.transport.dry import DryFleet, DryTransport

INVENTORY = load_text(b"hosts: [a, b, c]", "i.yaml")


def fetch(monkeypatch: pytest.MonkeyPatch, dest: Path, *hosts: DryTransport) -> int:
    @contextlib.contextmanager
    def at_work(_: object) -> Iterator[tuple[DryFleet, Tell]]:
        yield DryFleet(hosts), lambda event: None

    monkeypatch.setattr(session, "load", lambda *_, **__: INVENTORY)
    monkeypatch.setattr(session, "working_fleet", at_work)
    return command.fetch("train", dest, host=None, rank=None, output=None, watch=False, checkpoints=True, option=None)  # type: ignore[arg-type]


def test_all_that_is_there_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert fetch(monkeypatch, tmp_path, host("a", "a"), host("b", "b"), host("c")) == 0


def test_a_newer_one_may_lie_where_nobody_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(HostsFailed, match="1 of 3 hosts did not answer: a newer checkpoint may lie there") as failed:
        fetch(monkeypatch, tmp_path, host("a", "a"), host("b", "b"), down("c"))
    assert failed.value.exit_code == 4
    assert (tmp_path / "checkpoints" / "step_1" / ".metadata").exists()


def test_a_part_on_a_host_that_is_down_is_no_missing_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(HostsFailed, match="no complete checkpoint of train on those that answered") as failed:
        fetch(monkeypatch, tmp_path, host("a", "a"), down("b"), host("c"))
    assert failed.value.exit_code == 4
    with pytest.raises(NoSuchJob):
        fetch(monkeypatch, tmp_path, host("a", "a"), host("b"), host("c"))
