"""Two folders with a train.py on the same hosts are two jobs, in every command."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tests.e2e.site import Site, of_run, one_line, wait_for_ranks
from tests.lab import Lab
from tests.lab.command import Ddpctl, Done

TRAIN = """
import os, sys, time
path = os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "train.ckpt")
begin = int(open(path).read()) if os.path.exists(path) else 0
print("begins at", begin, flush=True)
if sys.argv[1:] == ["--stay"]:
    time.sleep(600)
if os.environ["RANK"] == "0":
    with open(path + ".part", "w") as file:
        file.write(str(begin + 12))
    os.rename(path + ".part", path)
    open("model.pth", "w").write("weights")
    os.makedirs("kept", exist_ok=True)
    open("kept/log.txt", "w").write("of an output")
"""


def text(done: Done) -> str:
    """stderr in one line: a narrow terminal breaks lines anywhere."""
    return " ".join(done.stderr.split())


def newest(site: Site) -> str:
    return str(site.status("train")["run"])


def test_two_folders_with_one_script_name(site: Site, lab: Lab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> None:
    site.only(0, 1)
    two = lab.hosts[:2]
    other = Site(lab, ddpctl, tmp_path / "other", stand_in).only(0, 1)
    third = Site(lab, ddpctl, tmp_path / "third", stand_in).only(0, 1)
    for place in (site, other):
        place.job("train", TRAIN, outputs=["kept"])
        place.home = site.home  # the same account of the same machine
    here, there = (f"root@{socket.gethostname()}:{place.folder}" for place in (site, other))

    first = site("up", "--json").ok()
    assert "resumes from" not in first.stderr
    run = first.json()["run"]
    (untracked,) = first.json()["untracked"]
    assert (untracked["host"], untracked["files"], untracked["largest"]) == ("node0", 1, [["model.pth", 7]])
    assert untracked["folder"].endswith(f"/runs/{run}/node0/code")
    for words in (("status", "train"), ("fetch", "train", "got")):
        done = site(*words).ok()
        assert "1 file that no output covers stays on the node: model.pth (7 B), in" in " ".join(
            (done.stdout + done.stderr).split()
        )
        assert f"ddpctl fetch {run} --output model.pth" in " ".join((done.stdout + done.stderr).split())
    site("fetch", run, "chosen", "--output", "model.*").ok()
    assert (site.folder / "chosen" / "node0" / "outputs" / "model.pth").stat().st_size == 7

    begun = other("up").ok()
    assert "begins at 0" in begun.stdout
    assert "resumes from" not in begun.stderr
    again = site("up").ok()
    assert "begins at 12" in again.stdout
    age = r"[\d.]+ (?:s|min)(?: \d+ s)?"
    said = rf"resumes from train\.ckpt \(saved {age} ago by run {run}\); `ddpctl up --fresh` starts without it"
    assert re.search(said, text(again)), again.stderr
    assert "stays on the node: model.pth (7 B)" in text(again)

    live = other.up("train", "--", "--stay")["run"]
    wait_for_ranks(two, live)
    rows = site("ps", "--json").ok().json()["jobs"]
    assert {(row["job"], row["project"]) for row in rows if row["project"] in (site.project, other.project)} == {
        ("train", site.project),
        ("train", other.project),
    }
    assert "PROJECT" in site("ps").ok().stdout
    own = newest(site)
    assert own != live
    assert site("kill", "train", "--json").ok().json()["run"] == own, "its own newest run, which is over"
    assert site("rm", "train").ok().stdout == f"train  run {own}  removed from node0,node1\n"
    assert all(of_run(host, live) for host in two)

    nothing = f"project {third.project} on cluster lab has no job 'train'; others have: run {live} of project "
    for command in ("kill", "rm", "restart", "status", "tail", "attach", "doctor", "checkpoints", "fetch", "report"):
        refused = third(command, "train")
        assert refused.rc == 7, command
        assert nothing + f"{other.project}, started from {there}" in one_line(refused), command
    assert third.status(live)["project"] == other.project, "a run id needs no project"
    assert third("kill", live, "--json").ok().json()["run"] == live

    # The same project in another folder.
    copy = site.elsewhere("copy")
    copy.hosts = site.hosts
    copy.job("train", TRAIN)
    elsewhere = f"root@{socket.gethostname()}:{copy.folder}"
    refused = copy("up")
    assert refused.rc == 2
    assert f"train would resume from train.ckpt, which run {own} saved: it was started from {here}, not from " in (
        one_line(refused)
    )
    for command in ("kill", "rm", "restart"):
        refused = copy(command, "train")
        assert refused.rc == 2
        assert one_line(refused) == (
            f"run {run} of train was started from {here}, not from {elsewhere}; nothing was done; "
            f"if you mean it: ddpctl {command} {run}, or --any-project"
        )
    taken = copy("up", "--any-project").ok()
    assert "begins at 24" in taken.stdout
    assert f"by run {own})" in text(taken)
    assert copy("rm", run).ok().stdout.startswith(f"train  run {run}  removed")
