"""Outputs of a live run, over SSH."""

from __future__ import annotations

from tests.e2e.site import Site, until

GROWS = """\
import os, time
print("rank", os.environ["RANK"], flush=True)
for number in range(10**6):
    if os.environ["RANK"] == "1":
        with open("events.log", "a") as file:
            file.write(f"step {number}\\n")
    time.sleep(0.2)
"""


def test_a_file_of_a_node_grows_here_until_the_run_is_killed(site: Site) -> None:
    site.only(0, 1)
    job = site.job("grows", GROWS, outputs=["events.log"])
    run = site.up(job, "--skip-preflight")["run"]
    site.wait_for_output(job, "rank 0")
    watch = site.start("fetch", job, "--watch")
    watch.wait_for(r"1 file, \d+ bytes from node1")
    folder = site.folder / "ddpctl-runs" / job / run
    with (folder / "node1" / "outputs" / "events.log").open() as reader:  # as TensorBoard does
        assert reader.readline() == "step 0\n"
        reader.read()
        until(lambda: reader.read().startswith("step "), 40)
    site("kill", run, "--json").ok()
    done = watch.wait(60)
    assert done.rc == 0
    assert (folder / "node0" / "logs" / "rank-0.log").read_text() == "rank 0\n"
    lines = (folder / "node1" / "outputs" / "events.log").read_text().splitlines()
    assert lines == [f"step {number}" for number in range(len(lines))]
    site("fetch", job, "one", "--rank", "1").ok()
    assert [path.name for path in (site.folder / "one").iterdir()] == ["node1"]
