"""The cause of a failure whose launcher, ranks and supervisor were all ended from outside."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import processes, systemd, tool
from ddpctl_worker.machine.wakeup import UNIT_STOP, SignalSender
from ddpctl_worker.run import shutdown
from tests.worker.node import Node, processes_of
from tests.worker.programs import SLEEP, here, nothing_left

SYSTEMD = SignalSender(pid=1, uid=0)
SCOPE = "0::/user.slice/user-4001.slice/user@4001.service/app.slice/ddpctl-20261128-ab12.node0.scope\n"


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A host whose first process is systemd."""
    monkeypatch.setattr(systemd, "RUNNING", str(tmp_path))
    monkeypatch.setattr(shutdown, "read_text", lambda path: "0::/user.slice/user-4001.slice/session-3.scope\n")
    answer(monkeypatch, "running")
    return monkeypatch


def answer(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    def run(argv: list[str], timeout: float) -> dict[str, Any]:
        assert argv == ["systemctl", "is-system-running"]
        return {"stdout": f"{state}\n"}

    monkeypatch.setattr(tool, "run_if_installed", run)


def test_systemd_that_ends_a_login(booted: pytest.MonkeyPatch) -> None:
    cause = shutdown.find_cause("node0", SYSTEMD)
    assert (cause["host"], cause["reason"], cause["signal"]) == ("node0", "session_ended", "SIGTERM")
    assert "session-3.scope" in cause["message"]


def test_systemd_that_shuts_the_machine_down(booted: pytest.MonkeyPatch) -> None:
    answer(booted, "stopping")
    cause = shutdown.find_cause("node0", SYSTEMD)
    assert (cause["reason"], cause["message"]) == (
        "machine_shutdown",
        "the machine is shutting down: systemd ended all processes",
    )


def test_systemd_without_a_login(booted: pytest.MonkeyPatch) -> None:
    booted.setattr(shutdown, "read_text", lambda path: "0::/system.slice/cron.service\n")
    assert shutdown.find_cause("node0", SYSTEMD)["reason"] == "signaled"


def test_another_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "RUNNING", "/nowhere")
    assert shutdown.find_cause("node0", SYSTEMD)["reason"] == "machine_shutdown"


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("running", "session_ended", "ddpctl-20261128-ab12.node0.scope"),
        ("stopping", "machine_shutdown", "shutting down"),
    ],
)
def test_systemd_that_stops_the_scope_of_the_run(
    booted: pytest.MonkeyPatch, state: str, reason: str, words: str
) -> None:
    booted.setattr(shutdown, "read_text", lambda path: SCOPE)
    answer(booted, state)
    cause = shutdown.find_cause("node0", SignalSender(170, 4001, UNIT_STOP))
    assert (cause["reason"], cause["signal"]) == (reason, None)
    assert words in cause["message"]


@pytest.mark.parametrize(
    ("groups", "pid", "counts"),
    [
        (SCOPE, 170, True),
        (SCOPE, 171, False),
        ("0::/system.slice/ddpctl-20261128-ab12.node0.scope\n", 1, True),
        ("0::/system.slice/ddpctl-20261128-ab12.node0.scope\n", 170, False),
        ("0::/user.slice/user-4001.slice/session-3.scope\n", 170, False),
    ],
)
def test_a_changed_window_ends_no_run(monkeypatch: pytest.MonkeyPatch, groups: str, pid: int, counts: bool) -> None:
    """SIGWINCH counts from the systemd that has the run's scope; terminals and users send it, too."""
    manager = processes.ProcessId("boot", 170, 1)
    monkeypatch.setattr(systemd, "find_user_manager", lambda text: manager if "user@" in text else None)
    monkeypatch.setattr(shutdown, "read_text", lambda path: groups)
    assert shutdown.asks_to_end(SignalSender(pid, 4001, UNIT_STOP)) == counts


def test_a_sender_outside_the_container() -> None:
    assert "outside this container" in shutdown.find_cause("node0", SignalSender(0, 0))["message"]


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/user.slice/user-4001.slice/session-3.scope", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope", "user@1000.service"),
        (
            "12:pids:/user.slice/user-7.slice/session-c2.scope\n0::/user.slice/user-7.slice/session-c2.scope",
            "session-c2.scope",
        ),
        ("0::/system.slice/ssh.service", None),
        ("0::/", None),
        ("", None),
    ],
)
def test_the_unit_of_a_login(groups: str, unit: str | None) -> None:
    assert shutdown.find_login_unit(groups) == unit


@pytest.mark.slow
def test_the_signal_is_the_cause_though_launcher_and_ranks_die_of_it_first(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    supervisor = node.pid(run, "supervisor")
    theirs = set(processes_of(run)) - {supervisor, node.pid(run, "guardian")}
    os.kill(supervisor, signal.SIGSTOP)  # or it might see the deaths seconds before its own signal
    for pid in (*theirs, supervisor):
        with contextlib.suppress(ProcessLookupError):  # the launcher ends its ranks, too
            os.kill(pid, signal.SIGTERM)
    os.kill(supervisor, signal.SIGCONT)
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["rank"], status["cause"]["signal"]) == ("failed", None, "SIGTERM")
    assert f"PID {os.getpid()} " in status["cause"]["message"]
    nothing_left(node, run)
