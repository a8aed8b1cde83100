"""When a run gets a unit of systemd's own, and when it must not start without one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from ddpctl_worker.facts import user_name
from ddpctl_worker.machine import notes, systemd
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run import scope

SESSION = "0::/user.slice/user-1001.slice/session-7.scope\n"
MANAGER = "0::/user.slice/user-1001.slice/user@1001.service/app.slice/%s\n"
RUN = cast("RunRecord", {"run": "20261128-ab12", "host": "node0"})
NAME = "ddpctl-20261128-ab12.node0.scope"


class Machine:
    """A machine with systemd, as far as ``scope`` sees it; ``calls`` has the changes that were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.uid = 1001
        self.calls: list[str] = []
        self.notes: list[str] = []
        self.groups, self.kills, self.lingering, self.obeys = SESSION, "true", False, True
        self.refuses_linger: str | None = None
        self.refuses_scope: str | None = None
        monkeypatch.setattr(systemd, "RUNNING", str(tmp_path))
        monkeypatch.setattr(systemd, "ask_logind", self.ask)
        monkeypatch.setattr(systemd, "lingers", lambda user: self.lingering)
        monkeypatch.setattr(systemd, "enable_linger", self.enable_linger)
        monkeypatch.setattr(systemd, "make_scope", self.make_scope)
        monkeypatch.setattr(scope, "read_text", lambda path: self.groups)
        monkeypatch.setattr(scope, "SCOPE_ANSWER_S", 0.05)
        monkeypatch.setattr(os, "geteuid", lambda: self.uid)
        monkeypatch.setattr(notes, "note", self.notes.append)

    def ask(self, properties: Any, timeout: float) -> dict[str, Any]:
        return {"code": 0, "stdout": f"b {self.kills}\nas 0\nas 0\nb true\n"}

    def enable_linger(self, timeout: float) -> str | None:
        self.calls.append("linger")
        self.lingering = self.refuses_linger is None
        return self.refuses_linger

    def make_scope(self, name: str, pid: int, stop_s: float, *, user: bool, timeout: float) -> str | None:
        self.calls.append(f"{'user' if user else 'machine'} {name} {pid == os.getpid()}")
        if self.refuses_scope is None and self.obeys:
            self.groups = MANAGER % name
        return self.refuses_scope


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_a_user_whose_login_ends_its_processes_lingers_and_gets_a_unit(machine: Machine) -> None:
    assert scope.enter_scope(RUN, True) is None
    assert machine.calls == ["linger", f"user {NAME} True"]
    assert machine.notes == [f"{user_name()} lingers from now on (loginctl enable-linger)"]
    assert scope.enter_scope(RUN, True) is None  # by a child of the process
    assert len(machine.calls) == 2


def test_a_user_who_lingers_already(machine: Machine) -> None:
    machine.lingering = True
    assert scope.enter_scope(RUN, True) is None
    assert machine.calls == [f"user {NAME} True"]


def test_a_login_that_keeps_its_processes_is_left_alone(machine: Machine) -> None:
    machine.kills = "false"
    assert scope.enter_scope(RUN, True) is None
    assert machine.calls == machine.notes == []


def test_the_systemd_of_the_machine_has_the_units_of_root(machine: Machine) -> None:
    machine.uid, machine.kills = 0, "false"
    assert scope.enter_scope(RUN, True) is None
    assert machine.calls == [f"machine {NAME} True"]


@pytest.mark.parametrize("groups", ["0::/\n", "0::/system.slice/cron.service\n", ""])
def test_no_session_no_unit(machine: Machine, groups: str) -> None:
    machine.groups = groups
    assert scope.enter_scope(RUN, True) is None
    assert machine.calls == []


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"refuses_linger": "Could not enable linger: Access denied"}, "may not linger (Could not enable linger"),
        ({"refuses_scope": "Failed to connect to bus: No such file or directory"}, "Failed to connect to bus"),
        ({"obeys": False}, f"systemd did not move the run to {NAME}"),
    ],
)
def test_without_a_unit_a_run_that_must_outlive_its_login_does_not_start(
    machine: Machine, trouble: dict[str, Any], said: str
) -> None:
    vars(machine).update(trouble)
    refused = scope.enter_scope(RUN, True)
    assert refused is not None
    assert said in refused
    assert "login.kill" in refused
    assert said in machine.notes[-1]
    assert scope.enter_scope(RUN, False) is None  # login.kill was skipped


def test_root_starts_without_a_unit_where_the_session_keeps_its_processes(machine: Machine) -> None:
    machine.uid, machine.kills, machine.refuses_scope = 0, "false", "Access denied"
    assert scope.enter_scope(RUN, True) is None
    assert machine.notes == ["the run has no unit of its own: Access denied"]


def test_the_name_of_the_unit_has_no_character_that_systemd_refuses() -> None:
    run = cast("RunRecord", {"run": "20261128-ab12", "host": "user@10.0.0.1/x"})
    assert scope.name_of_scope(run) == "ddpctl-20261128-ab12.user_10.0.0.1_x.scope"
