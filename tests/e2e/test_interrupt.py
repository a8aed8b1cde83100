"""Ctrl-C: without a terminal it kills the job that was started; on one it asks; it never kills for who attached."""

from __future__ import annotations

import re
import signal

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, pids_of, running, until, wait_for_ranks
from tests.lab import Lab
from tests.lab.command import Running

MENU = r"\[d\]etach / \[k\]ill / \[g\]o on"


def test_without_a_terminal_the_job_is_killed(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    job = site.job("batch", SLEEP)
    up = site.start("up", "--job", job)
    up.wait_for("rank 1 sleeps")
    up.signal(signal.SIGINT)
    done = up.wait(40)
    assert done.rc == 130, done.stderr
    assert_nothing_runs(lab)
    assert "killed" in one_line(done)
    status = site.status(job)
    assert status["state"] == "killed"
    assert status["cause"]["reason"] == "killed_by_user"


def test_on_the_way_up_nothing_is_left(site: Site, lab: Lab) -> None:
    """At every step: connecting, in the preflight, when the first launcher runs."""
    job = site.job("early", SLEEP)

    def launching(up: Running) -> object:
        return any(running(host) and any("DDPCTL_RUN" in one.environ for one in running(host)) for host in lab)

    for moment in (
        lambda up: any(running(host) for host in lab),
        lambda up: "network mesh" in up.stderr,
        launching,
    ):
        up = site.start("up", "--job", job)
        until(lambda up=up, moment=moment: moment(up), 60, lambda up=up: up.stderr, 0.005)  # type: ignore[misc]
        up.signal(signal.SIGINT)
        done = up.wait(40)
        assert done.rc == 130, done.stderr
        assert "Traceback" not in done.stderr
        assert_nothing_runs(lab, within=10)


def test_at_a_terminal_it_asks(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    job = site.job("asked", SLEEP)
    up = site.start("up", "--job", job, terminal=True)
    up.wait_for("rank 1 sleeps")
    up.wait_for("rank 0 sleeps")
    run = str(site.status(job)["run"])
    before = [pids_of(host, run) for host in lab.hosts[:2]]

    def press(keys: str, times: int) -> None:
        up.type(keys)  # type: ignore[attr-defined]
        up.wait_for(rf"(?s)({MENU}.*){{{times}}}", 20)

    press("\x03", 1)
    press("what?\n", 2)  # asked again
    up.type("g\n")  # type: ignore[attr-defined]
    assert site.status(job)["state"] == "running"
    assert up.process.poll() is None
    press("\x03", 3)
    up.type("d\n")  # type: ignore[attr-defined]
    done = up.wait(20)
    assert done.rc == 0
    assert f"ddpctl attach {job}" in done.stdout
    assert [pids_of(host, run) for host in lab.hosts[:2]] == before

    attach = site.start("attach", job, terminal=True)
    until(lambda: any("root@notty" in one.argv[0] for one in lab[0].processes(system=True) if one.argv), 20)
    attach.type("\x03")  # type: ignore[attr-defined]
    done = attach.wait(20)
    assert done.rc == 130, done.stdout
    assert [pids_of(host, run) for host in lab.hosts[:2]] == before

    assert re.search("rank 1 sleeps", site("tail", job).ok().stdout)
    site("kill", job).ok()


def test_at_a_terminal_a_k_kills(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    job = site.job("asked", SLEEP)
    up = site.start("up", "--job", job, terminal=True)
    up.wait_for("rank 1 sleeps")
    up.type("\x03")  # type: ignore[attr-defined]
    up.wait_for(MENU, 20)
    up.type("k\n")  # type: ignore[attr-defined]
    done = up.wait(40)
    assert done.rc == 130, done.stdout
    assert_nothing_runs(lab, within=0)
    assert site.status(job)["state"] == "killed"


def test_two_at_once_kill_and_interrupt(site: Site, lab: Lab) -> None:
    """Both want the same; neither is confused by the other."""
    site.only(0, 1)
    job = site.job("twice", SLEEP)
    up = site.start("up", "--job", job)
    up.wait_for("rank 1 sleeps")
    run = str(site.status(job)["run"])
    wait_for_ranks(lab.hosts[:2], run)
    kill = site.elsewhere("second").start("kill", job)
    up.signal(signal.SIGINT)
    assert kill.wait(40).rc == 0
    assert up.wait(40).rc in (1, 130)
    assert_nothing_runs(lab)
