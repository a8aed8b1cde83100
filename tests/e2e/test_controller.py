"""The job runs on without its controller; a user who follows it misses no line and sees no line twice."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from itertools import pairwise

import pytest

from ddpctl.stages.limits import GIVE_UP_S
from tests.e2e.programs import NUMBERS, SLEEP
from tests.e2e.site import Site, assert_nothing_runs, named, pids_of, until, wait_for_gang
from tests.lab import Host, Lab
from tests.lab.command import Running

NUMBER = re.compile(r"^node(\d):(\d) .*rank (\d) number (\d+)$", re.MULTILINE)
LAST = re.compile(r"^node\d:(\d) .*rank \d last (\d+)$", re.MULTILINE)


def test_the_controller_is_killed_and_attach_goes_on_with_the_next_line(site: Site, lab: Lab) -> None:
    job = site.job("counting", NUMBERS)
    outputs = []
    up = site.start("up", "--job", job)
    see_more(up)
    run = next(process.environ["DDPCTL_RUN"] for process in lab[0].processes() if "DDPCTL_RUN" in process.environ)
    pids = [pids_of(host, run) for host in lab]
    assert all(len(found) >= 2 for found in pids)
    up.kill()
    outputs.append(up.stdout)
    for _ in range(2):  # and every `attach` is killed too
        attach = site.start("attach", job)
        see_more(attach)
        attach.kill()
        outputs.append(attach.stdout)
    assert [pids_of(host, run) for host in lab] == pids
    attach = site.start("attach", job)
    see_more(attach)
    attach.signal(signal.SIGINT)  # detaches
    done = attach.wait(20)
    assert done.rc == 130, done.stderr
    outputs.append(done.stdout)
    assert [pids_of(host, run) for host in lab] == pids
    attach = site.start("attach", job)
    for host in lab:
        host.write("/root/enough", "")
    done = attach.wait(60)
    assert done.rc == 0, done.stderr
    outputs.append(done.stdout)
    for host in lab:
        host.run("rm /root/enough")
    assert_nothing_runs(lab)

    seen = Counter(match.groups() for text in outputs for match in NUMBER.finditer(text))
    last = {rank: int(count) for text in outputs for rank, count in LAST.findall(text)}
    assert set(last) == {"0", "1", "2"}
    missing = [(r, n) for r in last for n in range(last[r]) if not seen[(r, r, r, str(n))]]
    assert missing == []
    # A batch that was printed but not yet on record when SIGKILL came is printed again; nothing else ever is.
    again = [sum(overlap(*pair, rank) > 0 for rank in last) for pair in pairwise(outputs)]
    assert all(count <= 1 for count in again[:3]), again
    assert again[3:] == [0]
    repeated = sum(overlap(*pair, rank) for pair in pairwise(outputs) for rank in last)
    assert sum(seen.values()) - len(seen) == repeated
    assert site.status(job)["state"] == "succeeded"
    whole = site("tail", job, "-n", "all", "--rank", "1").ok().stdout
    assert [int(match[3]) for match in NUMBER.findall(whole)] == list(range(last["1"]))


def overlap(killed: str, next_one: str, rank: str) -> int:
    """Return the number of lines of a rank that the next attach has printed again: the last lines of the killed command
    are the first lines of the next.
    """
    first, second = (
        [int(match[3]) for match in NUMBER.findall(text) if match[2] == rank] for text in (killed, next_one)
    )
    count = len(set(first) & set(second))
    assert first[len(first) - count :] == second[:count]
    return count


def test_the_connection_breaks_and_the_lines_go_on(site: Site, lab: Lab) -> None:
    """A short break heals by itself; the run ends while no host can be reached over SSH, and its end is seen."""
    site.only(0, 1)
    job = site.job("counting", NUMBERS)
    up = site.start("up", "--job", job)
    see_more(up, hosts=2)
    for host in lab.hosts[:2]:
        kill_sessions(host)
    see_more(up, hosts=2)
    for host in lab.hosts[:2]:
        host.write("/root/enough", "")
    done = up.wait(60)
    for host in lab.hosts[:2]:
        host.run("rm /root/enough")
    assert done.rc == 0, done.stderr
    last = {rank: int(count) for rank, count in LAST.findall(done.stdout)}
    for rank in "01":
        assert [int(match[3]) for match in NUMBER.findall(done.stdout) if match[2] == rank] == list(range(last[rank]))


def lines_of_all(run: Running, hosts: int) -> int:
    """The fewest numbered lines of any host."""
    seen = Counter(match[1] for match in NUMBER.finditer(run.stdout))
    return min((seen[str(index)] for index in range(hosts)), default=0)


def see_more(run: Running, *, hosts: int = 3, lines: int = 300) -> None:
    """Until this many more lines of every host have come."""
    before = lines_of_all(run, hosts)

    def there() -> bool:
        assert run.process.poll() is None, run.stdout[-2000:] + run.stderr
        return lines_of_all(run, hosts) > before + lines

    until(there, 60, lambda: run.stdout[-2000:] + run.stderr, 0.2)


def kill_sessions(host: Host) -> None:
    """End every SSH session, as a firewall or a restarted sshd would; its listener stays."""
    sessions = [one for one in host.processes(system=True) if one.system and one.pid not in (1, host.sshd_pid())]
    assert sessions
    host.run(["kill", "-KILL", *(str(one.pid) for one in sessions)], check=False)


@pytest.mark.full(
    covered_by="tests/stages/test_follow_quiet.py::test_silence_after_a_cut_is_not_counted_once_the_host_has_answered"
)
def test_a_quiet_job_is_followed_on_after_the_connection_broke(site: Site, lab: Lab) -> None:
    """Connected again, and nothing to say for longer than an unreachable host is waited for."""
    site.only(0, 1)
    job = site.job("quiet", SLEEP)
    up = site.start("up", "--job", job)
    up.wait_for(r"rank 0 sleeps")
    up.wait_for(r"rank 1 sleeps")
    for host in lab.hosts[:2]:
        kill_sessions(host)
    up.wait_for("trying again")
    with pytest.raises(subprocess.TimeoutExpired):
        up.process.wait(GIVE_UP_S + 10)
    site("kill", job).ok()
    assert up.wait(30).rc == 1


def test_a_supervisor_that_hangs_is_told_and_not_waited_for_in_silence(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    job = site.job("hanging", SLEEP)
    up = site.start("up", "--job", job)
    up.wait_for(r"rank 1 sleeps")
    wait_for_gang(lab.hosts[:2], site.status(job)["run"])
    pids = [named(lab[1], name) for name in ("ddpctl-super", "ddpctl-guardian")]
    for process in pids:
        assert process
        lab[1].run(["kill", "-STOP", str(process.pid)])
    up.wait_for("supervisor there has not answered", 60)
    done = up.wait(90)
    assert done.rc != 0
    assert "ddpctl kill" in done.stderr
    site("kill", job).ok()
    assert_nothing_runs(lab)
