"""The commands about runs without a name, and `ps` without runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl.cli import session
from ddpctl.spec.event import Tell
from tests.cli.conftest import InProcess
from tests.stages.test_status import of_project
from tests.transport.dry import DryFleet, DryTransport

INVENTORY = "{cluster: lab, project: exp, hosts: [a]}"


@pytest.fixture(autouse=True)
def inventory(run_command: InProcess) -> Path:
    file = run_command.cwd / "inventory.yaml"
    file.write_text(INVENTORY)
    return file


@pytest.fixture(autouse=True)
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


def test_ps_without_runs_says_so_on_stderr(run_command: InProcess) -> None:
    done = run_command("ps")
    assert (done.rc, done.stdout) == (0, "")
    assert "no runs on 1 host" in done.stderr
    assert json.loads(run_command("ps", "--json").stdout)["jobs"] == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], ""),
        (["-i", "./inventory.yaml"], ""),
        (["-i", "another one.yaml"], "-i 'another one.yaml' "),
    ],
)
def test_a_hint_names_the_inventory_that_no_command_finds_by_itself(
    words: list[str], named: str, inventory: Path, run_command: InProcess
) -> None:
    inventory.with_name("another one.yaml").write_text(INVENTORY)
    done = run_command("status", "nope", *words)
    assert done.rc == 7
    assert f"hint: `ddpctl {named}ps --all` lists every run" in done.stderr
    assert f"`ddpctl {named}up` starts one" in run_command("ps", *words).stderr


def test_a_hint_of_an_inventory_from_the_environment_needs_no_name(inventory: Path, run_command: InProcess) -> None:
    other = inventory.rename(inventory.with_name("other.yaml"))
    assert "hint: `ddpctl ps --all` lists" in run_command("status", "nope", inventory=other).stderr
