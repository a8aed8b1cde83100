"""Hosts whose first process is systemd: why a run ended with its login or its machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, named, wait_for_ranks
from tests.lab import Lab, SystemdHost
from tests.lab.command import Ddpctl

USER = "alice"
Event = Callable[[SystemdHost], None]


@pytest.fixture(scope="module")
def two(make_module_lab: MakeLab) -> Lab:
    """Two hosts with a user who may do nothing as root."""
    lab = make_module_lab(2, systemd=True)
    for host in lab:
        host.add_user(USER)
    return lab


@pytest.fixture
def place(two: Lab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Site:
    site = Site(two, ddpctl, tmp_path / "site", stand_in)
    site.keys["defaults"]["user"] = USER
    return site


def systemd_hosts(site: Site) -> list[SystemdHost]:
    return [host for host in site.lab if isinstance(host, SystemdHost)]


def unit_of_run(host: SystemdHost) -> str:
    """The unit of the supervisor, such as `session-3.scope`."""
    supervisor = named(host, "ddpctl-super")
    assert supervisor is not None
    return host.unit_of(supervisor.pid).rpartition("/")[2]


def end_session(host: SystemdHost) -> None:
    session = unit_of_run(host).removeprefix("session-").removesuffix(".scope")
    host.run(["loginctl", "kill-session", session])


def stop_slice(host: SystemdHost) -> None:
    host.run(f"systemctl stop user-$(id -u {USER}).slice")


def power_off(host: SystemdHost) -> None:
    host.run(["systemctl", "poweroff"])
    host.boot_again()


def reboot(host: SystemdHost) -> None:
    host.run(["systemctl", "reboot"])
    host.boot_again()


def cause_after(site: Site, job: str, event: Event) -> tuple[str, str]:
    """Return the reason of the failure, and the text of `ddpctl status`, after a run that the event has ended."""
    run = site.up(job)["run"]
    wait_for_ranks(site.lab, run)
    event(systemd_hosts(site)[0])
    ended = site.wait_for_state(run, "failed")
    assert ended["cause"]["host"] == "node0"
    text = site("status", run).stdout
    site("kill", run).ok()
    assert_nothing_runs(site.lab)
    return str(ended["cause"]["reason"]), " ".join(text.split())


def assert_causes(site: Site, events: list[tuple[Event, str, str]]) -> None:
    job = site.job("sleeps", SLEEP)
    for event, reason, words in events:
        found = cause_after(site, job, event)
        assert found[0] == reason, found
        assert words in found[1], found


def test_the_end_of_a_login_and_of_a_machine_is_the_cause(place: Site) -> None:
    """systemd signals launcher, ranks and supervisor at the same time, and none of their deaths is the cause."""
    login = "node0: session_ended: systemd ended the login that the run was in (session-"
    machine = "node0: machine_shutdown: the machine is shutting down: systemd ended all processes"
    assert_causes(place, [(end_session, "session_ended", login), (reboot, "machine_shutdown", machine)])


@pytest.mark.full(covered_by="tests/e2e/test_systemd.py::test_the_end_of_a_login_and_of_a_machine_is_the_cause")
def test_other_ends_of_a_login_and_of_a_machine(place: Site) -> None:
    login = "node0: session_ended: systemd ended the login that the run was in (session-"
    machine = "node0: machine_shutdown: the machine is shutting down: systemd ended all processes"
    assert_causes(place, [(stop_slice, "session_ended", login), (power_off, "machine_shutdown", machine)])


def test_a_login_that_ends_its_processes(place: Site) -> None:
    """KillUserProcesses=yes, where the user cannot linger: preflight refuses, and a start all the same says why the run
    ends a moment later."""
    for host in systemd_hosts(place):
        host.run(["systemctl", "mask", "--runtime", "--now", "polkit"])
        host.logind("KillUserProcesses=yes")
    job = place.job("sleeps", SLEEP)
    refused = place("up", "--job", job, "-d")
    assert refused.rc == 3
    assert "login.kill" in refused.stdout + refused.stderr

    run = place.up(job, "--skip", "login.kill")["run"]
    ended = place.wait_for_state(run, "failed")
    assert ended["cause"]["reason"] == "session_ended"
    assert "KillUserProcesses=yes" in ended["cause"]["message"]
    assert_nothing_runs(place.lab)
    for host in systemd_hosts(place):
        host.run(["systemctl", "unmask", "--runtime", "polkit"])
        host.logind("KillUserProcesses=no")
