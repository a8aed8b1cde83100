"""One page about a run: live, ended, from another machine, without a host, and of a failed run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.e2e.site import Site, until
from tests.lab import Lab
from tests.lab.command import Done

# Two ranks that meet, with metrics, a checkpoint at every hundredth step, and the death of rank 1 in the first attempt,
# ten steps after the file `go-on` lets them continue.
TRAIN = """\
import json, os, signal, sys, time, zipfile
import torch.distributed as dist
steps, failing = map(int, sys.argv[1:])
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["DDPCTL_CHECKPOINT_DIR"]
saves = sorted(name for name in os.listdir(folder) if name.startswith("step_"))
begin = int(saves[-1][5:-3]) if saves else 0
with open(os.environ["DDPCTL_METRICS"], "a") as metrics:
    for step in range(begin + 1, steps + 1):
        while step == failing - 10 and not os.path.exists(os.path.expanduser("~/go-on")):
            time.sleep(0.05)
        if step == failing and rank == 1 and os.environ["DDPCTL_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        if step % 10 == 0:
            metrics.write(json.dumps({"step": step, "loss": 1 / step, "samples_per_s": 32.0}) + "\\n")
            metrics.flush()
        if step % 100 == 0 and rank == 0:
            with zipfile.ZipFile(os.path.join(folder, ".aside"), "w") as archive:  # says where it ends
                archive.writestr("weights", "weights" * 1000)
            os.replace(os.path.join(folder, ".aside"), os.path.join(folder, f"step_{step:06d}.pt"))
"""
# Rank 1 fails once both ranks have written their metrics.
FAILS = """\
import json, os, time
import torch.distributed as dist
with open(os.environ["DDPCTL_METRICS"], "a") as file:
    for step in range(3000):
        loss = 1 / (step + 1) if step < 2000 else float("nan")
        file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("<b>weights</b> are nan")
time.sleep(60)
"""


def document(site: Site, job: str) -> dict[str, Any]:
    found: dict[str, Any] = site("report", job, "--json").ok().json()
    return found


def curve(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in report["metrics"] if one["name"] == name)
    return found


def page(site: Site, job: str) -> tuple[Done, str]:
    done = site("report", job, "--html", "report.html").ok()
    text = (site.folder / "report.html").read_text()
    assert "<script" not in text
    assert " src=" not in text
    return done, text


def test_a_run_of_two_attempts(site: Site, lab: Lab) -> None:
    """Rank 1 is killed after a checkpoint; the nodes carry on from that."""
    site.only(0, 1)
    job = site.job("reported", TRAIN, "300", "150", restarts=1)
    run = site.up(job)["run"]
    site.wait_for_copy(lab[1], job, lab[0], "step_000100.pt")
    until(lambda: curve(document(site, job), "loss")["count"] >= 20, 60, "no metrics of both ranks")
    first = document(site, job)
    assert (first["run"], first["state"], first["ended"], first["missing"]) == (run, "running", None, [])
    assert first["verdict"].startswith("running for ")
    for host in lab.hosts[:2]:
        host.write("/root/go-on", "")
    assert site.wait_for_state(job, "succeeded", timeout=150)["attempt"] == 2
    for host in lab.hosts[:2]:
        host.run("rm /root/go-on")
    site.wait_for_copy(lab[1], job, lab[0], "step_000300.pt")

    done = document(site, job)
    assert done["verdict"].startswith("succeeded after ")
    assert done["verdict"].endswith(", in attempt 2 after 1 failure")
    assert done["world_size"] == 2
    assert done["command"][-3:] == ["reported.py", "300", "150"]
    assert done["settings"]["args"] == ["300", "150"]
    assert [one["torch"] for one in done["nodes"]] == ["2.13.0+cpu"] * 2
    cause = done["attempts"][0]["cause"]
    assert cause["rank"] == 1, cause
    loss = curve(done, "loss")
    assert [line["attempt"] for line in loss["lines"]] == [1, 2]
    assert loss["lines"][0]["points"][0][0] == 10
    assert loss["lines"][1]["points"][0][0] == 110, "the second attempt continues from step 100"
    assert loss["lines"][1]["points"][-1][0] == 300
    for line in loss["lines"]:
        assert all(before < after for (before, _), (after, _) in pairwise(line["points"]))
    assert done["network"]["hosts"] == ["node0", "node1"]
    assert len(done["network"]["links"]) == 2
    assert done["checkpoints"][0]["name"] == "step_000300.pt"

    shown, text = page(site, job)
    assert "attempt 2 after 1 failure" in shown.stdout
    assert "rank 1 was killed by SIGKILL" in text
    assert text.count('class="pygal-chart"') == 2

    from_elsewhere = document(site.elsewhere("other"), job)
    assert from_elsewhere == done | {"made": from_elsewhere["made"]}, "the nodes hold the truth"

    lab[1].power_off()
    left = document(site, job)
    assert [one["host"] for one in left["missing"]] == ["node1"]
    assert left["network"] == done["network"]
    shown, text = page(site, job)
    assert "not in this report: node1: " in shown.stdout
    assert "Not in this report: 1 host of 2" in text


def test_a_run_that_failed_without_preflight(site: Site) -> None:
    site.only(0, 1)
    job = site.job("not-finite", FAILS)
    site.up(job, "--skip-preflight")
    site.wait_for_state(job, "failed")
    found = document(site, job)
    assert (found["state"], found["cause"]["rank"], found["network"]) == ("failed", 1, None)
    loss = curve(found, "loss")
    assert (loss["not_finite"], loss["not_finite_at"], loss["count"]) == (2000, 2000, 4000)
    assert len(loss["lines"][0]["points"]) <= 500
    shown, text = page(site, job)
    assert "not measured: preflight was skipped" in shown.stdout
    assert "ValueError: <b>weights</b> are nan" in shown.stdout
    assert "&lt;b&gt;weights&lt;/b&gt; are nan" in text
    assert "<b>weights" not in text
    assert "are not finite" in text
