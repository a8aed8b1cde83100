"""Ctrl-C: on a terminal it asks, without a terminal it detaches; it never ends a run for a user who attached."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, pids_of, running, until, wait_for_ranks
from tests.lab import Host, Lab
from tests.lab.command import Done, Running

MENU = r"\[d\]etach / \[k\]ill / \[c\]ontinue"
CTRL_C = "\x03"
AGAIN = 8  # a signal to `up`, or the end of its reader, can come too late so many times in a row
# As in an interactive shell, all of a pipeline gets the Ctrl-C; the shell itself waits for its end.
TEE = 'trap : INT; ddpctl "$@" 2>&1 | tee log; exit "${PIPESTATUS[0]}"'


def sleeping(site: Site, job: str, *words: str, **where: object) -> Running:
    """An `up` that follows two ranks which sleep."""
    site.job(job, SLEEP)
    up = site.start("up", "--job", job, "--skip-preflight", *words, **where)
    up.wait_for("rank 1 sleeps")
    up.wait_for("rank 0 sleeps")
    return up


def has_session(host: Host) -> bool:
    """Return whether a command has a session on the host."""
    return any("root@notty" in one.argv[0] for one in host.processes(system=True) if one.argv)


def attach_to(site: Site, job: str, **where: object) -> Running:
    """An `attach` with a session on the first host: the sessions of earlier commands have ended."""
    host = site.lab[0]
    until(lambda: not has_session(host), 30, "a session of an earlier command stays")
    command = site.start("attach", job, **where)
    until(lambda: has_session(host), 30, lambda: command.stderr)
    return command


def press(up: Running, keys: str) -> None:
    up.type(keys)  # type: ignore[attr-defined]


def test_without_a_terminal_it_detaches(site: Site, lab: Lab) -> None:
    """SIGINT, SIGTERM and SIGHUP end `up` and `attach`; the job does not notice."""
    site.only(0, 1)
    up = sleeping(site, "batch")
    run = str(site.status("batch")["run"])
    before = [pids_of(host, run) for host in lab.hosts[:2]]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        up.signal(number)
        done = up.wait(20)
        assert done.rc == 130, done.stderr
        name = run if done.args[0] == "up" else "batch"
        assert f"ddpctl attach {name}; end it: ddpctl kill {name}" in one_line(done)
        assert [pids_of(host, run) for host in lab.hosts[:2]] == before
        up = attach_to(site, "batch")
    up.signal(signal.SIGINT)
    assert up.wait(20).rc == 130
    assert [pids_of(host, run) for host in lab.hosts[:2]] == before
    assert site.status("batch")["state"] == "running"
    site("kill", "batch").ok()


def test_on_interrupt_kill_needs_no_terminal(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    up = sleeping(site, "batch", "--on-interrupt", "kill")
    up.signal(signal.SIGINT)
    done = up.wait(40)
    assert done.rc == 130, done.stderr
    assert_nothing_runs(lab)
    assert "killed" in one_line(done)
    status = site.status("batch")
    assert status["state"] == "killed"
    assert status["cause"]["reason"] == "killed_by_user"


def launching(lab: Lab) -> bool:
    return any("DDPCTL_RUN" in one.environ for host in lab for one in running(host))


def interrupted(site: Site, job: str, moment: Callable[[Running], object], numbers: tuple[int, ...]) -> Done:
    """A start that gets these signals at that moment."""
    up = site.start("up", "--job", job)
    until(lambda: moment(up), 60, lambda: up.stderr, 0.005)
    for number in numbers:
        up.signal(number)
        os.sched_yield()
    done = up.wait(40)
    assert done.rc == 130, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_on_the_way_up_nothing_is_left(site: Site, lab: Lab) -> None:
    """At every step: connecting, in the preflight, when the first launcher runs. A second Ctrl-C changes nothing."""
    job = site.job("early", SLEEP)
    moments: tuple[tuple[Callable[[Running], object], tuple[int, ...]], ...] = (
        (lambda up: any(running(host) for host in lab), (signal.SIGINT,)),
        (lambda up: "network mesh" in up.stderr, (signal.SIGTERM,)),
        (lambda up: launching(lab), (signal.SIGINT, signal.SIGINT)),
        (lambda up: launching(lab), (signal.SIGHUP,)),
    )
    for moment, numbers in moments:
        done = interrupted(site, job, moment, numbers)
        for _ in range(AGAIN):
            if "detached" not in done.stderr:
                break
            site("kill", job).ok()  # every node had started before the signal came, so this was another moment
            done = interrupted(site, job, moment, numbers)
        assert "detached" not in done.stderr
        assert_nothing_runs(lab, within=10)


def test_whatever_ends_it_before_it_follows_nothing_is_left(site: Site, lab: Lab) -> None:
    """The reader of its output goes away while the launchers start."""
    job = site.job("unread", SLEEP)
    for _ in range(AGAIN):
        done = site("up", "--job", job, "--skip-preflight", shell='ddpctl "$@" 2>&1 | head -n 2')
        assert "code" in done.stdout
        if site.status(job)["state"] not in ("starting", "running"):
            break
        site("kill", job).ok()  # every node had started before `head` ended, so `up` has only detached
    else:
        raise AssertionError("the run goes on")
    until(lambda: not launching(lab), 30, lambda: str([running(host) for host in lab]))
    assert_nothing_runs(lab, within=10)
    until(lambda: site.status(job)["state"] == "killed", 20, "the run was not ended")


def test_who_has_seen_enough_is_told_that_the_job_goes_on(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    ticking = "import os, time\nwhile True: print('tick', os.environ['RANK'], flush=True) or time.sleep(0.2)\n"
    job = site.job("ticking", ticking)
    head = 'ddpctl "$@" | grep -m 1 tick; exit "${PIPESTATUS[0]}"'
    done = site("up", "--job", job, "--skip-preflight", shell=head)
    assert done.rc == 128 + signal.SIGPIPE, done.stderr
    assert f"ticking was not changed; follow it: ddpctl attach {site.status(job)['run']}" in done.stderr
    until(lambda: site.status(job)["state"] == "running", 60, "the job does not go on")
    site("kill", job).ok()


def test_at_a_terminal_it_asks(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    up = sleeping(site, "asked", terminal=True)
    run = str(site.status("asked")["run"])
    before = [pids_of(host, run) for host in lab.hosts[:2]]

    def press_and_see(keys: str, times: int) -> None:
        press(up, keys)
        up.wait_for(rf"(?s)({MENU}.*){{{times}}}", 20)

    press_and_see(CTRL_C, 1)
    press_and_see("what?\n", 2)  # asked again
    press(up, "c\n")
    up.wait_for("continuing; Ctrl-C asks again", 20)
    assert site.status("asked")["state"] == "running"
    assert up.process.poll() is None
    press_and_see(CTRL_C, 3)
    press(up, "d\n")
    done = up.wait(20)
    assert done.rc == 0
    assert f"ddpctl attach {run}" in done.stdout
    assert [pids_of(host, run) for host in lab.hosts[:2]] == before

    attach = attach_to(site, "asked", terminal=True)
    press(attach, CTRL_C)
    done = attach.wait(20)
    assert done.rc == 130, done.stdout
    assert [pids_of(host, run) for host in lab.hosts[:2]] == before

    assert re.search("rank 1 sleeps", site("tail", "asked").ok().stdout)
    site("kill", "asked").ok()


TWO_ARE_ENOUGH = pytest.mark.full(covered_by="tests/e2e/test_interrupt.py::test_a_terminal_is_asked_whatever_is_piped")


@pytest.mark.parametrize(
    "how", ["plain", "tee", *(pytest.param(how, marks=TWO_ARE_ENOUGH) for how in ("NO_COLOR", "no stdin"))]
)
def test_a_terminal_is_asked_whatever_is_piped(site: Site, lab: Lab, how: str) -> None:
    """A second Ctrl-C detaches, k kills; each time the processes are counted."""
    site.only(0, 1)
    env = {"NO_COLOR": "1"} if how == "NO_COLOR" else {}
    shell = {"tee": TEE, "no stdin": 'trap : INT; ddpctl "$@" </dev/null; exit $?'}.get(how, "")
    up = sleeping(site, "asked", terminal=True, env=env, shell=shell)
    run = str(site.status("asked")["run"])
    before = [pids_of(host, run) for host in lab.hosts[:2]]
    press(up, CTRL_C)
    up.wait_for(MENU, 20)
    press(up, CTRL_C)
    done = up.wait(20)
    assert done.rc in (0, 130), done.stdout
    assert [pids_of(host, run) for host in lab.hosts[:2]] == before
    assert all(before)

    site("kill", "asked").ok()
    up = sleeping(site, "again", terminal=True, env=env, shell=shell)
    press(up, CTRL_C)
    up.wait_for(MENU, 20)
    press(up, "c\n")  # with `| tee` gone, the terminal shows the rest
    up.wait_for("continuing; Ctrl-C asks again", 20)  # the letter alone is the terminal's echo
    press(up, CTRL_C)
    up.wait_for(rf"(?s)({MENU}.*){{2}}", 20)
    press(up, "k\n")
    done = up.wait(40)
    assert done.rc == 130, done.stdout
    assert_nothing_runs(lab, within=0)
    assert site.status("again")["state"] == "killed"


def test_two_at_once_kill_and_interrupt(site: Site, lab: Lab) -> None:
    """Both want the same; neither is confused by the other."""
    site.only(0, 1)
    up = sleeping(site, "twice", "--on-interrupt", "kill")
    run = str(site.status("twice")["run"])
    wait_for_ranks(lab.hosts[:2], run)
    kill = site.elsewhere("second").start("kill", "twice", "--any-project")
    up.signal(signal.SIGINT)
    assert kill.wait(40).rc == 0
    assert up.wait(40).rc in (1, 130)
    assert_nothing_runs(lab)
