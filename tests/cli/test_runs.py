"""The commands about runs without a name, and `ps` without runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl.cli import session
from ddpctl.files.inventory import load_text
from ddpctl.spec.event import Tell
from tests.cli.conftest import InProcess
from tests.stages.test_status import of_project
from tests.transport.dry import DryFleet, DryTransport


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The runs of the only host, which a test fills."""
    told: list[dict[str, Any]] = []
    answers = {"runs": told}
    host = DryTransport("a", {"status": lambda asked: answers, "claims": lambda asked: {"claims": [], "shown": {}}})

    @contextlib.contextmanager
    def fleet_of(_: object) -> Iterator[DryFleet]:
        yield DryFleet([host])

    @contextlib.contextmanager
    def working_fleet(_: object) -> Iterator[tuple[DryFleet, Tell]]:
        yield DryFleet([host]), lambda event: None

    monkeypatch.setattr(session, "load", lambda *_, **__: load_text(b"{cluster: lab, project: exp, hosts: [a]}", "i"))
    monkeypatch.setattr(session, "fleet_of", fleet_of)
    monkeypatch.setattr(session, "working_fleet", working_fleet)
    return told


@pytest.mark.parametrize("command", ["status", "tail", "attach", "doctor", "report"])
def test_a_command_without_a_name_lists_several_live_runs(
    command: str, runs: list[dict[str, Any]], run_command: InProcess
) -> None:
    runs += [of_project("exp", "r1"), of_project("exp", "r2", job="eval")]
    done = run_command(command)
    assert (done.rc, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: no run is named, and 2 runs are live: train (r1, running), eval (r2, running)",
        "hint: name the run, or give its id",
    ]


def test_a_command_without_a_name_takes_the_only_live_run(runs: list[dict[str, Any]], run_command: InProcess) -> None:
    runs += [of_project("exp", "r1", "failed"), of_project("exp", "r2", job="eval")]
    done = run_command("status", "--json")
    assert done.rc == 0
    assert json.loads(done.stdout)["run"] == "r2"


def test_kill_without_a_name_never_chooses(runs: list[dict[str, Any]], run_command: InProcess) -> None:
    runs += [of_project("exp", "r1")]
    done = run_command("kill")
    assert (done.rc, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no run is named, and 1 run is live: train (r1, running)\n")


@pytest.mark.usefixtures("runs")
def test_ps_without_runs_says_so_on_stderr(run_command: InProcess) -> None:
    done = run_command("ps")
    assert (done.rc, done.stdout) == (0, "")
    assert "no runs on 1 host" in done.stderr
    assert json.loads(run_command("ps", "--json").stdout)["jobs"] == []
