"""`ddpctl restart`: an ended run is continued, as it was, where its own hosts could or would not do that."""

from __future__ import annotations

import pytest

from tests.e2e.site import Site, assert_nothing_runs, until, wait_for_gang
from tests.e2e.test_restarts import MEET
from tests.lab import Lab

# Prints its checkpoints, arguments and secret; fails in the first attempt, once both ranks have printed and rank 0 has
# saved.
ONCE = """\
import os, sys, zipfile
import torch.distributed as dist
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
print("VERSION attempt", os.environ["DDPCTL_ATTEMPT"], "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], end=" ")
saves = [name for name in os.listdir(folder) if name.startswith("step_")]
print("found", saves, sys.argv[1:], os.environ["TOKEN"], flush=True)
if os.environ["DDPCTL_ATTEMPT"] == "0":
    if os.environ["RANK"] == "0":
        with zipfile.ZipFile(os.path.join(folder, ".aside"), "w") as file:  # says where it ends
            file.writestr("weights", "weights")
        os.replace(os.path.join(folder, ".aside"), os.path.join(folder, "step_3.pt"))
    dist.init_process_group("gloo")
    dist.barrier()
    raise ValueError("once")
"""


@pytest.mark.full(covered_by="tests/stages/test_restart.py::test_too_few_hosts_are_named")
def test_two_hosts_of_which_one_was_lost(site: Site, lab: Lab) -> None:
    """One host of two is no majority, so the run ends and names the command to type. `restart` is refused while node1
    is down. Once node1 is back, the run continues on both hosts, and they restart it again by themselves.
    """
    site.only(0, 1)
    job = site.job("pair", MEET, "fail", "1", "node0", restarts=1)
    up = site.start("up", "--job", job)
    up.wait_for("attempt 0 of node0 with nothing; node1 with nothing", 150)
    first = site.status(job)["run"]
    site.wait_for_copy(lab[1], job, lab[0], "step_7.bin")
    live = site("restart", job)
    assert live.rc == 2
    assert "its hosts restart it by themselves" in live.stderr
    wait_for_gang(lab.hosts[:2], first)
    lab[1].power_off()
    ended = up.wait(150)
    assert ended.rc == 1
    assert f"ddpctl restart {job}" in ended.stderr
    alone = site("restart", job)
    assert alone.rc == 4
    assert "pair needs 2 hosts, and 1 can be used" in alone.stderr
    assert "node1: " in alone.stderr

    lab[1].reboot()
    again = site.start("restart", job)
    again.wait_for("#3 *[|] attempt 2 of node0 with step_7.bin; node1 with step_7.bin", 200)
    until(lambda: site.status(job)["state"] == "running", 30, lambda: str(site.status(job)))
    status = site.status(job)
    assert (status["attempt"], status["continues"]) == (3, first)
    assert status["run"] != first
    assert [one["attempt"] for one in status["attempts"]] == [1, 2, 3]
    causes = [(one["cause"] or {}).get("reason") for one in status["attempts"]]
    assert causes == ["node_lost", "exited", None]
    assert f"continues run {first}" in site("status", job).ok().stdout
    assert site("kill", job).rc == 0
    assert again.wait(60).rc == 1
    assert_nothing_runs(lab)


@pytest.mark.full(
    covered_by="tests/stages/test_restart.py::test_one_that_cannot_have_continued_it_alone_is_done_without"
)
def test_an_elastic_run_continues_on_the_host_that_is_left(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    elastic = {"min_nodes": 1, "max_nodes": 2, "max_restarts": 2}
    job = site.job("left-alone", MEET, elastic=elastic)
    up = site.start("up", "--job", job)
    up.wait_for("attempt 0 of node0 with nothing; node1 with nothing", 150)
    site.wait_for_copy(lab[1], job, lab[0], "step_7.bin")
    wait_for_gang(lab.hosts[:2], site.status(job)["run"])
    lab[0].power_off()
    assert up.wait(150).rc == 1
    again = site.start("restart", job, "-d")
    done = again.wait(200)
    assert done.rc == 0, done.stderr
    assert "1 of 2 hosts can be used" in done.stderr
    site.wait_for_output(job, "#2 *[|] attempt 1 of node1 with step_7.bin")
    status = site.status(job)
    assert [one["hosts"] for one in status["attempts"]] == [["node0", "node1"], ["node1"]]
    assert [one["host"] for one in status["attempts"][0]["set_aside"]] == ["node0"]
    assert site("kill", job).rc in (0, 4)
    assert_nothing_runs([lab[1], lab[2]])


def test_a_host_that_is_back_is_lost_for_the_run_and_used_by_the_next_restart(site: Site, lab: Lab) -> None:
    """`up` and `status` say so. The run goes on without it, and its end does not wait for it."""
    job = site.job("back", MEET, elastic={"min_nodes": 2, "max_nodes": 3, "max_restarts": 3})
    up = site.start("up", "--job", job)
    up.wait_for("attempt 0 of node0 with nothing; node1 with nothing; node2 with nothing", 150)
    site.wait_for_copy(lab[1], job, lab[0], "step_7.bin")
    wait_for_gang(lab.hosts, site.status(job)["run"])
    lab[2].power_off()
    up.wait_for("attempt 1 of node0 with step_7.bin; node1 with step_7.bin", 150)
    lab[2].reboot()
    up.wait_for("node2.*takes part in this run no more; the next `ddpctl restart` or `ddpctl up` uses it again", 150)
    assert "node2 is lost: it takes part in this run no more" in site("status", job).ok().stdout
    live = site("restart", job)
    assert live.rc == 2
    assert f"{job} is running" in live.stderr
    site("kill", job).ok()
    assert up.wait(60).rc == 1
    site("restart", "-d", job, timeout=200).ok()
    site.wait_for_output(
        job, "#3 *[|] attempt 2 of node0 with step_7.bin; node1 with step_7.bin; node2 with step_7.bin"
    )
    site("kill", job).ok()
    assert_nothing_runs(lab)


def test_it_is_the_same_run_whatever_has_changed_here_and_from_any_machine(site: Site, lab: Lab) -> None:
    """The code, the arguments and the name come from the record; the secret from the file, which is read again."""
    site.only(0, 1)
    (site.folder / "secrets").write_text("TOKEN=first\n")
    job = site.job("once", ONCE.replace("VERSION", "old"), "--lr", "0.1", env_file="secrets")
    assert site("up", "--job", job, "--name", "mine", timeout=200).rc == 1
    first = site.status("mine")["run"]
    site.job(job, ONCE.replace("VERSION", "new"), "--lr", "0.2", env_file="secrets")
    (site.folder / "secrets").write_text("TOKEN=second\n")

    again = site("restart", "mine", "--json", timeout=200)
    assert again.rc == 0, again.stderr
    document = again.json()
    assert (document["job"], document["state"], document["attempt"]) == ("mine", "succeeded", 2)
    assert document["continues"] == first
    assert [one["attempt"] for one in document["attempts"]] == [1, 2]
    assert {node["attempt"] for node in document["nodes"]} == {2}
    assert "args, code: it continues with the run's own" in again.stderr.replace("\n", " ")
    said = "old attempt 1 restart 1 found ['step_3.pt'] ['--lr', '0.1'] second"
    assert said in again.stderr
    assert site("tail", "mine", "--json").ok().stdout.count(said) == 2, again.stderr

    other = site.elsewhere("other").only(0, 1)
    refused = other("restart", "mine", "--any-project")
    assert refused.rc == 2
    assert "does not name TOKEN" in refused.stderr.replace("\n", " ")
    (other.folder / "secrets").write_text("TOKEN=third\n")
    other.jobs[job] = {"code": None, "script": "/nowhere.py", "env_file": "secrets"}
    third = other("restart", "mine", "--any-project", timeout=200)
    assert third.rc == 0, third.stderr
    said = "old attempt 2 restart 2 found ['step_3.pt'] ['--lr', '0.1'] third"
    assert said in third.stdout
    assert other("tail", "mine", "--json").ok().stdout.count(said) == 2, third.stdout
    assert other.status("mine")["continues"] == document["run"]
    assert site("restart", "nothing").rc == 7
    assert_nothing_runs(lab)
