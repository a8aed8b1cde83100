"""Core files: none of the processes that hold keys, and those of the user's programs as the login sets them."""

from __future__ import annotations

import resource
import signal
from functools import partial
from pathlib import Path

from tests.e2e.site import Site, assert_nothing_runs, disk_holds, named, ranks, until, wait_for_ranks
from tests.lab import Host, Lab

SECRET = "never-in-a-core-file"
HOLDERS = {  # in the order in which they end: the end of an earlier process of the list leaves the later ones alone
    "ddpctl-keeper": signal.SIGQUIT,
    "ddpctl-guardian": signal.SIGSEGV,
    "ddpctl-super": signal.SIGSEGV,
    "ddpctl-agent": signal.SIGQUIT,
}
LIMITS = """\
import os, resource, time
open("saves/step_1.bin", "w").close()
print("limit", resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
while True:
    time.sleep(0.2)
"""


def test_a_crash_of_a_process_with_keys_leaves_no_core_file(site: Site, lab: Lab) -> None:
    site.only(0)
    host = lab[0]
    host.bashrc("ulimit -S -c unlimited\n")
    (site.folder / "keys.env").write_text(f"TOKEN={SECRET}\n")
    job = site.job("cores", LIMITS, env_file="keys.env", restarts=1, checkpoint={"paths": ["saves"]})
    run = site.up(job)["run"]
    wait_for_ranks(lab.hosts[:1], run)
    site.wait_for_output(job, "limit -1")
    assert core_limit(host.proc / str(ranks(host, run)[0].pid) / "limits") == "unlimited"
    follow = site.start("tail", job, "-f")
    follow.wait_for("limit -1")
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(follow.process.pid, resource.RLIMIT_CORE, unlimited)
    follow.process.send_signal(signal.SIGSEGV)
    assert follow.process.wait(60) == -signal.SIGSEGV
    assert not list(site.folder.glob("core*")), "ddpctl itself holds passwords and the keys of runs"
    for name, number in HOLDERS.items():
        process = until(partial(named, host, name), 30, f"no {name}")
        assert core_limit(host.proc / str(process.pid) / "limits") == "1", name
        host.run(["kill", f"-{number.value}", str(process.pid)])
        until(partial(is_gone, host, process.pid), 30, f"{name} does not end")
    assert disk_holds(host, [SECRET.encode()]) == []
    assert not host.exists("/core")
    site("kill", job)
    assert_nothing_runs([host])


def core_limit(limits: Path) -> str:
    """The soft limit, in a file of /proc."""
    line = next(line for line in limits.read_text().splitlines() if line.startswith("Max core file size"))
    return line.split()[4]


def is_gone(host: Host, pid: int) -> bool:
    return not (host.proc / str(pid) / "exe").exists()
