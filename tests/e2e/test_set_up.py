"""``before``, ``after`` and ``links`` of a job, through `ddpctl up`."""

from __future__ import annotations

from tests.e2e.site import Site, assert_nothing_runs
from tests.lab import Lab

SHOWS = """
import os
print("module", os.environ.get("MODULE"), "reads", open("data/train.bin").read(), flush=True)
"""


def test_before_after_and_links_on_every_node(site: Site, lab: Lab) -> None:
    for host in (lab[0], lab[1]):
        host.run(["mkdir", "-p", "/root/sets"])
        host.write("/root/sets/train.bin", f"of {host.name}")
        host.write("/root/.profile", "load() { export MODULE=$1; }\n")
    (site.code / "data").mkdir(parents=True)
    (site.code / "data" / "train.bin").write_text("of this machine")
    job = site.only(0, 1).job(
        "sets-up",
        SHOWS,
        before="load cuda",
        after='echo "after $DDPCTL_STATE on $DDPCTL_HOST"',
        links={"data": "~/sets"},
    )
    planned = site("up", "--job", job, "--dry-run").ok().stdout
    assert "before  load cuda" in planned
    assert "link  data -> ~/sets" in planned
    said = site("up", "--job", job).ok().stdout
    for host in (lab[0], lab[1]):
        assert f"module cuda reads of {host.name}" in said
        assert f"after succeeded on {host.name}" in said
    assert_nothing_runs((lab[0], lab[1]))

    lab[1].run(["mv", "/root/sets", "/root/elsewhere"])
    refused = site("preflight", "--job", job, "--only", "job")
    assert refused.rc == 3
    assert "node1: /root/sets is not there, and the job requires it" in refused.stdout
    last = site("up", "--job", job, "--skip-preflight")
    assert last.rc == 1
    assert "/root/sets is not on this host" in last.stderr
    assert "after failed on node1" not in last.stdout  # nothing was started there


def test_after_runs_once_where_an_attempt_is_followed_by_another(site: Site, lab: Lab) -> None:
    meet = "import os, sys\nimport torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    fails_once = meet + "sys.exit(3 if os.environ['DDPCTL_ATTEMPT'] == '0' else 0)\n"
    job = site.only(0, 1).job(
        "twice", fails_once, restarts=1, before="echo before", after='echo "after $DDPCTL_STATE $DDPCTL_ATTEMPT"'
    )
    done = site("up", "--job", job, timeout=180).ok()
    printed = site("tail", job, "-n", "all", "--no-fold").ok().stdout
    assert printed.count("before") == 4, done.stdout
    assert printed.count("after succeeded 1") == 2
    assert printed.count("after ") == 2
    assert_nothing_runs((lab[0], lab[1]))
