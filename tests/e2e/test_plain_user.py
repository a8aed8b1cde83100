"""A user who is not root, from preflight to the removal of the run: no step needs more than the own account."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tests.conftest import MakeLab
from tests.e2e.programs import STUBBORN
from tests.e2e.site import Site, assert_nothing_runs, running
from tests.lab import Host
from tests.lab.command import Ddpctl

USER = "alice"
STATE = f"/home/{USER}/.local/state/ddpctl"


def test_the_main_path(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> None:
    """The ranks ignore SIGTERM, and a child of each has left its session and its environment behind: without root there
    is no cgroup that holds them, so that the supervisor has to find them."""
    lab = make_lab(2)
    for host in lab:
        host.add_user(USER)
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)
    site.keys["defaults"]["user"] = USER
    job = site.job("stubborn", STUBBORN, outputs=["made"])
    (site.code / "made").mkdir()
    (site.code / "made" / "result").write_text("of the code\n")

    told = site("exec", "--", "sh", "-c", "id -un; pwd").ok()
    assert told.stdout.splitlines() == ["node0,node1: alice", f"node0,node1: /home/{USER}"]
    site("preflight").ok()
    run = site.up(job)["run"]
    site.wait_for_output(job, "(stays.*){4}")
    assert site.status(run)["state"] == "running"
    seen = site("doctor", job, "--json").ok().json()["ranks"]
    assert [(rank["host"], rank["stack"][0]["file"].rpartition("/")[2]) for rank in seen] == [
        ("node0", "stubborn.py"),
        ("node1", "stubborn.py"),
    ]
    for host in lab:
        assert owners(host) == {host.run(["id", "-u", USER]).stdout.strip()}
    kill = site("kill", job, "--grace", "1", "--json", timeout=90).ok().json()
    assert_nothing_runs(lab, within=0)
    assert [node["survivors"] for node in kill["nodes"]] == [[], []]
    assert all(node["forced"] >= 2 for node in kill["nodes"])

    fetched = tmp_path / "fetched"
    site("fetch", job, str(fetched)).ok()
    for rank, host in enumerate(lab):
        assert (fetched / host.name / "outputs/made/result").read_text() == "of the code\n"
        assert (fetched / host.name / f"logs/rank-{rank}.log").read_text() == "stays\nstays\n"
    for host in lab:
        assert host.run(["stat", "-c", "%a", STATE]).stdout == "700\n"
        assert host.run(f"find {STATE} ! -user {USER}").stdout == ""
        records = f"{STATE}/runs/{run}/{host.name}"
        assert host.run(f"find {records} -maxdepth 1 -type f -perm /077; find {records}/logs -perm /077").stdout == ""
        assert left_outside(host) == []
    site("rm", run).ok()
    assert all(not host.exists(f"{STATE}/runs/{run}") for host in lab)


def owners(host: Host) -> set[str]:
    """The effective users of all processes."""
    found = set()
    for process in running(host):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            status = (host.proc / str(process.pid) / "status").read_text()
            found.add(next(line.split()[2] for line in status.splitlines() if line.startswith("Uid:")))
    return found


def left_outside(host: Host) -> list[str]:
    """What the user has on the host's disk and in its memory, home, processes and the locks of slots apart."""
    places = "/root /etc /opt /srv /usr/local /var /tmp /run /dev/shm /sys/fs/cgroup"
    found = host.run(f"find {places} -user {USER} -print 2>/dev/null", check=False).stdout.splitlines()
    kept = re.compile(r"/var/mail/.*|/var/tmp/ddpctl-slots(/lock|/slot-0)?")
    return [path for path in found if not kept.fullmatch(path)]
