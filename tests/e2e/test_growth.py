"""A run on two of three hosts takes in the third one once that is back, from a checkpoint that it asked for."""

from __future__ import annotations

import pytest

from tests.e2e.site import Site, assert_nothing_runs
from tests.e2e.test_cuts import cut
from tests.lab import Lab

# Saves when asked, and never else.
SAVES = """\
import os, signal, time
import torch.distributed as dist
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
dist.init_process_group("gloo")
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
step = max([int(name[5:-4]) for name in os.listdir(folder) if name.startswith("step_")], default=0)
begin = "nothing" if step == 0 else "a save"
print("attempt", os.environ["DDPCTL_ATTEMPT"], "of", dist.get_world_size(), "ranks from", begin, flush=True)
while True:
    step += 1
    flags = [None] * dist.get_world_size()
    dist.all_gather_object(flags, len(asked))
    if any(flags) and dist.get_rank() == 0:
        with open(os.path.join(folder, ".aside"), "w") as file:
            file.write("weights" * 1000)
        os.replace(os.path.join(folder, ".aside"), os.path.join(folder, f"step_{step}.bin"))
    if any(flags):
        asked.clear()
    time.sleep(0.2)
"""


@pytest.mark.full(covered_by="tests/worker/test_growth.py::test_the_ranks_are_asked_and_a_new_checkpoint_is_waited_for")
def test_a_host_that_is_back_is_taken_in_at_a_new_checkpoint(site: Site, lab: Lab) -> None:
    elastic = {"min_nodes": 2, "max_nodes": 3, "grow": "now"}
    job = site.job("grown", SAVES, restarts=1, elastic=elastic)
    site.up(job)
    site.wait_for_output(job, "attempt 0 of 3 ranks from nothing")
    cut(lab[2])
    site.wait_for_output(job, "#2 *[|] attempt 1 of 2 ranks from nothing")
    lab[2].clear_firewall()
    site.wait_for_output(job, "#3 *[|] attempt 2 of 3 ranks from a save", timeout=200)
    status = site.status(job)
    assert (status["state"], status["world_size"]) == ("running", 3)
    first, second, third = status["attempts"]
    assert [len(one["hosts"]) for one in (first, second, third)] == [3, 2, 3]
    assert (second["cause"], second["set_aside"]) == (None, [])
    assert "stopped to continue on 3 hosts" in site("status", job).ok().stdout
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)


@pytest.mark.full(covered_by="tests/worker/test_growth.py::test_the_ranks_are_asked_and_a_new_checkpoint_is_waited_for")
def test_one_of_two_hosts_takes_the_other_in_again(site: Site, lab: Lab) -> None:
    """It ran alone, with the vote of a witness, after the host that led was cut off."""
    elastic = {"min_nodes": 1, "max_nodes": 2, "grow": "now"}
    job = site.job("taken-in", SAVES, restarts=1, nodes=2, witness="node2", elastic=elastic)
    site.up(job)
    site.wait_for_output(job, "attempt 0 of 2 ranks from nothing")
    cut(lab[0])
    site.wait_for_output(job, "#2 *[|] attempt 1 of 1 ranks from nothing")
    lab[0].clear_firewall()
    site.wait_for_output(job, "#3 *[|] attempt 2 of 2 ranks from a save", timeout=200)
    assert [one["hosts"] for one in site.status(job)["attempts"]] == [["node0", "node1"], ["node1"], ["node0", "node1"]]
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)
