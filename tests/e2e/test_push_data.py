"""A folder of data on real hosts: sent once, continued after a kill, and never changed under a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, until
from tests.lab import Lab
from tests.lab_environment.scene import MB, parts, slow_links

BASE = "/root/.local/state/ddpctl"


@pytest.fixture
def data(site: Site) -> Path:
    """A folder beside the inventory: 400 small files and three large files."""
    folder = site.folder / "data"
    for number in range(400):
        path = folder / "img" / str(number % 10) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(5000))
    for name in "xyz":
        (folder / name).write_bytes(os.urandom(10 * MB))
    return folder


def hashes(lab: Lab, site: Site, index: int) -> str:
    """The hashes of all files of the data, as a host computes them."""
    place = f"{BASE}/data/{site.project}/data/"
    return str(lab[index].run(f"cd {place} && find . -type f | sort | xargs sha256sum").stdout)


def test_data_travels_once_and_a_run_keeps_its_version(site: Site, lab: Lab, data: Path) -> None:
    first = site("push", "--data", "data", "--json", timeout=180).ok().json()
    assert first["ok"]
    assert first["bytes"]["sent_by_controller"] < 34 * MB
    assert len({hashes(lab, site, index) for index in range(3)}) == 1
    assert first["links"] == {"data": f"~/.local/state/ddpctl/data/{site.project}/data"}
    again = site("push", "--data", "data", "--json", timeout=120).ok().json()
    assert (again["bytes"]["sent_by_controller"], again["bytes"]["relayed"]) == (0, 0)
    job = site.job("reads", SLEEP, links=first["links"])
    run = site.up(job)["run"]
    (data / "img" / "7" / "7.png").write_bytes(b"changed")
    changed = site("push", "--data", "data", "--json", timeout=120).ok().json()
    assert changed["bytes"]["sent_by_controller"] + changed["bytes"]["relayed"] < 3 * 100_000
    seen = [
        lab[0].run(f"stat -Lc %s {place}/img/7/7.png").stdout.strip()
        for place in (f"{BASE}/runs/{run}/node0/code/data", f"{BASE}/data/{site.project}/data")
    ]
    assert seen == ["5000", "7"]
    site("kill", job).ok()


def test_a_killed_controller_and_a_dead_host_cost_only_the_rest(site: Site, lab: Lab, data: Path) -> None:
    with slow_links(lab, "8mbit"):  # a large file is on its way for ten seconds
        push = site.start("push", "--data", "data")
        until(lambda: all(sum(parts(lab, index)) > 3 * MB for index in range(3)), 120, "nothing arrives")
        push.kill()
        until(lambda: not any(host.processes() for host in lab), 120, "a worker is left")
        assert not any(lab[index].exists(f"{BASE}/data/{site.project}/data") for index in range(3))
        push = site.start("push", "--data", "data", "--json")
        until(lambda: sum(parts(lab, 1)) > 5 * MB, 120, "nothing arrives")
        lab[1].power_off()
        for host in (lab[0], lab[2]):
            host.full_speed()
        done = push.wait(240)
    assert done.rc == 4, done.stdout + done.stderr
    document = done.json()
    assert [node["host"] for node in document["nodes"] if not node["ok"]] == ["node1"]
    assert document["bytes"]["reused"] > 3 * MB
    assert document["bytes"]["sent_by_controller"] < 45 * MB
    assert hashes(lab, site, 0) == hashes(lab, site, 2)
    lab[1].boot()
    last = site("push", "--data", "data", "--json", timeout=180).ok().json()
    assert last["bytes"]["sent_by_controller"] + last["bytes"]["relayed"] < 34 * MB
    assert hashes(lab, site, 1) == hashes(lab, site, 0)
