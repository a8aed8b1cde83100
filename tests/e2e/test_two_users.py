"""Two accounts with one job name on one host at once: each sees the other run, and cannot end it."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, of_run, one_line, pids_of, wait_for_ranks
from tests.lab.command import Ddpctl


def test_one_job_name_on_one_host(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> None:
    lab = make_lab(1)
    sites = {}
    for user in ("alice", "bob"):
        lab[0].add_user(user)
        site = sites[user] = Site(lab, ddpctl, tmp_path / user, stand_in)
        site.keys["defaults"].update(user=user, slots=2)
    alice, bob = sites.values()
    runs = {name: site.up(site.job("train", SLEEP, nproc_per_node=1))["run"] for name, site in sites.items()}
    for run in runs.values():
        wait_for_ranks(lab, run)
    before = pids_of(lab[0], runs["alice"])

    for name, site in sites.items():
        listed = site("ps", "--all", "--json").ok().json()["jobs"]
        assert {job["run"] for job in listed} == set(runs.values()), listed
        mine = site("ps", "--all", "--mine", "--json").ok().json()["jobs"]
        assert [job["run"] for job in mine] == [runs[name]], mine
    refused = bob("kill", runs["alice"])
    assert refused.rc == 7, refused.stderr
    assert f"no job or run '{runs['alice']}'" in one_line(refused)
    killed = bob("kill", "train", "--json").ok().json()
    assert killed["run"] == runs["bob"]
    assert of_run(lab[0], runs["bob"]) == []
    assert pids_of(lab[0], runs["alice"]) == before
    status = alice.status("train")
    assert (status["run"], status["state"]) == (runs["alice"], "running")
    assert alice("kill", "train", "--json").ok().json()["run"] == runs["alice"]
