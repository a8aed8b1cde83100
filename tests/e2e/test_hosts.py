"""Hosts that cannot be used: each command ends in bounded time with its exit code and a line with host, cause and next
step. Every other host is reported too, and no process is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.keys import KEY, generate_keys

BOUND_S = 60.0


def wrong_key(site: Site, host: Host) -> None:
    host.wrong_host_key()


def unknown_key(site: Site, host: Host) -> None:
    known = site.home / ".ssh" / "known_hosts"
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if host.name not in line))


def refused_key(site: Site, host: Host) -> None:
    host.write("/root/.ssh/authorized_keys", "", 0o600)


def missing_name(site: Site, host: Host) -> None:
    entry = next(entry for entry in site.hosts if entry["name"] == host.name)
    entry.update(name="no-such-host", address="no-such-host.invalid")


def silent(site: Site, host: Host) -> None:
    host.silent_sshd()


def nobody_listens(site: Site, host: Host) -> None:
    host.no_ssh()


def powered_off(site: Site, host: Host) -> None:
    host.power_off()


def no_python(site: Site, host: Host) -> None:
    next(entry for entry in site.hosts if entry["name"] == host.name)["python"] = "/opt/no/such/python3"


Fault = Callable[[Site, Host], None]
FAULTS: list[tuple[Fault, int, str]] = [
    (wrong_key, 4, r"host key.*(changed|differ|another|not the one)"),
    (unknown_key, 4, r"host key.*not known.*ddpctl trust"),
    (refused_key, 4, r"(refused|accepts).*(key|ssh-copy-id)"),
    (missing_name, 4, r"no-such-host.*(name|address)"),
    (silent, 4, r"(silent|sends nothing|no word|banner|answer)"),
    (nobody_listens, 4, r"refuses the connection"),
    (powered_off, 4, r"(no route|timed out|no answer|unreachable|did not answer)"),
    (no_python, 3, r"/opt/no/such/python3"),
]


TRANSPORT: dict[Fault, str] = {
    refused_key: "test_logins.py::test_a_refused_key",
    missing_name: "test_unreachable.py::test_a_name_without_address",
    nobody_listens: "test_unreachable.py::test_a_refused_port",
    powered_off: "test_unreachable.py::test_no_such_machine",
}


def cases() -> list[Any]:
    """Each fault; a fault that a test of the transport shows too is left to that on most days."""
    found = []
    for fault, code, words in FAULTS:
        by = TRANSPORT.get(fault)
        marks = [pytest.mark.full(covered_by=f"tests/transport/{by}")] if by else []
        found.append(pytest.param(fault, code, words, id=fault.__name__, marks=marks))
    return found


@pytest.mark.parametrize(("fault", "code", "words"), cases())
def test_before_the_start(
    site: Site, lab: Lab, fault: Fault, code: int, words: str, request: pytest.FixtureRequest
) -> None:
    job = site.job("never", SLEEP)
    authorized = lab[1].read("/root/.ssh/authorized_keys")

    def repair() -> None:
        lab[1].heal()
        lab[1].write("/root/.ssh/authorized_keys", authorized, 0o600)

    request.addfinalizer(repair)
    fault(site, lab[1])
    name = next(entry["name"] for entry in site.hosts if entry["name"] not in ("node0", "node2"))
    running = [site.start("up", "--job", job), site.start("ps", "--json"), site.start("preflight", "--json")]
    up, ps, preflight = (one.wait(BOUND_S) for one in running)
    assert up.rc == code, up.stderr
    line = one_line(up)
    assert "\n" not in line
    assert f"{name}: " in line
    assert re.search(words, line, re.IGNORECASE), line
    assert "; " in line  # and what to do about it
    assert_nothing_runs(lab)

    assert job not in {one["job"] for one in ps.json()["jobs"]}
    assert ps.rc == code
    assert re.search(words, one_line(ps), re.IGNORECASE), ps.stderr
    assert "node0" not in ps.stderr
    assert "node2" not in ps.stderr

    assert preflight.rc == code, preflight.stderr
    report = preflight.json()
    assert report["ok"] is False
    assert report["hosts"] == [entry["name"] for entry in site.hosts]
    assert {finding["host"] for finding in report["findings"] if finding["severity"] == "error"} == {name}
    fine = {finding["check"] for finding in report["findings"] if finding["severity"] == "ok"}
    assert "torch.import" in fine  # the other hosts were asked all the same


def test_while_a_job_runs(site: Site, lab: Lab) -> None:
    """One host is out of reach: `status` still shows the other hosts, and `kill` ends their ranks but reports that host
    as not reached.
    """
    job = site.job("reached", SLEEP)
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    lab[1].silent_sshd()
    asked = site.start("status", job, "--json")
    kill = site("kill", job, "--json", timeout=BOUND_S)
    status = asked.wait(BOUND_S).ok().json()
    states = {node["host"]: node["state"] for node in status["nodes"]}
    assert states["node1"] == "unreachable"
    assert kill.rc == 4, kill.stderr
    assert "node1" in one_line(kill)
    assert [node["reachable"] for node in kill.json()["nodes"]] == [True, False, True]
    assert_nothing_runs([lab[0], lab[2]], within=0)
    lab[1].heal()
    again = site("kill", job, "--json", timeout=BOUND_S)
    assert again.rc == 0, again.stderr
    assert_nothing_runs(lab, within=0)
    end = site.status(job)
    assert end["state"] in ("killed", "failed", "lost")


def test_a_key_that_nobody_knows(site: Site, lab: Lab) -> None:
    """The client has another key; and kill says so for every host."""
    generate_keys([site.home / ".ssh" / KEY])
    done = site("status", "any", timeout=BOUND_S)
    assert done.rc == 4
    assert "node[0-2] (3 hosts)" in one_line(done)


def test_trust_makes_an_unknown_host_known_and_never_a_changed_one(site: Site, lab: Lab) -> None:
    unknown_key(site, lab[1])
    job = site.job("never", SLEEP)
    assert site("trust", "--yes", timeout=BOUND_S).rc == 0
    assert site("ps", timeout=BOUND_S).rc == 0
    lab[2].wrong_host_key()
    done = site("trust", "--yes", timeout=BOUND_S)
    assert done.rc == 4, done.stderr
    assert "node2" in one_line(done)
    assert site("up", "--job", job, timeout=BOUND_S).rc == 4
