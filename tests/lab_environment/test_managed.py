"""The whole way with a real torch: hosts with another torch or none, no route outside, one locked environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl.environment.origins import pip_settings
from tests.conftest import MakeLab
from tests.lab import Lab
from tests.lab.command import Ddpctl
from tests.lab_environment.scene import BASE

SCRIPT = """
import sys
import numpy, torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("world", int(total), "torch", torch.__version__, "from", torch.__file__, "numpy", numpy.__version__, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts(make_module_lab: MakeLab) -> Lab:
    return make_module_lab(3)


@pytest.fixture
def lab(hosts: Lab) -> Iterator[Lab]:
    yield hosts
    hosts.heal()


def sources() -> dict[str, object]:
    """Where this machine's pip gets its packages: the test brings no address of its own."""
    pip = pip_settings(os.environ)
    found: dict[str, object] = {
        "extra_index_urls": pip.get("extra-index-url", []),
        "find_links": pip.get("find-links", []),
    }
    if pip.get("index-url"):
        found["index_url"] = pip["index-url"][0]
    return found


def test_up_trains_with_what_ddpctl_sent_and_nothing_else(lab: Lab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    path = lab.inventory(
        tmp_path / "inventory.yaml",
        defaults={"python": "/usr/bin/python3", "slots": 1},
        environment={"mode": "managed", "packages": ["torch==2.13.0", "numpy"], "torch_backend": "cpu", **sources()},
        jobs={"train": {"script": "train.py", "code": str(code), "env": {"OMP_NUM_THREADS": "1"}}},
    )
    home = lab.home("first")
    for host in lab:
        # No route outside: only the lab's own network is known to the kernel.
        assert "default" not in host.run("ip route").stdout
    up = ddpctl("up", str(path), "--job", "train", "--deep", home=home, timeout=280).ok()
    assert "rehearsal" in up.stderr
    for name in ("node0", "node1", "node2"):
        lines = [line for line in up.stdout.splitlines() if line.startswith(name) and "world" in line]
        assert len(lines) == 1, up.stdout + up.stderr
        assert "world 3 torch 2.13.0" in lines[0]
        assert f"from {BASE}/envs/" in lines[0]

    # The rehearsal comes after the environment and before the launch.
    wrong = "jobs.train.env={GLOO_SOCKET_IFNAME: nope0}"
    stuck = ddpctl("up", str(path), "--deep", "--set", wrong, "--json", home=home, timeout=120)
    assert stuck.rc == 3, stuck.stderr
    assert "nope0" in stuck.stderr.splitlines()[-1]
    assert {one["check"] for one in stuck.json()["findings"] if one["severity"] == "error"} == {"deep.rehearsal"}
    assert not any(process.argv for host in lab for process in host.processes())

    second = ddpctl("push", str(path), "--json", home=home, timeout=120).ok().json()
    assert second["ok"]
    assert second["bytes"]["sent_by_controller"] == second["bytes"]["relayed"] == 0
    assert second["bytes"]["reused"] == second["bytes"]["needed"] > 3 * 190_000_000
    assert all(node["versions"]["torch"].startswith("2.13.0") for node in second["nodes"])
    assert all(node["install_s"] < 1 for node in second["nodes"])

    # A node that is new gets everything from one that has it.
    lab[1].run(f"rm -rf {BASE}/store {BASE}/envs {BASE}/wheels {BASE}/uv-cache {BASE}/tools")
    third = ddpctl("push", str(path), "--locked", "--json", home=home, timeout=200).ok().json()
    assert third["ok"]
    assert third["bytes"]["sent_by_controller"] < 10_000  # the code of the job at most
    assert third["bytes"]["relayed"] > 190_000_000
