"""The main job: three hosts that have nothing of this machine's but installed programs train a network together."""

from __future__ import annotations

import re

from tests.e2e.site import Site, assert_nothing_runs
from tests.lab import Lab
from tests.lab.disk import CHECKOUT

EPOCH = re.compile(r"^node0:0 .*?epoch (\d+)/3 loss (\d+\.\d+) accuracy (\d\.\d+)", re.MULTILINE)


def test_three_hosts_train(torch_site: Site, lab: Lab) -> None:
    site = torch_site
    assert not any(host.exists(str(CHECKOUT / "worker")) for host in lab)  # the worker has to be sent
    job = site.training("resnet", "--num_epochs", "3", "--model_dir", "saved_models", outputs=["saved_models", "plots"])
    done = site("up", "--job", job, timeout=200).ok()
    epochs = EPOCH.findall(done.stdout)
    assert [epoch[0] for epoch in epochs] == ["1", "2", "3"]
    assert float(epochs[2][1]) < float(epochs[0][1])
    for rank, host in enumerate(lab):
        assert re.search(rf"^{host.name}:{rank} .*world_size 3 host {host.name} ", done.stdout, re.MULTILINE)
    assert_nothing_runs(lab)

    other = site.elsewhere("second")
    status = other.status(job)
    assert status["state"] == "succeeded"
    assert status["world_size"] == 3
    assert [node["ranks"] for node in status["nodes"]] == [[0], [1], [2]]
    assert {node["exit_code"] for node in status["nodes"]} == {0}
    assert status["cause"] is None
    rows = other("ps", "--all", "--json").ok().json()["jobs"]
    row = next(row for row in rows if row["run"] == status["run"])
    assert (row["job"], row["state"], row["hosts"]) == (job, "succeeded", [host.name for host in lab])
    tail = other("tail", status["run"], "-n", "all", "--rank", "2").ok().stdout.splitlines()
    assert tail
    said = re.findall(r"^node\S*:(?:2|0-2|1-2|0,2) +[|] (.*)$", done.stdout, re.MULTILINE)  # 0-2: equal lines
    assert [line.partition(" | ")[2] for line in tail] == said

    fetch = other("fetch", job, "results").ok()
    assert [line for line in fetch.stderr.splitlines() if "warning" in line] == [
        "warning: declared output plots was not found on any node that answered"
    ]
    assert (other.folder / "results/node0/outputs/saved_models/resnet_ddp.pth").stat().st_size > 100_000
    assert not list((other.folder / "results/node1").rglob("*.pth"))
